package treasury

import (
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// TestRemovedSale removes the payment for credits from the chain. They are taken back once,
// when the node has a block after the end of the authorization, and not before.
func TestRemovedSale(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, ctx := newBuyer(t, db), t.Context()
		if _, err := b.topUp(ctx, api.TopUp{ID: "one", Agent: "lucky", USD: 5}); err != nil {
			t.Fatal(err)
		}
		p, err := b.payments.Payment(ctx, "topup/one")
		if err != nil {
			t.Fatal(err)
		}
		key := p.Network + "/" + p.Payer + "/" + strings.TrimPrefix(p.Nonce, "0x")
		confirm := func(what, key string, age time.Duration, code api.Code, want api.Micros) {
			t.Helper()
			err := b.shop.confirm(ctx, paywall.Use{ID: key, At: time.Now().Add(-age).UnixMicro()})
			got, berr := b.ledger.Balance(ctx, "lucky")
			if api.CodeOf(err) != code || berr != nil || got.Available != want || got.Debt != 0 {
				t.Errorf("%s: got %v and %+v (%v), want %q and %s of credits", what, err, got, berr, code, want)
			}
		}
		confirm("still there", key, 2*time.Hour, "", 510*api.Cent)
		b.chain.Reorganize(false)
		confirm("a node that is behind", key, time.Hour, api.Unavailable, 510*api.Cent)
		b.chain.Fail(api.Errorf(api.Unavailable, "rpc down"))
		confirm("without the chain", key, 2*time.Hour, api.Unavailable, 510*api.Cent)
		b.chain.Fail(nil)
		confirm("of another network", strings.Replace(key, p.Network, "eip155:1", 1), 2*time.Hour, "", 510*api.Cent)
		confirm("never sold", strings.Replace(key, p.Nonce[2:6], "ffff", 1), 2*time.Hour, "", 510*api.Cent)
		for range 2 {
			confirm("removed", key, 2*time.Hour, "", 10*api.Cent)
		}
		if r, err := b.ledger.Verify(ctx, nil); err != nil || len(r.Faults) > 0 {
			t.Errorf("verify: %v, %v", r.Faults, err)
		}
	})
}

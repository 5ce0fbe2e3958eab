package sqlstore_test

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// undone checks that a settlement that the chain has undone is held again, once, also if
// the agent has a debt and has spent the rest, and that both outcomes of the new hold are
// possible.
func undone(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	b := run(t, open(), ledger.Options{})
	other := run(t, open(), ledger.Options{})
	funded(t, b, "lucky", 0)
	funded(t, b, "bob", 0)
	arrived(t, b, "tx1/0", "lucky", 100)
	for _, id := range []string{"pay", "gift", "open"} {
		if _, err := holdUSDC(ctx, b, id, 30); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, b, "pay", 20, "usdc-payee:0xab")
	settle(t, b, "gift", 30, "usdc:bob")
	if _, err := b.Reverse(ctx, ledger.ReverseRequest{ID: "tx1/0"}); err != nil {
		t.Fatal(err)
	}
	wantAll(t, b, "lucky", ledger.Balance{USDCHeld: 30, USDCDebt: 80})
	reopen := func(b *ledger.Ledger, hold, as string) (ledger.HoldState, error) {
		return b.Reopen(ctx, ledger.ReopenRequest{Hold: hold, As: as, ExpiresAt: soon, Reason: "reorganized"})
	}
	for _, b := range []*ledger.Ledger{b, other, b} {
		h, err := reopen(b, "pay", "pay.2")
		if err != nil || h.Status != api.HoldActive || h.Amount != 20 || h.Payee != "usdc-payee:0xab" || h.Category != "x402" {
			t.Errorf("reopen: got %+v, %v, want 20 held", h, err)
		}
		wantAll(t, b, "lucky", ledger.Balance{USDCHeld: 50, USDCDebt: 80})
	}
	wantSound(t, b)
	settle(t, other, "pay.2", 20, "usdc-payee:0xab")
	if h, err := reopen(b, "pay", "pay.2"); err != nil || h.Status != api.HoldSettled {
		t.Errorf("reopen after the second settlement: got %+v, %v", h, err)
	}
	if h, err := reopen(b, "pay.2", "pay.3"); err != nil || h.Status != api.HoldActive {
		t.Errorf("reopen again: got %+v, %v", h, err)
	}
	if _, err := b.Release(ctx, "pay.3", "expired", ""); err != nil {
		t.Fatal(err)
	}
	wantAll(t, other, "lucky", ledger.Balance{USDC: 20, USDCHeld: 30, USDCDebt: 80})
	for what, tt := range map[string]struct {
		hold, as string
		code     api.Code
	}{
		"an active hold":       {"open", "open.2", api.NotFound},
		"no hold":              {"none", "none.2", api.NotFound},
		"a payment to another": {"gift", "gift.2", api.Invalid},
		"a hold of another":    {"pay", "open", api.Conflict},
		"no id":                {"pay", "", api.Invalid},
	} {
		_, err := reopen(b, tt.hold, tt.as)
		wantRefused(t, what, err, tt.code, "")
	}
	if _, err := b.Expire(ctx, 0); err != nil {
		t.Fatal(err)
	}
	wantSound(t, other)
}

// undoneIsOne checks that the limits count a payment whose settlement was undone as one.
func undoneIsOne(t *testing.T, open func() ledger.Store) {
	ctx := t.Context()
	day := api.Limits{Windows: []api.WindowLimit{{Window: api.WindowDay, Category: api.CategoryX402, Amount: new(api.Micros(50))}}}
	b := run(t, open(), ledger.Options{Limits: &day, Now: time.Now})
	funded(t, b, "lucky", 0)
	arrived(t, b, "tx1/0", "lucky", 100)
	later := time.Now().Add(time.Hour).UnixMicro()
	pay := func(id string, amount api.Micros) error {
		_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: "lucky", Asset: api.USDC, Amount: amount, Category: "x402", ExpiresAt: later})
		return err
	}
	if err := pay("one", 30); err != nil {
		t.Fatal(err)
	}
	settle(t, b, "one", 30, "usdc-payee:0xab")
	if _, err := b.Reopen(ctx, ledger.ReopenRequest{Hold: "one", As: "one.2", ExpiresAt: later}); err != nil {
		t.Fatal(err)
	}
	settle(t, b, "one.2", 30, "usdc-payee:0xab")
	wantRefused(t, "beyond the limit", pay("two", 21), api.Denied, api.ReasonDayLimit)
	if err := pay("three", 20); err != nil {
		t.Errorf("up to the limit: %v", err)
	}
}

package sqlstore_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// TestEconomics checks what single agents and a group earned and spent.
func TestEconomics(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		c := newClock()
		b := run(t, sqlstore.New(db, nil), ledger.Options{Now: c.now})
		for _, agent := range []string{"lucky", "child", "client"} {
			funded(t, b, agent, 1000)
		}
		c.advance(time.Hour) // the period begins here
		pay := func(id, agent, category, turn string, asset api.Asset, amount api.Micros, payee string) {
			t.Helper()
			_, err := b.Hold(ctx, ledger.HoldRequest{ID: id, Agent: agent, Asset: asset, Amount: 100, Category: category, Turn: turn, ExpiresAt: c.now().Add(time.Hour).UnixMicro()})
			if err != nil {
				t.Fatal(err)
			}
			settle(t, b, id, amount, payee)
		}
		pay("think-1", "lucky", "inference", "r.1", api.Credits, 60, "provider:x")
		pay("think-2", "lucky", "inference", "r.1", api.Credits, 20, "provider:x")
		c.advance(30 * time.Minute)
		arrived(t, b, "tx1/0", "lucky", 500)
		pay("x402", "lucky", "x402", "r.2", api.USDC, 40, "usdc-payee:0xab")
		pay("help", "lucky", "other", "r.3", api.Credits, 30, "agent:child") // inside the group
		pay("job", "client", "other", "q.1", api.Credits, 90, "agent:child")
		if _, err := b.Transfer(ctx, ledger.TransferRequest{ID: "out", From: "child", To: "client", Amount: 7}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Hold(ctx, ledger.HoldRequest{ID: "back", Agent: "child", Amount: 11, ExpiresAt: c.now().Add(time.Hour).UnixMicro()}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Release(ctx, "back", "", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := holdUSDC(ctx, b, "buy", 200); err == nil {
			t.Fatal("a hold that has expired already: got no error")
		}
		_, err := b.Hold(ctx, ledger.HoldRequest{ID: "buy", Agent: "lucky", Asset: api.USDC, Amount: 200, ExpiresAt: c.now().Add(time.Hour).UnixMicro()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Purchase(ctx, ledger.PurchaseRequest{Hold: "buy", Agent: "lucky", USDC: 200, Credits: 190}); err != nil {
			t.Fatal(err)
		}
		c.advance(30 * time.Minute) // and ends here
		pay("late", "lucky", "inference", "r.9", api.Credits, 99, "provider:x")

		begin := start + time.Hour.Microseconds()
		p := ledger.Period{Since: begin, Until: begin + time.Hour.Microseconds(), Buckets: 2}
		got, err := b.Economics(ctx, []string{"lucky", "child"}, nil, p)
		want := ledger.Economics{
			Spent: map[string]api.Micros{"inference": 80, "x402": 40, "other": 0}, Earned: 90, TransfersOut: 7, Deposits: 500, Exchange: -10,
			Turns: 2, TurnCost: 120, First: begin, Balance: 1000 - 80 - 30 - 99 + 190 + 1000 + 30 + 90 - 7,
			Ended: map[api.HoldStatus]ledger.Tally{
				api.HoldSettled: {Holds: 4, Amount: 400, Settled: 120}, api.HoldReleased: {Holds: 1, Amount: 11},
			},
			Buckets: []ledger.Bucket{{At: begin, Spent: 80}, {At: begin + 30*time.Minute.Microseconds(), Spent: 47, Income: 590}},
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("group: %v (-want +got):\n%s", err, diff)
		}
		got, err = b.Economics(ctx, []string{"child"}, nil, p)
		if err != nil || got.Earned != 120 || got.TransfersOut != 7 || got.Turns != 0 || got.Deposits != 0 {
			t.Errorf("child: got %+v, %v, want 120 earned and 7 transferred", got, err)
		}
		_, err = b.Economics(ctx, []string{"no-agent"}, nil, p)
		wantRefused(t, "nobody", err, api.NotFound, "")
	})
}

// TestEconomicsOfTopUps checks that credits that an agent buys with the USDC of its wallet
// are neither spent nor a deposit, and that those that others buy for it are a deposit.
func TestEconomicsOfTopUps(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		c := newClock()
		b := run(t, sqlstore.New(db, nil), ledger.Options{Now: c.now})
		funded(t, b, "lucky", 1000)
		c.advance(time.Hour) // the period begins here
		arrived(t, b, "tx1/0", "lucky", 500)
		_, err := b.Hold(ctx, ledger.HoldRequest{
			ID: "x402/topup/1", Agent: "lucky", Asset: api.USDC, Amount: 200, Category: ledger.CategoryExchange, Exchange: true, ExpiresAt: c.now().Add(time.Hour).UnixMicro(),
		})
		if err != nil {
			t.Fatal(err)
		}
		settle(t, b, "x402/topup/1", 200, "usdc-payee:0xab")
		for _, payer := range []string{"0xA1", "0xB2"} {
			r := ledger.PurchaseRequest{ID: ledger.SaleID("eip155:1337/" + payer + "/01"), Source: ledger.ChainUSDC("dev"), Agent: "lucky", USDC: 200, Credits: 200}
			if _, err := b.Purchase(ctx, r); err != nil {
				t.Fatal(err)
			}
		}
		begin := start + time.Hour.Microseconds()
		p := ledger.Period{Since: begin, Until: begin + time.Hour.Microseconds(), Buckets: 1}
		got, err := b.Economics(ctx, []string{"lucky"}, map[string]bool{"0xa1": true}, p)
		want := ledger.Economics{
			Spent: map[string]api.Micros{}, Deposits: 700, First: begin, Balance: 1400,
			Ended:   map[api.HoldStatus]ledger.Tally{api.HoldSettled: {Holds: 1, Amount: 200, Settled: 200}},
			Buckets: []ledger.Bucket{{At: begin, Income: 700}},
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

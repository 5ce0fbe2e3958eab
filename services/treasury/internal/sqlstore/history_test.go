package sqlstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// TestHistory compares the balances at each point of a ledger, by number and by time, with
// those that were read when the ledger ended there.
func TestHistory(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		c := newClock()
		older, b := run(t, &older{db}, ledger.Options{Now: c.now}), run(t, sqlstore.New(db, nil), ledger.Options{Now: c.now})
		agents := []string{"lucky", "bob"}
		was := map[string][]ledger.Balance{}
		read := func() {
			t.Helper()
			for _, agent := range agents {
				got, err := b.Balance(ctx, agent)
				if err != nil {
					t.Fatal(err)
				}
				got.Entries = 0
				was[agent] = append(was[agent], got)
			}
		}
		for _, agent := range agents {
			if err := b.Open(ctx, agent); err != nil {
				t.Fatal(err)
			}
		}
		read()
		for i, do := range []func() error{
			func() error {
				_, err := older.Deposit(ctx, ledger.DepositRequest{ID: "d1", Agent: "lucky", Amount: 1000, Source: "faucet"})
				return err
			},
			func() error { arrived(t, b, "tx1/0", "lucky", 500); return nil },
			func() error { hold(t, b, "h1", "lucky", 300); return nil },
			func() error { _, err := holdUSDC(ctx, b, "pay", 100); return err },
			func() error { settle(t, b, "h1", 200, "agent:bob"); return nil },
			func() error {
				_, err := older.Transfer(ctx, ledger.TransferRequest{ID: "t1", From: "bob", To: "lucky", Amount: 50})
				return err
			},
			func() error { settle(t, b, "pay", 60, "usdc:bob"); return nil },
			func() error { _, err := b.Reverse(ctx, ledger.ReverseRequest{ID: "tx1/0"}); return err },
			func() error { arrived(t, b, "tx2/0", "lucky", 10); return nil },
		} {
			c.advance(time.Second)
			if err := do(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			read()
		}
		for seq := range was["lucky"] {
			at := start + int64(seq)*1_000_000
			for what, point := range map[string]func() (ledger.Point, error){
				"number":       func() (ledger.Point, error) { return b.PointOf(ctx, int64(seq)) },
				"time":         func() (ledger.Point, error) { return b.PointAt(ctx, at) },
				"a time later": func() (ledger.Point, error) { return b.PointAt(ctx, at+999_999) },
			} {
				p, err := point()
				if err != nil || p.Seq != int64(seq) || seq > 0 && p.At != at {
					t.Errorf("point %d by %s: got %+v, %v, want %d at %d", seq, what, p, err, seq, at)
				}
				for _, agent := range agents {
					got, err := b.BalanceAt(ctx, agent, p)
					got.Entries = 0
					if diff := cmp.Diff(was[agent][seq], got); err != nil || diff != "" {
						t.Errorf("balance of %s after %d by %s: %v (-was +got):\n%s", agent, seq, what, err, diff)
					}
				}
			}
		}
		_, err := b.PointOf(ctx, 10)
		wantRefused(t, "a point after the end", err, api.Invalid, "")
		_, err = b.BalanceAt(ctx, "nobody", ledger.Point{Seq: 3})
		wantRefused(t, "the balance of nobody", err, api.NotFound, "")
		wantSound(t, b)
	})
}

// TestVerifyReportsProgress checks the calls of progress, and that its error ends the
// verification.
func TestVerifyReportsProgress(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		store := sqlstore.New(db, nil)
		b := run(t, store, ledger.Options{})
		funded(t, b, "lucky", 1)
		const more = 2500
		post(t, store, more)
		var done []int64
		r, err := b.Verify(ctx, func(n, all int64) error {
			if all != more+1 {
				t.Errorf("all: got %d, want %d", all, more+1)
			}
			done = append(done, n)
			return nil
		})
		if err != nil || len(r.Faults) != 0 || r.Transactions != more+1 {
			t.Errorf("verify: got %+v, %v, want %d transactions and no faults", r, err, more+1)
		}
		if diff := cmp.Diff([]int64{1000, 2000}, done); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
		gone := errors.New("the caller is gone")
		if _, err := b.Verify(ctx, func(int64, int64) error { return gone }); !errors.Is(err, gone) {
			t.Errorf("verify for a caller that is gone: got %v", err)
		}
	})
}

// post writes n deposits for lucky in changes of 1,000, without the ledger's queue.
func post(tb testing.TB, store *sqlstore.Store, n int) {
	tb.Helper()
	for i := 0; i < n; {
		err := store.Update(tb.Context(), ledger.Keys{Accounts: []string{"agent:lucky", "faucet"}}, func(s ledger.State) ledger.Changes {
			c := ledger.Changes{Head: s.Head}
			agent, faucet := s.Accounts["agent:lucky"], s.Accounts["faucet"]
			for ; i < n && len(c.Transactions) < 1000; i++ {
				agent.Balance, agent.Entries = agent.Balance+1, agent.Entries+1
				faucet.ID, faucet.Balance, faucet.Entries = "faucet", faucet.Balance-1, faucet.Entries+1
				x := ledger.Transaction{
					Seq: c.Head.Seq + 1, ID: fmt.Sprint("d", i), Kind: ledger.KindDeposit, Agent: "lucky", At: start, Previous: c.Head.Hash,
					Lines: []ledger.Line{{Account: "faucet", Amount: -1, Balance: faucet.Balance}, {Account: "agent:lucky", Amount: 1, Balance: agent.Balance}},
				}
				x.Hash = x.Sum()
				c.Head = ledger.Head{Seq: x.Seq, Hash: x.Hash}
				c.Transactions = append(c.Transactions, x)
			}
			c.Accounts = []ledger.Account{agent, faucet}
			return c
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

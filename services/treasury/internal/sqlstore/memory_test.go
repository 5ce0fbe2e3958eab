package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

func reserve(id string, amount api.Micros) ledger.HoldRequest {
	return ledger.HoldRequest{ID: id, Agent: "lucky", Amount: amount, ExpiresAt: now.Add(time.Hour).UnixMicro()}
}

// TestMemoryForgetsWhatFailed checks that changes that failed to commit are not in memory
// afterwards.
func TestMemoryForgetsWhatFailed(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		fail := false
		b := newLedger(t, sqlstore.NewAlone(db, func(ctx context.Context, tx *sqldb.Tx, _ ledger.Changes) error {
			if !fail {
				return nil
			}
			_, err := tx.ExecContext(ctx, "insert into nothing (id) values ('x')")
			return err
		}))
		want := func(available, held api.Micros) {
			t.Helper()
			for what, b := range map[string]*ledger.Ledger{"memory": b, "database": newLedger(t, sqlstore.New(db, nil))} {
				if got, err := b.Balance(ctx, "lucky"); err != nil || got.Available != available || got.Held != held {
					t.Errorf("balance in %s: got %+v, %v, want %d available and %d held", what, got, err, available, held)
				}
			}
		}
		if err := b.Open(ctx, "lucky"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Deposit(ctx, ledger.DepositRequest{ID: "d", Agent: "lucky", Amount: 100, Source: "faucet"}); err != nil {
			t.Fatal(err)
		}
		for i := range 4 { // fill the cache
			if _, err := b.Hold(ctx, reserve(fmt.Sprintf("h%d", i), 10)); err != nil {
				t.Fatal(err)
			}
		}
		want(60, 40)
		fail = true
		if _, err := b.Hold(ctx, reserve("doomed", 10)); err == nil {
			t.Error("hold that cannot be announced: got no error")
		}
		if _, err := b.Settle(ctx, ledger.SettleRequest{ID: "h0", Amount: 10, Payee: "provider:x"}); err == nil {
			t.Error("settlement that cannot be announced: got no error")
		}
		want(60, 40)
		// After an error the commit may have succeeded. Here another store makes it.
		if _, err := newLedger(t, sqlstore.New(db, nil)).Deposit(ctx, ledger.DepositRequest{ID: "d2", Agent: "lucky", Amount: 5, Source: "faucet"}); err != nil {
			t.Fatal(err)
		}
		want(65, 40)
		fail = false
		if s, err := b.Settle(ctx, ledger.SettleRequest{ID: "h0", Amount: 10, Payee: "provider:x"}); err != nil || s.Available != 65 {
			t.Errorf("settle: got %+v, %v, want 65 available", s, err)
		}
		want(65, 30)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := b.Hold(ended, reserve("late", 10)); !errors.Is(err, context.Canceled) {
			t.Errorf("hold whose caller is gone: got %v", err)
		}
		want(65, 30)
		if r, err := b.Verify(ctx, nil); err != nil || len(r.Faults) != 0 || r.Transactions != 7 {
			t.Errorf("verify: got %+v, %v, want 7 transactions and no faults", r, err)
		}
	})
}

// TestMemorySeesOtherWriters checks that writes of another process affect each decision:
// a refusal, the answer to a repeated request, and a new hold.
func TestMemorySeesOtherWriters(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		b, other := newLedger(t, sqlstore.New(db, nil)), newLedger(t, sqlstore.New(reopen(t, db), nil))
		deposit := func(b *ledger.Ledger, id string, amount api.Micros) {
			t.Helper()
			if _, err := b.Deposit(ctx, ledger.DepositRequest{ID: id, Agent: "lucky", Amount: amount, Source: "faucet"}); err != nil {
				t.Fatal(err)
			}
		}
		hold := func(b *ledger.Ledger, id string, amount api.Micros) ledger.HoldState {
			t.Helper()
			s, err := b.Hold(ctx, reserve(id, amount))
			if err != nil {
				t.Fatalf("hold %s: %v", id, err)
			}
			return s
		}
		warm := func(round string) {
			t.Helper()
			for i := range 3 {
				hold(b, fmt.Sprintf("%s-%d", round, i), 1)
			}
		}
		if err := b.Open(ctx, "lucky"); err != nil {
			t.Fatal(err)
		}
		deposit(b, "d1", 100)
		warm("a")
		deposit(other, "d2", 1000)
		hold(b, "refused-by-memory", 500)
		warm("b")
		hold(other, "theirs", 500)
		if _, err := b.Hold(ctx, reserve("too-much", 200)); api.ReasonOf(err) != api.ReasonInsufficient {
			t.Errorf("hold of what the other has reserved: got %v, want it refused", err)
		}
		warm("c")
		if _, err := other.Settle(ctx, ledger.SettleRequest{ID: "theirs", Amount: 500, Payee: "provider:x"}); err != nil {
			t.Fatal(err)
		}
		if s := hold(b, "theirs", 500); s.Status != api.HoldSettled {
			t.Errorf("hold of the other again: got %+v, want it settled", s)
		}
		warm("d")
		hold(b, "mine", 7)
		if _, err := other.Release(ctx, "mine", "", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Settle(ctx, ledger.SettleRequest{ID: "mine", Amount: 7, Payee: "provider:x"}); api.CodeOf(err) != api.Conflict {
			t.Errorf("settle what the other has released: got %v, want conflict", err)
		}
		warm("e")
		deposit(other, "d1", 100)
		deposit(b, "d2", 1000)
		if r, err := b.Verify(ctx, nil); err != nil || len(r.Faults) != 0 || r.Transactions != 2+15+4+1 {
			t.Errorf("verify: got %+v, %v, want 22 transactions and no faults", r, err)
		}
	})
}

// TestMemoryBeyondTheChain checks that the chain has no gap after the database has lost
// its last commits, as after a failover to a database replica.
func TestMemoryBeyondTheChain(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		if db.Engine == sqldb.SQLite {
			return // SQLite has no failover
		}
		ctx := t.Context()
		b := written(t, sqlstore.New(db, nil))
		withoutTriggers(t, db)
		for _, s := range []string{ // undoes the transfer
			"update accounts set balance = balance + 77, entries = entries - 1 where id = 'agent:lucky'",
			"update accounts set balance = balance - 77, entries = entries - 1 where id = 'agent:bob'",
			"update chain set seq = 7, hash = (select hash from journal where seq = 7)",
			"delete from journal where seq = 8",
		} {
			if _, err := db.ExecContext(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Hold(ctx, reserve("after", 10)); err != nil {
			t.Fatal(err)
		}
		if r, err := b.Verify(ctx, nil); err != nil || len(r.Faults) != 0 || r.Transactions != 8 {
			t.Errorf("verify: got %+v, %v, want 8 transactions and no faults", r, err)
		}
	})
}

// TestStatements counts the statements of a turn: a hold, its settlement and a balance.
func TestStatements(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := t.Context()
		store := sqlstore.New(db, nil)
		if db.Engine == sqldb.SQLite {
			store = sqlstore.NewAlone(db, nil)
		}
		b := newLedger(t, store)
		if err := b.Open(ctx, "lucky"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Deposit(ctx, ledger.DepositRequest{ID: "d", Agent: "lucky", Amount: 1000, Source: "faucet"}); err != nil {
			t.Fatal(err)
		}
		turn := func(id string) {
			t.Helper()
			if _, err := b.Hold(ctx, reserve(id, 10)); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Settle(ctx, ledger.SettleRequest{ID: id, Amount: 3, Payee: "provider:x"}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Balance(ctx, "lucky"); err != nil {
				t.Fatal(err)
			}
		}
		turn("cold")
		turn("known")
		before := db.Stats()
		turn("warm")
		after := db.Stats()
		want := map[sqldb.Engine]int64{sqldb.SQLite: 6, sqldb.Postgres: 9}[db.Engine]
		if got := after.Statements - before.Statements; got != want {
			t.Errorf("statements of a turn: got %d, want %d", got, want)
		}
		want = map[sqldb.Engine]int64{sqldb.Postgres: 3}[db.Engine]
		if got := after.Flights - before.Flights; got != want {
			t.Errorf("flights of a turn: got %d, want %d", got, want)
		}
		if got := after.Commits - before.Commits; got != 2 {
			t.Errorf("commits of a turn: got %d, want 2", got)
		}
	})
}

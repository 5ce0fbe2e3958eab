package sqlstore_test

import (
	"fmt"
	"testing"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// withoutTriggers drops the triggers that refuse changes of the journal, so that a test
// can change it as somebody who owns the database can.
func withoutTriggers(t *testing.T, db *sqldb.DB) {
	t.Helper()
	statements := []string{"drop trigger journal_no_update", "drop trigger journal_no_delete", "drop trigger postings_no_update", "drop trigger postings_no_delete"}
	if db.Engine == sqldb.Postgres {
		statements = []string{"drop trigger journal_append_only on journal", "drop trigger postings_append_only on postings_v1"}
	}
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// TestDatabaseRefuses checks that the database refuses what breaks the rules of the
// ledger, whoever writes it.
func TestDatabaseRefuses(t *testing.T) {
	t.Parallel()
	row := func(credits, usdc int) string {
		return fmt.Sprintf("insert into journal (seq, id, kind, agent, memo, turn, trace, at, previous, hash, credits_sum, usdc_sum)"+
			" values (9, 'x', 'deposit', 'lucky', '', '', '', 1, '', '', %d, %d)", credits, usdc)
	}
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		written(t, sqlstore.New(db, nil))
		for what, s := range map[string]string{
			"a gain":                     row(1, 0),
			"a loss of USDC":             row(0, -1),
			"credits for USDC":           row(5, -5),
			"a change of a transaction":  "update journal set memo = 'x' where seq = 2",
			"a removal of a transaction": "delete from journal where seq = 2",
			"USDC below zero":            "insert into accounts (id, balance, entries) values ('usdc:lucky', -1, 0)",
			"held USDC below zero":       "insert into accounts (id, balance, entries) values ('usdc-held:lucky', -1, 0)",
			"credits below zero":         "update accounts set balance = -1 where id = 'agent:lucky'",
		} {
			if _, err := db.ExecContext(t.Context(), s); err == nil {
				t.Errorf("%s: got no error from %s", what, s)
			}
		}
		wantUntouched(t, db)
	})
}

// TestDatabaseRefusesChangesOfOlderRows is [TestDatabaseRefuses] for the rows of the
// previous release.
func TestDatabaseRefusesChangesOfOlderRows(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		written(t, &older{db})
		for _, s := range []string{"update postings_v1 set amount = 1", "delete from postings_v1", "update journal set memo = 'x'"} {
			if _, err := db.ExecContext(t.Context(), s); err == nil {
				t.Errorf("got no error from %s", s)
			}
		}
		wantUntouched(t, db)
	})
}

func wantUntouched(t *testing.T, db *sqldb.DB) {
	t.Helper()
	r, err := ledger.New(sqlstore.New(db, nil), ledger.Options{}).Verify(t.Context(), nil)
	if err != nil || len(r.Faults) != 0 {
		t.Errorf("verify: got %+v, %v, want no faults", r, err)
	}
}

// TestDatabaseRefusesUnbalancedChanges checks that the store passes the sums of the lines
// to the constraints: a change with a faulty transaction is not written.
func TestDatabaseRefusesUnbalancedChanges(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		store := sqlstore.New(db, nil)
		written(t, store)
		for what, lines := range map[string][]ledger.Line{
			"a gain":           {{Account: "faucet", Amount: -5}, {Account: "agent:lucky", Amount: 6}},
			"a gain in USDC":   {{Account: "usdc-chain:dev", Amount: -5}, {Account: "usdc:lucky", Amount: 6}},
			"credits for USDC": {{Account: "usdc-chain:dev", Amount: -5}, {Account: "agent:lucky", Amount: 5}},
		} {
			err := store.Update(t.Context(), ledger.Keys{}, func(s ledger.State) ledger.Changes {
				x := ledger.Transaction{Seq: s.Head.Seq + 1, ID: "x", Kind: ledger.KindDeposit, Agent: "lucky", Lines: lines, Previous: s.Head.Hash}
				x.Hash = x.Sum()
				return ledger.Changes{Head: ledger.Head{Seq: x.Seq, Hash: x.Hash}, Transactions: []ledger.Transaction{x}}
			})
			if err == nil {
				t.Errorf("%s: got no error", what)
			}
		}
		wantUntouched(t, db)
	})
}

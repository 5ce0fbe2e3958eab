package sqlstore_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// TestPruneClaimedPayment checks on PostgreSQL that a payment is not removed which a
// concurrent transaction claims while the removal waits for its row.
func TestPruneClaimedPayment(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		if db.Engine != sqldb.Postgres {
			return // a transaction of SQLite is the only writer
		}
		ctx, s := t.Context(), sqlstore.New(db, nil)
		old, recent := now.UnixMicro(), now.Add(2*time.Hour).UnixMicro()
		if _, _, err := s.ClaimPayment(ctx, pay.Payment{ID: "p", Agent: "lucky", State: api.PaymentIntended, CreatedAt: old, UpdatedAt: old}); err != nil {
			t.Fatal(err)
		}
		type result struct {
			removed int64
			err     error
		}
		done := make(chan result, 1)
		err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
			if _, err := tx.ExecContext(ctx, "update payments set busy_until = $1 where id = 'p'", recent); err != nil {
				return err
			}
			go func() {
				n, err := s.PrunePayments(ctx, now.Add(time.Hour).UnixMicro())
				done <- result{n, err}
			}()
			for waiting := 0; waiting == 0; {
				var err error
				waiting, err = sqldb.One[int](ctx, db, `select count(*) from pg_stat_activity
					where datname = current_database() and wait_event_type = 'Lock' and query like 'delete from payments%'`)
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.err != nil || got.removed != 0 {
			t.Errorf("removed %d, %v, want none", got.removed, got.err)
		}
		if _, err := s.Payment(ctx, "p"); err != nil {
			t.Errorf("the claimed payment: %v", err)
		}
	})
}

// TestPrunePayments checks that the rows of payments that ended before a time are removed,
// and no row of which something is left to do.
func TestPrunePayments(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx, s := t.Context(), sqlstore.New(db, nil)
		old, limit, recent := now.UnixMicro(), now.Add(time.Hour).UnixMicro(), now.Add(2*time.Hour).UnixMicro()
		ok := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		payment := func(id string, state api.PaymentState, at, next, busy int64) {
			t.Helper()
			_, _, err := s.ClaimPayment(ctx, pay.Payment{ID: id, Agent: "lucky", State: state, CreatedAt: at, UpdatedAt: at, NextAt: next, BusyUntil: busy})
			ok(err)
		}
		for _, state := range []api.PaymentState{api.PaymentIntended, api.PaymentSettled, api.PaymentExpired, api.PaymentFailed, api.PaymentFree} {
			payment("old "+string(state), state, old, 0, 0)
			payment("recent "+string(state), state, recent, 0, 0)
			payment("due "+string(state), state, old, recent, 0)
		}
		payment("busy", api.PaymentSettled, old, 0, recent)
		payment("crashed", api.PaymentFailed, old, 0, old)
		for _, state := range []api.PaymentState{api.PaymentHeld, api.PaymentSigned, api.PaymentSubmitted, api.PaymentUnknown} {
			payment("open "+string(state), state, old, 0, 0)
		}
		for id, at := range map[string]int64{"old": old, "recent": recent} {
			for _, state := range []paywall.State{paywall.Claimed, paywall.PaidFor, paywall.Served, paywall.Done} {
				_, _, err := s.ClaimUse(ctx, paywall.Use{ID: id + " " + string(state), Payer: "0x1", State: state, At: at})
				ok(err)
			}
			for _, state := range []facilitator.State{facilitator.Pending, facilitator.Refused, facilitator.Settled} {
				_, _, err := s.ClaimSettlement(ctx, facilitator.Settlement{Key: id + " " + string(state), State: state, At: at})
				ok(err)
			}
		}
		_, _, err := s.ClaimUse(ctx, paywall.Use{ID: "unconfirmed", Payer: "0x1", State: paywall.Done, Until: old, At: old})
		ok(err)
		for _, want := range []int64{11, 0} {
			if n, err := s.PrunePayments(ctx, limit); err != nil || n != want {
				t.Errorf("got %d removed, %v, want %d", n, err, want)
			}
		}
		for table, want := range map[string][]string{
			"payments": {
				"busy", "due expired", "due failed", "due free", "due intended", "due settled", "open held", "open signed", "open submitted", "open unknown",
				"recent expired", "recent failed", "recent free", "recent intended", "recent settled",
			},
			"uses":        {"old paid", "recent claimed", "recent done", "recent paid", "recent served", "unconfirmed"},
			"settlements": {"old pending", "recent pending", "recent refused", "recent settled"},
		} {
			got, err := sqldb.All(ctx, db, func(row sqldb.Scanner) (id string, err error) { return id, row.Scan(&id) }, "select id from "+table+" order by id")
			ok(err)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", table, d)
			}
		}
		if n, err := s.PrunePayments(ctx, now.Add(8*24*time.Hour).UnixMicro()); err != nil || n == 0 {
			t.Errorf("a week later: got %d removed, %v", n, err)
		}
		if due, err := s.DueUses(ctx, old+1, 10); err != nil || len(due) != 0 {
			t.Errorf("a week later: got %d sales to confirm, %v, want none", len(due), err)
		}
		// More rows than one transaction removes.
		for i := range 450 {
			payment("many "+time.Duration(i).String(), api.PaymentFree, old, 0, 0)
		}
		if n, err := s.PrunePayments(ctx, limit); err != nil || n != 450 {
			t.Errorf("got %d removed, %v, want 450", n, err)
		}
	})
}

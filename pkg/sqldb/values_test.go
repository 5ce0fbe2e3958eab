package sqldb_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// TestValues checks the results of one column, and that Do returns the result of the call
// that was committed.
func TestValues(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		if got, err := sqldb.One[string](t.Context(), db, "select id from accounts where id = $1", "b"); err != nil || got != "b" {
			t.Errorf("one: got %q, %v, want b", got, err)
		}
		if _, err := sqldb.One[int](t.Context(), db, "select balance from accounts where id = $1", "missing"); !errors.Is(err, sqldb.ErrNotFound) {
			t.Errorf("none: got %v, want ErrNotFound", err)
		}
		got, err := sqldb.All(t.Context(), db, sqldb.Column[string], "select id from accounts order by id")
		if diff := cmp.Diff([]string{"a", "b"}, got); err != nil || diff != "" {
			t.Errorf("column: %v (-want +got):\n%s", err, diff)
		}
		calls := 0
		n, err := sqldb.Do(t.Context(), db, func(tx *sqldb.Tx) (int64, error) {
			tx.Queue(t.Context(), deposit, 5, "a")
			if calls++; calls == 1 {
				return -1, sqldb.ErrBusy
			}
			return balance(t, tx, "a"), nil
		})
		if err != nil || n != 5 || calls != 2 {
			t.Errorf("do: got %d, %v after %d calls, want 5 after 2", n, err, calls)
		}
		if n, err := sqldb.Do(t.Context(), db, func(*sqldb.Tx) (int, error) { return 3, context.Canceled }); !errors.Is(err, context.Canceled) || n != 3 {
			t.Errorf("do: got %d, %v, want 3 and the error", n, err)
		}
	})
}

// TestJSON checks that a column is decoded, on its own and in a queued query, that NULL
// leaves the value unchanged, and that text which is not JSON is an error.
func TestJSON(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		type value struct{ N int }
		one, none := value{}, &value{7}
		if err := db.QueryRowContext(t.Context(), `select '{"N":5}', null`).Scan(sqldb.JSON(&one), sqldb.JSON(&none)); err != nil || one.N != 5 || none == nil || none.N != 7 {
			t.Errorf("got %v, %v, %v, want 5 and the value before", one, none, err)
		}
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			var later *value
			if err := tx.QueueRow(t.Context(), `select '{"N":6}'`).Scan(sqldb.JSON(&later)); err != nil || later == nil || later.N != 6 {
				t.Errorf("queued: got %v, %v, want 6", later, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := db.QueryRowContext(t.Context(), `select '{'`).Scan(sqldb.JSON(&one)); err == nil || !strings.Contains(err.Error(), "column 1") {
			t.Errorf("not JSON: got %v, want an error of column 1", err)
		}
	})
}

package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

const (
	deposit  = "update accounts set balance = balance + $1 where id = $2"
	addEntry = "insert into entries (id, account, amount) values ($1, $2, $3)"
)

func anID(s sqldb.Scanner) (id string, err error) { return id, s.Scan(&id) }

// TestQueue checks that queued statements take effect in the order of the calls, among
// those that are not queued, and that their results match that order.
func TestQueue(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			const read = "select balance, name from accounts where id = $1"
			tx.Queue(t.Context(), deposit, 5, "a")
			before := tx.QueueRow(t.Context(), read, "a")
			none := tx.QueueRow(t.Context(), read, "missing")
			ids := sqldb.QueueAll(t.Context(), tx, anID, "select id from accounts where balance >= $1 order by id", 0)
			empty := sqldb.QueueAll(t.Context(), tx, anID, "select id from accounts where balance > $1", 100)
			tx.Queue(t.Context(), deposit, 2, "a")
			if got := balance(t, tx, "a"); got != 7 {
				t.Errorf("balance is %d, want 7", got)
			}
			var n int64
			var name sqldb.Null[string]
			if err := before.Scan(&n, &name); err != nil || n != 5 || name.Valid {
				t.Errorf("before: got %d, %v, %v, want 5 and NULL", n, name, err)
			}
			if err := none.Scan(&n, &name); !errors.Is(err, sqldb.ErrNotFound) {
				t.Errorf("no row: got %v, want ErrNotFound", err)
			}
			if got, err := ids.All(); err != nil || !cmp.Equal(got, []string{"a", "b"}) {
				t.Errorf("ids: got %q, %v, want a, b", got, err)
			}
			if got, err := empty.All(); err != nil || got != nil {
				t.Errorf("no ids: got %q, %v, want none", got, err)
			}
			tx.QueueRow(t.Context(), "update accounts set balance = balance + 1 where id = $1 returning balance", "a") // never scanned
			tx.Queue(t.Context(), addEntry, "e", "a", 1)
			return nil
		})
		if got := balance(t, db, "a"); err != nil || got != 8 {
			t.Errorf("balance is %d, %v, want 8", got, err)
		}
		var entries int
		if err := db.QueryRowContext(t.Context(), "select count(*) from entries").Scan(&entries); err != nil || entries != 1 {
			t.Errorf("%d entries, %v, want 1", entries, err)
		}
	})
}

// TestQueuedFailure checks that a later statement returns the error of a queued one with
// its kind, and that nothing is committed even if the function ignores the error.
func TestQueuedFailure(t *testing.T) {
	t.Parallel()
	taken := func(ctx context.Context, tx *sqldb.Tx) {
		tx.Queue(ctx, "insert into accounts (id, balance) values ($1, $2)", "a", 1)
	}
	scans := func(err error) error {
		if err == nil {
			return errors.New("no error")
		}
		return nil
	}
	for name, then := range map[string]func(context.Context, *sqldb.Tx) error{
		"commit": func(context.Context, *sqldb.Tx) error { return nil },
		"queue":  func(ctx context.Context, tx *sqldb.Tx) error { tx.Queue(ctx, deposit, 1, "b"); return nil },
		"exec": func(ctx context.Context, tx *sqldb.Tx) error {
			_, err := tx.ExecContext(ctx, deposit, 1, "b")
			return scans(err)
		},
		"row": func(ctx context.Context, tx *sqldb.Tx) error {
			return scans(tx.QueryRowContext(ctx, "select 1").Scan(new(int)))
		},
		"queued row": func(ctx context.Context, tx *sqldb.Tx) error {
			return scans(tx.QueueRow(ctx, "select balance from accounts where id = $1", "a").Scan(new(int)))
		},
		"queued rows": func(ctx context.Context, tx *sqldb.Tx) error {
			_, err := sqldb.QueueAll(ctx, tx, anID, "select id from accounts where id = $1", "a").All()
			return scans(err)
		},
		"rows": func(ctx context.Context, tx *sqldb.Tx) error {
			_, err := sqldb.All(ctx, tx, anID, "select id from accounts where id = $1", "a")
			return scans(err)
		},
		"script": func(ctx context.Context, tx *sqldb.Tx) error {
			_, err := tx.ExecContext(ctx, "update accounts set balance = 1; update accounts set balance = 2")
			return scans(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
				for _, late := range []bool{false, true} { // in the same flight as BEGIN, and in a later one
					err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
						if late {
							exec(t, tx, deposit, 1, "a")
						}
						tx.Queue(t.Context(), deposit, 1, "b")
						taken(t.Context(), tx)
						return then(t.Context(), tx)
					})
					e, ok := errors.AsType[*sqldb.Error](err)
					if !ok || !errors.Is(err, sqldb.ErrConflict) || e.Violation != sqldb.Unique {
						t.Errorf("late %t: got %v, want the conflict", late, err)
					}
				}
				if a, b := balance(t, db, "a"), balance(t, db, "b"); a != 0 || b != 0 {
					t.Errorf("balances are %d and %d, want 0 and 0", a, b)
				}
			})
		})
	}
}

// TestQueuedFailureAtCommit checks a constraint that is deferred to the commit, with all
// statements in one flight.
func TestQueuedFailureAtCommit(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			tx.Queue(t.Context(), deposit, 1, "a")
			tx.Queue(t.Context(), addEntry, "e", "missing", 1)
			return nil
		})
		e, ok := errors.AsType[*sqldb.Error](err)
		if !ok || e.Violation != sqldb.ForeignKey {
			t.Errorf("got %v, want a foreign key's conflict", err)
		}
		if got := balance(t, db, "a"); got != 0 {
			t.Errorf("balance is %d, want 0", got)
		}
	})
}

// TestQueuedBadStatement queues statements that cannot be compiled or have wrong
// arguments.
func TestQueuedBadStatement(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		for _, bad := range []func(tx *sqldb.Tx){
			func(tx *sqldb.Tx) { tx.Queue(t.Context(), "insert into nowhere (id) values ($1)", "a") },
			func(tx *sqldb.Tx) { tx.Queue(t.Context(), deposit, 1) },
			func(tx *sqldb.Tx) { tx.Queue(t.Context(), deposit, 1, struct{}{}) },
		} {
			err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
				tx.Queue(t.Context(), deposit, 1, "a")
				bad(tx)
				return nil
			})
			if err == nil {
				t.Error("no error")
			}
			exec(t, db, deposit, 0, "a") // the connections can still be used
		}
		if got := balance(t, db, "a"); got != 0 {
			t.Errorf("balance is %d, want 0", got)
		}
	})
}

func TestQueueEndsWithContext(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
			tx.Queue(ctx, deposit, 1, "a")
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
		if got := balance(t, db, "a"); got != 0 {
			t.Errorf("balance is %d, want 0", got)
		}
	})
}

// TestQueuedDeadlock is TestDeadlock with the second lock requested in the flight of
// COMMIT.
func TestQueuedDeadlock(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		var both, done sync.WaitGroup
		if db.Engine == sqldb.Postgres {
			both.Add(2)
		}
		var tries atomic.Int32
		for _, ids := range [][]string{{"a", "b"}, {"b", "a"}} {
			done.Go(func() {
				meet := sync.OnceFunc(func() {
					if db.Engine == sqldb.Postgres {
						both.Done()
						both.Wait()
					}
				})
				err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
					tries.Add(1)
					if _, err := tx.ExecContext(t.Context(), deposit, 1, ids[0]); err != nil {
						return err
					}
					meet()
					tx.Queue(t.Context(), deposit, 1, ids[1])
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
		if a, b := balance(t, db, "a"), balance(t, db, "b"); a != 2 || b != 2 {
			t.Errorf("got %d and %d, want 2 and 2", a, b)
		}
		if n := tries.Load(); db.Engine == sqldb.Postgres && n < 3 {
			t.Errorf("%d tries: the two did not meet in a deadlock", n)
		}
	})
}

// TestFlights checks the number of round trips to Postgres, and the other counts on both
// engines.
func TestFlights(t *testing.T) {
	t.Parallel()
	read := func(tx *sqldb.Tx) *sqldb.Row {
		return tx.QueueRow(t.Context(), "select balance from accounts where id = $1"+tx.ForUpdate(), "a")
	}
	tests := []struct {
		name string
		fn   func(tx *sqldb.Tx) error
		want sqldb.Stats
	}{
		{"all queued", func(tx *sqldb.Tx) error {
			tx.Queue(t.Context(), deposit, 1, "a")
			tx.Queue(t.Context(), deposit, 1, "b")
			return nil
		}, sqldb.Stats{Statements: 2, Commits: 1, Flights: 1}},
		{"reads, then writes", func(tx *sqldb.Tx) error {
			var a, b int
			first, second := read(tx), read(tx)
			err := errors.Join(first.Scan(&a), second.Scan(&b))
			tx.Queue(t.Context(), deposit, a+b, "a")
			tx.Queue(t.Context(), deposit, a+b, "b")
			return err
		}, sqldb.Stats{Statements: 4, Commits: 1, Flights: 2}},
		{"one by one", func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), deposit, 1, "a")
			return errors.Join(err, tx.QueryRowContext(t.Context(), "select balance from accounts where id = $1", "a").Scan(new(int)))
		}, sqldb.Stats{Statements: 2, Commits: 1, Flights: 3}},
		{"given up", func(tx *sqldb.Tx) error {
			tx.Queue(t.Context(), deposit, 1, "a")
			return errGivenUp
		}, sqldb.Stats{}},
	}
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		for _, tt := range tests {
			before := db.Stats()
			if err := sqldb.InTx(t.Context(), db, tt.fn); err != nil && !errors.Is(err, errGivenUp) {
				t.Errorf("%s: %v", tt.name, err)
			}
			after, want := db.Stats(), tt.want
			got := sqldb.Stats{
				Statements: after.Statements - before.Statements,
				Commits:    after.Commits - before.Commits,
				Flights:    after.Flights - before.Flights,
			}
			if db.Engine == sqldb.SQLite {
				want.Flights = 0
			}
			if tt.name == "given up" {
				got.Statements = 0 // SQLite has run the queued statement
			}
			if got != want {
				t.Errorf("%s: got %+v, want %+v", tt.name, got, want)
			}
		}
	})
}

var errGivenUp = errors.New("given up")

// TestScanAgain checks that rows scanned into the same variables have their own texts,
// and share a text that is equal to that of the previous row.
func TestScanAgain(t *testing.T) {
	t.Parallel()
	type name string
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		long := strings.Repeat("l", 64)
		want := []string{"same", "same", "diff", "", "", "same", long, long, long + "x", long + "y", "é"}
		each, args := make([]string, len(want)), make([]any, len(want))
		for i, text := range want {
			each[i], args[i] = fmt.Sprintf("select cast($%d as text) as v, %d as n", i+1, i), text
		}
		rows, err := db.QueryContext(t.Context(), "select v, v from ("+strings.Join(each, " union all ")+") x order by n", args...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := rows.Close(); err != nil {
				t.Error(err)
			}
		}()
		var plain string
		var named name
		var got, gotNamed []string
		for rows.Next() {
			if err := rows.Scan(&plain, &named); err != nil {
				t.Fatal(err)
			}
			got, gotNamed = append(got, plain), append(gotNamed, string(named))
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, gotNamed); diff != "" {
			t.Errorf("a named type (-want +got):\n%s", diff)
		}
		for _, same := range []int{1, 7} {
			if unsafe.StringData(got[same]) != unsafe.StringData(got[same-1]) {
				t.Errorf("row %d has a copy of the text of the row before", same)
			}
		}
	})
}

// TestScan checks that both engines scan into the same types.
func TestScan(t *testing.T) {
	t.Parallel()
	type name string
	type number int32
	type raw []byte
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		exec(t, db, "insert into accounts (id, name, balance) values ($1, $2, $3)", name("n"), sqldb.Null[string]{V: "x", Valid: true}, number(7))
		exec(t, db, "insert into accounts (id, name, balance) values ($1, $2, $3)", "null", sqldb.Null[name]{}, 0)
		const query = "select id, id, id, balance, balance, balance, name, name, name, exists (select 1 from accounts where id = $1), (select sum(balance) from accounts) from accounts where id = $1"
		type row struct {
			A string
			B name
			C raw
			D int
			E number
			F sqldb.Null[number]
			G sqldb.Null[name]
			H *string
			I []byte
			J bool
			K int64
		}
		x := "x"
		for id, want := range map[string]row{
			"n":    {"n", "n", raw("n"), 7, 7, sqldb.Null[number]{V: 7, Valid: true}, sqldb.Null[name]{V: "x", Valid: true}, &x, []byte("x"), true, 7},
			"null": {"null", "null", raw("null"), 0, 0, sqldb.Null[number]{Valid: true}, sqldb.Null[name]{}, nil, nil, true, 7},
		} {
			into := func(s sqldb.Scanner) (r row, err error) {
				return r, s.Scan(&r.A, &r.B, &r.C, &r.D, &r.E, &r.F, &r.G, &r.H, &r.I, &r.J, &r.K)
			}
			got, err := into(db.QueryRowContext(t.Context(), query, id))
			if d := cmp.Diff(want, got); err != nil || d != "" {
				t.Errorf("%s: %v (-want +got):\n%s", id, err, d)
			}
			err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) (err error) {
				got, err = into(tx.QueueRow(t.Context(), query, id))
				return err
			})
			if d := cmp.Diff(want, got); err != nil || d != "" {
				t.Errorf("%s, queued: %v (-want +got):\n%s", id, err, d)
			}
		}
		for what, dest := range map[string]any{"NULL into a string": new(string), "a slice": new([]int), "no pointer": 1} {
			if err := db.QueryRowContext(t.Context(), "select name from accounts where id = $1", "null").Scan(dest); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		if err := db.QueryRowContext(t.Context(), "select balance + 300 from accounts where id = $1", "n").Scan(new(int8)); err == nil {
			t.Error("307 into an int8: no error")
		}
		if err := db.QueryRowContext(t.Context(), fmt.Sprintf("select id from accounts where id = $%d", 2), "n").Scan(new(string)); err == nil {
			t.Error("too few arguments: no error")
		}
	})
}

package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

var accounts = fstest.MapFS{"migrations/0001_create_accounts.sql": {Data: []byte(`
	create table accounts (
		id text not null primary key,
		name text unique,
		balance bigint not null,
		constraint positive check (balance >= 0)
	);
	create table entries (
		id text not null primary key,
		account text not null references accounts (id) deferrable initially deferred,
		amount bigint not null
	);
	insert into accounts (id, balance) values ('a', 0), ('b', 0);
`)}}

func exec(t *testing.T, q sqldb.Querier, query string, args ...any) {
	t.Helper()
	if _, err := q.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func balance(t *testing.T, q sqldb.Querier, id string) (n int64) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), "select balance from accounts where id = $1", id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		// Out of order and used twice: a parameter is bound by its number, not by its
		// position.
		exec(t, db, "insert into accounts (balance, name, id) values ($2, $1, $1)", "x", 7)
		var got string
		err := db.QueryRowContext(t.Context(), "select id from accounts where balance = $2 and name = $1", "x", 7).Scan(&got)
		if err != nil || got != "x" {
			t.Errorf("got %q, %v, want x", got, err)
		}
	})
}

func TestUpsertReturns(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		var got []int64
		for range 3 {
			err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
				var n int64
				err := tx.QueryRowContext(t.Context(), `insert into accounts (id, balance) values ($1, $2)
					on conflict (id) do update set balance = accounts.balance + excluded.balance returning balance`, "c", 2).Scan(&n)
				got = append(got, n)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]int64{2, 4, 6}, got); diff != "" {
			t.Errorf("balances (-want +got):\n%s", diff)
		}
	})
}

// TestExecDeferred checks that a deferred write is committed, returns the number of changed
// rows, and fails in the same way as one that is not deferred.
func TestExecDeferred(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		res, err := db.ExecDeferred(t.Context(), "update accounts set balance = balance + $1", 3)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := res.RowsAffected(); err != nil || n != 2 {
			t.Errorf("%d rows (%v), want 2", n, err)
		}
		if got := balance(t, db, "b"); got != 3 {
			t.Errorf("balance is %d, want 3", got)
		}
		if _, err := db.ExecDeferred(t.Context(), "insert into accounts (id, balance) values ($1, $2)", "a", 1); !errors.Is(err, sqldb.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
	})
}

func TestAll(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		id := func(row sqldb.Scanner) (id string, err error) {
			err = row.Scan(&id)
			return id, err
		}
		got, err := sqldb.All(t.Context(), db, id, "select id from accounts where balance = $1 order by id", 0)
		if diff := cmp.Diff([]string{"a", "b"}, got); err != nil || diff != "" {
			t.Errorf("error %v, ids (-want +got):\n%s", err, diff)
		}
		got, err = sqldb.All(t.Context(), db, id, "select id from accounts where balance = $1", 1)
		if err != nil || got != nil {
			t.Errorf("none: got %q, %v", got, err)
		}
		if _, err = sqldb.All(t.Context(), db, id, "select id, name from accounts"); err == nil {
			t.Error("scan of too many columns: no error")
		}
		// The rows of a failed scan are closed: the transaction can continue.
		err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			_, err := sqldb.All(t.Context(), tx, id, "select id from accounts")
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(t.Context(), "update accounts set balance = 1")
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	type names map[sqldb.Engine]string
	tests := []struct {
		name, statement string
		want            sqldb.Violation
		constraint      names
	}{
		{
			"primary key", "insert into accounts (id, balance) values ('a', 1)", sqldb.Unique,
			names{sqldb.SQLite: "accounts.id", sqldb.Postgres: "accounts_pkey"},
		},
		{
			"unique", "insert into accounts (id, name, balance) values ('x', 'n', 1), ('y', 'n', 1)", sqldb.Unique,
			names{sqldb.SQLite: "accounts.name", sqldb.Postgres: "accounts_name_key"},
		},
		{
			"check", "update accounts set balance = -1 where id = 'a'", sqldb.Check,
			names{sqldb.SQLite: "positive", sqldb.Postgres: "positive"},
		},
		{
			"foreign key at commit", "insert into entries (id, account, amount) values ('e', 'nobody', 1)", sqldb.ForeignKey,
			names{sqldb.SQLite: "", sqldb.Postgres: "entries_account_fkey"},
		},
	}
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		for _, tt := range tests {
			inTx := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
				_, err := tx.ExecContext(t.Context(), tt.statement)
				return err
			})
			_, alone := db.ExecContext(t.Context(), tt.statement)
			for _, err := range []error{inTx, alone} {
				e, ok := errors.AsType[*sqldb.Error](err)
				if !ok || !errors.Is(err, sqldb.ErrConflict) {
					t.Errorf("%s: got %v, want ErrConflict", tt.name, err)
					continue
				}
				if e.Violation != tt.want || e.Constraint != tt.constraint[db.Engine] {
					t.Errorf("%s: got %s %q, want %s %q", tt.name, e.Violation, e.Constraint, tt.want, tt.constraint[db.Engine])
				}
				if sqldb.Map(err) != err { //nolint:errorlint // identity is required
					t.Errorf("%s: Map changed an error that was mapped", tt.name)
				}
			}
		}
	})
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		const query = "select balance from accounts where id = $1"
		var n int64
		err := db.QueryRowContext(t.Context(), query, "nobody").Scan(&n)
		if !errors.Is(err, sqldb.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
		// The transaction can still be committed.
		err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			if err := tx.QueryRowContext(t.Context(), query, "nobody").Scan(&n); !errors.Is(err, sqldb.ErrNotFound) {
				return err
			}
			_, err := tx.ExecContext(t.Context(), "insert into accounts (id, balance) values ($1, $2)", "nobody", 3)
			return err
		})
		if got := balance(t, db, "nobody"); err != nil || got != 3 {
			t.Errorf("got %d, %v, want 3", got, err)
		}
	})
}

// TestFailedStatementDooms checks that SQLite behaves like Postgres after a failed
// statement.
func TestFailedStatementDooms(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			exec(t, tx, "update accounts set balance = 9 where id = 'a'")
			if _, err := tx.ExecContext(t.Context(), "insert into accounts (id, balance) values ('a', 1)"); !errors.Is(err, sqldb.ErrConflict) {
				t.Errorf("got %v, want ErrConflict", err)
			}
			if err := tx.QueryRowContext(t.Context(), "select 1").Scan(new(int)); !errors.Is(err, sqldb.ErrConflict) {
				t.Errorf("a statement after: got %v, want the conflict", err)
			}
			return nil
		})
		if !errors.Is(err, sqldb.ErrConflict) {
			t.Errorf("commit: got %v, want the conflict", err)
		}
		if got := balance(t, db, "a"); got != 0 {
			t.Errorf("balance is %d, want 0: a doomed transaction left something", got)
		}
	})
}

func TestRollsBack(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			exec(t, tx, "update accounts set balance = 5")
			return boom
		})
		if !errors.Is(err, boom) {
			t.Errorf("got %v, want boom", err)
		}
		func() {
			defer func() {
				if got := recover(); got != any(boom) {
					t.Errorf("recovered %v, want boom", got)
				}
			}()
			_ = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
				exec(t, tx, "update accounts set balance = 6")
				panic(boom)
			})
		}()
		exec(t, db, "update accounts set balance = balance + 1 where id = 'a'") // the write connection was released
		if got := balance(t, db, "a"); got != 1 {
			t.Errorf("balance is %d, want 1", got)
		}
	})
}

func TestRetriesBusy(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		tries := 0
		err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			exec(t, tx, "update accounts set balance = balance + 1 where id = 'a'")
			if tries++; tries < 3 {
				return fmt.Errorf("try %d: %w", tries, sqldb.ErrBusy)
			}
			return nil
		})
		if got := balance(t, db, "a"); err != nil || tries != 3 || got != 1 {
			t.Errorf("got %v after %d tries and balance %d, want nil, 3, 1", err, tries, got)
		}
		tries = 0
		err = sqldb.InTx(t.Context(), db, func(*sqldb.Tx) error { tries++; return sqldb.ErrBusy })
		if !errors.Is(err, sqldb.ErrBusy) || tries != 10 {
			t.Errorf("got %v after %d tries, want ErrBusy after 10", err, tries)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = sqldb.InTx(ctx, db, func(*sqldb.Tx) error { cancel(); return sqldb.ErrBusy })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	})
}

// TestDeadlock lets two transactions lock two rows in opposite order. Postgres aborts one
// of them, which is then retried; on SQLite the second does not begin before the first
// has ended.
func TestDeadlock(t *testing.T) {
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
					for _, id := range ids {
						if _, err := tx.ExecContext(t.Context(), "update accounts set balance = balance + 1 where id = $1", id); err != nil {
							return err
						}
						meet()
					}
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

// TestManyWriters spends from one account through two handles, as two replicas do: read,
// decide, write. No write may be lost, overdraw the account or fail as busy.
func TestManyWriters(t *testing.T) {
	t.Parallel()
	const writers, each, funds = 8, 25, 150 // 150 of 200 attempts succeed
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		exec(t, db, "update accounts set balance = $1 where id = 'a'", funds)
		other, err := db.Reopen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}()
		var wg sync.WaitGroup
		spent := make([]int64, writers)
		for w := range writers {
			wg.Go(func() {
				db := []*sqldb.DB{db, other}[w%2]
				for i := range each {
					took := int64(0)
					err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
						took = 0
						var have int64
						err := tx.QueryRowContext(t.Context(), "select balance from accounts where id = $1"+tx.ForUpdate(), "a").Scan(&have)
						if err != nil || have == 0 {
							return err
						}
						if _, err := tx.ExecContext(t.Context(), "update accounts set balance = $1 where id = $2", have-1, "a"); err != nil {
							return err
						}
						took = 1
						_, err = tx.ExecContext(t.Context(), "insert into entries (id, account, amount) values ($1, $2, $3)", fmt.Sprint(w, "/", i), "a", 1)
						return err
					})
					if err != nil {
						t.Error(err)
						return
					}
					spent[w] += took
				}
			})
		}
		wg.Wait()
		var sum, entries int64
		for _, n := range spent {
			sum += n
		}
		if err := db.QueryRowContext(t.Context(), "select count(*) from entries").Scan(&entries); err != nil {
			t.Fatal(err)
		}
		if left := balance(t, db, "a"); sum != funds || entries != funds || left != 0 {
			t.Errorf("spent %d in %d entries and %d left, want %d, %d, 0", sum, entries, left, funds, funds)
		}
	})
}

// TestSnapshot reads twice, with a write by another transaction in between.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		err := sqldb.Snapshot(t.Context(), db, func(tx *sqldb.Tx) error {
			before := balance(t, tx, "a")
			exec(t, db, "update accounts set balance = balance + 1") // not blocked by the reader
			if after := balance(t, tx, "a"); after != before {
				t.Errorf("balance went from %d to %d within a snapshot", before, after)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		err = sqldb.Snapshot(t.Context(), db, func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "update accounts set balance = 7 where id = $1", "a")
			return err
		})
		if got := balance(t, db, "a"); err == nil || got != 1 {
			t.Errorf("a write in a snapshot: got %v and balance %d, want an error and 1", err, got)
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	const slow = `with recursive n (i) as (select 1 union all select i + 1 from n where i < 2000000000)
		select count(*) from n where i > $1`
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := db.QueryRowContext(ctx, slow, 0).Scan(new(int))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("query: got %v, want DeadlineExceeded", err)
		}

		err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			exec(t, tx, "update accounts set balance = 1")
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error { // waits for the enclosing transaction
				_, err := tx.ExecContext(ctx, "update accounts set balance = 2")
				return err
			})
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait for a writer: got %v, want DeadlineExceeded", err)
		}

		ctx, cancel = context.WithCancel(t.Context())
		err = sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
			exec(t, tx, "update accounts set balance = 3")
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("commit: got %v, want Canceled", err)
		}
		if got := balance(t, db, "a"); got != 0 {
			t.Errorf("balance is %d, want 0: a cancelled transaction left something", got)
		}
		exec(t, db, "update accounts set balance = 4") // the connections can be used again
	})
}

func TestReopen(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, accounts, func(t *testing.T, db *sqldb.DB) {
		exec(t, db, "update accounts set balance = 42 where id = 'a'")
		again, err := db.Reopen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := sqldb.Migrate(t.Context(), again, accounts); err != nil {
			t.Error(err)
		}
		if got := balance(t, again, "a"); got != 42 {
			t.Errorf("balance is %d, want 42", got)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
		if err := again.Ping(t.Context()); err == nil {
			t.Error("ping after Close: no error")
		}
		if err := db.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestSameStatementInside runs a statement while the rows of the same statement are open.
func TestSameStatementInside(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, accounts)
	twice := func() (got []string, err error) {
		const query = "select id from accounts where id >= $1 order by id"
		rows, err := db.QueryContext(t.Context(), query, "a")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var id, again string
			if err := rows.Scan(&id); err != nil {
				return nil, err
			}
			if err := db.QueryRowContext(t.Context(), query, id).Scan(&again); err != nil {
				return nil, err
			}
			got = append(got, id, again)
		}
		return got, rows.Err()
	}
	for range 3 {
		got, err := twice()
		if diff := cmp.Diff([]string{"a", "a", "b", "b"}, got); err != nil || diff != "" {
			t.Fatalf("error %v, ids (-want +got):\n%s", err, diff)
		}
	}
}

// TestManyStatements uses more statements than a connection keeps.
func TestManyStatements(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, accounts)
	err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
		for i := range 600 {
			var got int
			if err := tx.QueryRowContext(t.Context(), fmt.Sprintf("select %d + $1", i), 1).Scan(&got); err != nil || got != i+1 {
				return fmt.Errorf("got %d, %w, want %d", got, err, i+1)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestReaderCannotWrite(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, accounts)
	err := db.QueryRowContext(t.Context(), "update accounts set balance = $1 returning balance", 1).Scan(new(int))
	if err == nil || !strings.Contains(err.Error(), "InTx") {
		t.Errorf("got %v, want an error that names InTx", err)
	}
}

func TestSyncMode(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{"": 1, "?sync=normal": 1, "?sync=full": 2} {
		db, err := sqldb.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "a b#c%20.db")+query, sqldb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			var sync, fk int
			var mode string
			err := errors.Join(
				tx.QueryRowContext(t.Context(), "pragma synchronous").Scan(&sync),
				tx.QueryRowContext(t.Context(), "pragma foreign_keys").Scan(&fk),
				tx.QueryRowContext(t.Context(), "pragma journal_mode").Scan(&mode))
			if sync != want || fk != 1 || mode != "wal" {
				t.Errorf("%q: got synchronous %d, foreign_keys %d, journal %s, want %d, 1, wal", query, sync, fk, mode, want)
			}
			return err
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Error(err)
		}
	}
}

package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// queue is a database with a busy writer, so that transactions wait.
type queue struct {
	*testing.T
	db      *sqldb.DB
	file    string
	results map[string]error
	mu      sync.Mutex
	callers sync.WaitGroup
}

func newQueue(t *testing.T) *queue {
	t.Helper()
	q := &queue{T: t, file: filepath.Join(t.TempDir(), "queue.db"), results: map[string]error{}}
	var err error
	if q.db, err = sqldb.Open(t.Context(), "sqlite:"+q.file, sqldb.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.db.Close() })
	for _, table := range []string{
		"create table parents (id text primary key)",
		"create table notes (id text primary key, parent text references parents (id) deferrable initially deferred)",
	} {
		if _, err := q.db.ExecContext(t.Context(), table); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

// call runs a transaction that inserts a note of the given name and then calls more.
func (q *queue) call(ctx context.Context, name string, while time.Duration, more func(*sqldb.Tx) error) {
	q.callers.Go(func() {
		err := errors.New("it panicked")
		defer func() {
			_ = recover()
			q.mu.Lock()
			defer q.mu.Unlock()
			q.results[name] = err
		}()
		err = q.db.InTxWithin(ctx, while, func(tx *sqldb.Tx) error {
			if err := q.note(tx, name); err != nil || more == nil {
				return err
			}
			return more(tx)
		})
	})
}

func (q *queue) note(tx *sqldb.Tx, name string) error {
	_, err := tx.ExecContext(context.Background(), "insert into notes (id) values ($1)", name)
	return err
}

// waits blocks until n transactions wait for a leader.
func (q *queue) waits(n int) {
	q.Helper()
	for until := time.Now().Add(30 * time.Second); ; runtime.Gosched() {
		_, got := q.db.Group()
		if got == n {
			return
		}
		if time.Now().After(until) {
			q.Fatalf("%d transactions wait, want %d", got, n)
		}
	}
}

// behind runs calls while the writer is busy, and returns how many commits the writer and
// the calls made together.
func (q *queue) behind(calls ...func()) int64 {
	q.Helper()
	before, taken, free := sqldbtest.Commits(q, q.file), make(chan struct{}), make(chan struct{})
	q.call(q.Context(), "first", 0, func(*sqldb.Tx) error { close(taken); <-free; return nil })
	<-taken
	for i, call := range calls {
		call()
		q.waits(i + 1)
	}
	close(free)
	q.callers.Wait()
	return sqldbtest.Commits(q, q.file) - before
}

// want checks which notes are stored, besides that of the first transaction, and the
// error of each call; calls that answers does not name must have succeeded.
func (q *queue) want(kept []string, answers map[string]error) {
	q.Helper()
	got, err := sqldb.All(q.Context(), q.db, func(s sqldb.Scanner) (id string, err error) { return id, s.Scan(&id) }, "select id from notes order by id")
	if want := slices.Sorted(slices.Values(append(kept, "first"))); err != nil || !slices.Equal(got, want) {
		q.Errorf("kept are %q (%v), want %q", got, err, want)
	}
	for name, got := range q.results {
		if want := answers[name]; !errors.Is(got, want) {
			q.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestTransactionsShareACommit(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	var calls []func()
	var names []string
	for i := range 5 {
		name := fmt.Sprint("n", i)
		names = append(names, name)
		calls = append(calls, func() { q.call(t.Context(), name, 0, nil) })
	}
	if got := q.behind(calls...); got != 2 {
		t.Errorf("%d commits, want 2", got)
	}
	q.want(names, nil)
}

// TestOneOfAGroupFails checks that a member that fails in any way has no effect and does
// not affect the other members.
func TestOneOfAGroupFails(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, fault := range map[string]struct {
		more    func(context.CancelFunc, *sqldb.Tx) error
		want    error
		commits int64 // of the first transaction and its two neighbours; 0 where it depends on timing
	}{
		"by itself": {func(context.CancelFunc, *sqldb.Tx) error { return boom }, boom, 2},
		"by a statement": {func(_ context.CancelFunc, tx *sqldb.Tx) error {
			_, _ = tx.ExecContext(t.Context(), "insert into notes (id) values ($1)", "before")
			return nil
		}, sqldb.ErrConflict, 2},
		"by the commit": {func(_ context.CancelFunc, tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "insert into notes (id, parent) values ($1, $2)", "orphan", "missing")
			return err
		}, sqldb.ErrConflict, 3},
		"by its end in a statement": {func(cancel context.CancelFunc, tx *sqldb.Tx) error {
			ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer stop()
			_, err := tx.ExecContext(ctx, `insert into notes (id) with recursive n (i) as (select 1 union all select i + 1 from n where i < 2000000000)
				select 'many' || i from n where i > $1`, 1_000_000_000)
			cancel()
			return err
		}, context.DeadlineExceeded, 0}, // mostly 3: an interrupted statement rolls back the whole transaction
		"by closing the transaction": {func(_ context.CancelFunc, tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "rollback")
			return errors.Join(err, boom)
		}, boom, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := q.behind(
				func() { q.call(t.Context(), "before", 0, nil) },
				func() { q.call(ctx, "fault", 0, func(tx *sqldb.Tx) error { return fault.more(cancel, tx) }) },
				func() { q.call(t.Context(), "after", 0, nil) })
			if fault.commits > 0 && got != fault.commits {
				t.Errorf("%d commits, want %d", got, fault.commits)
			}
			q.want([]string{"before", "after"}, map[string]error{"fault": fault.want})
		})
	}
}

// TestLeaderOfAGroupFails checks the same for the leader, which has no savepoint.
func TestLeaderOfAGroupFails(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, fault := range map[string]struct {
		more    func(*sqldb.Tx) error
		want    error // nil: any error
		commits int64 // of the transaction before the group, the group, and the members that retried alone
	}{
		"by itself": {func(*sqldb.Tx) error { return boom }, boom, 2},
		"by a statement": {func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "insert into notes (id) values ($1)", "fault")
			return err
		}, sqldb.ErrConflict, 2},
		"by the commit": {func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "insert into notes (id, parent) values ($1, $2)", "orphan", "missing")
			return err
		}, sqldb.ErrConflict, 3},
		"by closing the transaction": {func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "rollback")
			return errors.Join(err, boom)
		}, boom, 2},
		"by closing the transaction and saying nothing": {func(tx *sqldb.Tx) error {
			_, err := tx.ExecContext(t.Context(), "rollback")
			return err
		}, nil, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t)
			got := q.behind(
				func() { q.call(t.Context(), "fault", 0, fault.more) },
				func() { q.call(t.Context(), "before", 0, nil) },
				func() { q.call(t.Context(), "after", 0, nil) })
			if got != fault.commits {
				t.Errorf("%d commits, want %d", got, fault.commits)
			}
			if fault.want == nil {
				if q.results["fault"] == nil {
					t.Error("the leader was told that its transaction is committed")
				}
				delete(q.results, "fault")
				q.want([]string{"before", "after"}, nil)
				return
			}
			q.want([]string{"before", "after"}, map[string]error{"fault": fault.want})
		})
	}
}

func TestOneOfAGroupPanics(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"fault", "before", "after"}, {"before", "fault", "after"}, {"before", "after", "fault"}} {
		q := newQueue(t)
		var calls []func()
		for _, name := range order {
			calls = append(calls, func() {
				q.call(t.Context(), name, 0, func(*sqldb.Tx) error {
					if name == "fault" {
						panic("fault")
					}
					return nil
				})
			})
		}
		q.behind(calls...)
		if q.results["fault"] == nil {
			t.Errorf("%q: the panic was not seen by its caller", order)
		}
		delete(q.results, "fault")
		q.want([]string{"before", "after"}, nil)
	}
}

// TestOneOfAGroupGivesUp checks that a transaction whose context ends while it waits is
// not run.
func TestOneOfAGroupGivesUp(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := q.behind(
		func() { q.call(t.Context(), "before", 0, nil) },
		func() {
			q.call(ctx, "fault", 0, nil)
			q.waits(2)
			cancel()
			q.waits(1)
			q.call(t.Context(), "after", 0, nil)
		})
	if got != 2 {
		t.Errorf("%d commits, want 2", got)
	}
	q.want([]string{"before", "after"}, map[string]error{"fault": context.Canceled})
}

func TestSoon(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	// Without other transactions it is committed alone, after the deferral.
	before := sqldbtest.Commits(q, q.file)
	q.call(t.Context(), "first", time.Millisecond, nil)
	q.callers.Wait()
	if got := sqldbtest.Commits(q, q.file) - before; got != 1 {
		t.Errorf("%d commits, want 1", got)
	}
	// Otherwise it joins the next transaction.
	for i := range 3 {
		q.call(t.Context(), fmt.Sprint("n", i), time.Hour, nil)
		q.waits(i + 1)
	}
	q.call(t.Context(), "n3", 0, nil)
	q.callers.Wait()
	if got := sqldbtest.Commits(q, q.file) - before; got != 2 {
		t.Errorf("%d commits, want 2", got)
	}
	q.want([]string{"n0", "n1", "n2", "n3"}, nil)
}

// TestManyGroups runs more transactions than fit into one group, concurrently and with
// failures among them.
func TestManyGroups(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	boom := errors.New("boom")
	answers := map[string]error{}
	var kept []string
	q.call(t.Context(), "first", 0, nil)
	for i := range 300 {
		name := fmt.Sprintf("n%03d", i)
		more := func(*sqldb.Tx) error { return nil }
		if i%7 == 0 {
			more = func(*sqldb.Tx) error { return boom }
			answers[name] = boom
		} else {
			kept = append(kept, name)
		}
		q.call(t.Context(), name, time.Duration(i%3)*time.Millisecond, more)
	}
	q.callers.Wait()
	q.want(kept, answers)
	if led, waiting := q.db.Group(); led || waiting > 0 {
		t.Errorf("a transaction still leads (%t) or waits (%d)", led, waiting)
	}
}

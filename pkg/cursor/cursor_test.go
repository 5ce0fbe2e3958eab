package cursor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/cursor"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

const patience = 30 * time.Second

// migrations are those of a store that counts how often each change was applied.
var migrations = fstest.MapFS{
	"0001_create_changes.sql": {Data: []byte(`create table changes (agent text not null, seq bigint not null, times bigint not null, primary key (agent, seq))`)},
	"0002_create_cursors.sql": {Data: []byte(`create table cursors (name text not null primary key, seq bigint not null, at bigint not null)`)},
}

// world is a stream of events and the database that they are applied to.
type world struct {
	t      *testing.T
	server *embednats.Server
	bus    *bus.Bus
	db     *sqldb.DB

	mu      sync.Mutex
	applied int           // number of calls of apply
	told    chan struct{} // receives a value after each commit
}

func each(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	sqldbtest.Each(t, migrations, func(t *testing.T, db *sqldb.DB) {
		s, err := embednats.Start(t.Context(), embednats.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Shutdown)
		nc, err := bus.Dial(bus.DialOptions{InProcess: s.InProcess(), Name: t.Name(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		b, err := bus.New(nc, bus.Options{Service: "loop"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		if err := b.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, &world{t: t, server: s, bus: b, db: db, told: make(chan struct{}, 10_000)})
	})
}

func change(agent string, seq int64) api.AgentChanged {
	return api.AgentChanged{Agent: agent, Name: agent, State: api.StateRunning, Seq: seq, At: seq}
}

// publish publishes changes as separate messages.
func (w *world) publish(all ...api.AgentChanged) {
	w.t.Helper()
	for _, m := range all {
		if err := w.bus.Publish(w.t.Context(), fmt.Sprintf("agent_state/%s/%d", m.Agent, m.Seq), m); err != nil {
			w.t.Fatal(err)
		}
	}
}

// journal publishes one journal entry with changes.
func (w *world) journal(id string, all ...api.AgentChanged) {
	w.t.Helper()
	entry, err := api.Encode(map[string]any{"changed": all, "release": true})
	if len(all) == 0 {
		entry = json.RawMessage(`{"release":true}`)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	m := api.Journal{Session: "s", Run: "r", Kind: api.EntryRelease, Form: api.JournalForm, Entry: entry}
	if err := w.bus.Publish(w.t.Context(), id, m); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) apply(ctx context.Context, tx *sqldb.Tx, all []api.AgentChanged) (func(context.Context), error) {
	w.mu.Lock()
	w.applied++
	w.mu.Unlock()
	for _, m := range all {
		if _, err := tx.ExecContext(ctx, `insert into changes (agent, seq, times) values ($1, $2, 1)
			on conflict (agent, seq) do update set times = changes.times + 1`, m.Agent, m.Seq); err != nil {
			return nil, err
		}
	}
	return func(context.Context) { w.told <- struct{}{} }, nil
}

func (w *world) reader() *cursor.Reader[api.AgentChanged] {
	return &cursor.Reader[api.AgentChanged]{DB: w.db, Bus: w.bus, Log: slog.New(slog.DiscardHandler), Name: "test", Apply: w.apply}
}

// run runs a reader until the test ends or stop is called.
func (w *world) run(r *cursor.Reader[api.AgentChanged]) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			w.t.Errorf("run: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(stop)
	return stop
}

// changes returns how often each change was applied.
func (w *world) changes() map[string]int {
	w.t.Helper()
	got := map[string]int{}
	_, err := sqldb.All(context.WithoutCancel(w.t.Context()), w.db, func(row sqldb.Scanner) (none struct{}, err error) {
		var agent string
		var seq, times int
		err = row.Scan(&agent, &seq, &times)
		got[fmt.Sprintf("%s/%d", agent, seq)] = times
		return none, err
	}, `select agent, seq, times from changes`)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// await waits until each of the changes was applied the given number of times, and no
// other change was applied.
func (w *world) await(times int, want ...string) {
	w.t.Helper()
	late := time.After(patience)
	for {
		got := w.changes()
		all := true
		for _, id := range want {
			all = all && got[id] >= times
		}
		if all {
			wanted := map[string]int{}
			for _, id := range want {
				wanted[id] = times
			}
			if d := cmp.Diff(wanted, got); d != "" {
				w.t.Fatalf("applied: -want +got\n%s", d)
			}
			return
		}
		select {
		case <-w.told:
		case <-late:
			w.t.Fatalf("applied %v, want %v", got, want)
		}
	}
}

func (w *world) cursor() (seq, at int64) {
	w.t.Helper()
	err := w.db.QueryRowContext(w.t.Context(), `select seq, at from cursors where name = 'test'`).Scan(&seq, &at)
	if err != nil && !errors.Is(err, sqldb.ErrNotFound) {
		w.t.Fatal(err)
	}
	return seq, at
}

func (w *world) place(seq, at int64) {
	w.t.Helper()
	_, err := w.db.ExecContext(w.t.Context(), `insert into cursors (name, seq, at) values ('test', $1, $2)
		on conflict (name) do update set seq = excluded.seq, at = excluded.at`, seq, at)
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestReads checks that a reader applies past and future changes, from separate
// messages and from journal entries, and that a restarted reader continues after the
// last one.
func TestReads(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.publish(change("ada", 1))
		w.journal("j1", change("ada", 2), change("ada", 3))
		w.journal("j2")
		stop := w.run(w.reader())
		w.await(1, "ada/1", "ada/2", "ada/3")
		w.publish(change("bob", 1))
		w.journal("j3", change("ada", 4))
		w.await(1, "ada/1", "ada/2", "ada/3", "ada/4", "bob/1")
		stop()
		if seq, at := w.cursor(); seq != 5 || at == 0 {
			t.Errorf("the cursor is at %d, of %d, want the fifth message", seq, at)
		}
		w.publish(change("bob", 2))
		w.run(w.reader())
		w.await(1, "ada/1", "ada/2", "ada/3", "ada/4", "bob/1", "bob/2")
	})
}

// TestFailure checks that a failed transaction stores neither changes nor a cursor, and
// that its events are then applied once.
func TestFailure(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.publish(change("ada", 1), change("ada", 2))
		failed := 0
		r := w.reader()
		r.Apply = func(ctx context.Context, tx *sqldb.Tx, all []api.AgentChanged) (func(context.Context), error) {
			committed, err := w.apply(ctx, tx, all)
			if failed < 2 {
				failed++
				err = errors.New("no more")
			}
			return committed, err
		}
		w.run(r)
		w.await(1, "ada/1", "ada/2")
		if failed != 2 {
			t.Errorf("failed %d times, want 2", failed)
		}
	})
}

// TestEndsBeforeCommit checks that a reader that repeatedly ends between Apply and the
// commit omits no change and applies none twice.
func TestEndsBeforeCommit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		const n = 40
		var want []string
		for i := range int64(n) {
			w.publish(change("ada", i+1))
			want = append(want, fmt.Sprintf("ada/%d", i+1))
		}
		for i := range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			r := w.reader()
			r.Urgent = func(api.AgentChanged) bool { return true }
			r.Apply = func(ctx context.Context, tx *sqldb.Tx, all []api.AgentChanged) (func(context.Context), error) {
				// The reader ends in its first transaction or in a later one.
				committed, err := w.apply(ctx, tx, all)
				if len(w.changesIn(ctx, tx)) > i*n/6 {
					cancel()
				}
				return committed, err
			}
			if err := r.Run(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		w.run(w.reader())
		w.await(1, want...)
	})
}

func (w *world) changesIn(ctx context.Context, tx *sqldb.Tx) []string {
	all, err := sqldb.All(ctx, tx, func(row sqldb.Scanner) (s string, err error) {
		err = row.Scan(&s)
		return s, err
	}, `select agent from changes`)
	if err != nil {
		w.t.Errorf("changes: %v", err)
	}
	return all
}

// TestStreamReplaced checks that a cursor is reset if the stream does not have its
// message.
func TestStreamReplaced(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ seq, later int64 }{
		"the stream ends before":         {seq: 9000},
		"it has another message there":   {seq: 2, later: 1},
		"it has no event there any more": {seq: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *world) {
				w.publish(change("ada", 1), change("ada", 2))
				if err := w.bus.Publish(t.Context(), "g", api.GoalCreated{Goal: "g", Agent: "ada"}); err != nil {
					t.Fatal(err)
				}
				w.publish(change("ada", 3))
				last, err := w.bus.Next(t.Context(), api.AgentChanged{Agent: "ada"}.Subject(), 2)
				if err != nil {
					t.Fatal(err)
				}
				w.place(c.seq, last.At.UnixMicro()+c.later)
				w.run(w.reader())
				w.await(1, "ada/1", "ada/2", "ada/3")
			})
		})
	}
}

// TestGoesOn checks that a reader continues from a cursor for which the message exists
// or was deleted by its age.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	for name, purged := range map[string]bool{"the message is there": false, "it is gone by its age": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *world) {
				w.publish(change("ada", 1), change("ada", 2))
				stop := w.run(w.reader())
				w.await(1, "ada/1", "ada/2")
				stop()
				if purged {
					w.purge()
				}
				w.publish(change("ada", 3))
				stop = w.run(w.reader())
				w.await(1, "ada/1", "ada/2", "ada/3")
				stop()
				if seq, _ := w.cursor(); seq != 3 {
					t.Errorf("the cursor is at %d, want 3", seq)
				}
			})
		})
	}
}

// purge deletes all messages of the stream, as the limit of their age does.
func (w *world) purge() {
	w.t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(w.server.InProcess()))
	if err != nil {
		w.t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		w.t.Fatal(err)
	}
	stream, err := js.Stream(w.t.Context(), api.AgentChanged{}.Subject().Stream())
	if err == nil {
		err = stream.Purge(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestReplicas checks that two replicas apply an event at most twice and share the
// cursor, which does not decrease.
func TestReplicas(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.run(w.reader())
		w.run(w.reader())
		for i := range int64(30) {
			w.publish(change("ada", i+1))
		}
		late := time.After(patience)
		for len(w.changes()) < 30 {
			select {
			case <-w.told:
			case <-late:
				t.Fatalf("applied %v", w.changes())
			}
		}
		for id, times := range w.changes() {
			if times > 2 {
				t.Errorf("%s was applied %d times by two", id, times)
			}
		}
		if seq, _ := w.cursor(); seq != 30 {
			t.Errorf("the cursor is at %d, want 30", seq)
		}
	})
}

// TestBehind checks that a replica that is behind another one does not decrease the
// cursor.
func TestBehind(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		w.publish(change("ada", 1))
		r := w.reader()
		r.Apply = func(ctx context.Context, tx *sqldb.Tx, all []api.AgentChanged) (func(context.Context), error) {
			committed, err := w.apply(ctx, tx, all)
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(ctx, `insert into cursors (name, seq, at) values ('test', 7, 7)`) // as if the other replica were first
			return committed, err
		}
		w.run(r)
		w.await(1, "ada/1")
		if seq, _ := w.cursor(); seq != 7 {
			t.Errorf("the cursor is at %d, want 7", seq)
		}
	})
}

// TestGathers checks that stored events are applied in few transactions, and that
// messages without events advance the cursor.
func TestGathers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		const n = 600
		var want []string
		for i := range int64(n) {
			w.publish(change("ada", i+1))
			want = append(want, fmt.Sprintf("ada/%d", i+1))
		}
		stop := w.run(w.reader())
		w.await(1, want...)
		stop()
		if w.applied > n/10 {
			t.Errorf("%d transactions for %d changes", w.applied, n)
		}
		for i := range 1024 {
			w.journal(fmt.Sprint("quiet", i))
		}
		w.run(w.reader())
		late := time.After(patience)
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for {
			if seq, _ := w.cursor(); seq == n+1024 {
				break
			}
			select {
			case <-again.C:
			case <-late:
				seq, _ := w.cursor()
				t.Fatalf("the cursor is at %d, want %d", seq, n+1024)
			}
		}
	})
}

// TestUndecodable checks that a message that cannot be decoded is skipped.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		if err := w.bus.PublishStored(t.Context(), "bad", api.AgentChanged{Agent: "ada"}.Subject().String(), []byte(`{"seq":"one"}`), ""); err != nil {
			t.Fatal(err)
		}
		w.publish(change("ada", 2))
		var log strings.Builder
		r := w.reader()
		r.Log = slog.New(slog.NewTextHandler(&log, nil))
		stop := w.run(r)
		w.await(1, "ada/2")
		stop()
		if n := strings.Count(log.String(), "message given up"); n != 1 {
			t.Errorf("%d messages given up, want one:\n%s", n, &log)
		}
	})
}

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/pkg/telemetry"
)

const patience = 30 * time.Second

// migrations returns those of a store that counts the changes of its agents.
func migrations() fs.FS {
	return outbox.WithMigrations(fstest.MapFS{
		"migrations/0001_create_agents.sql": {Data: []byte("create table agents (id text primary key, seq bigint not null)")},
	})
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// world is a bus with a NATS server that can be stopped and started.
type world struct {
	t      *testing.T
	opts   embednats.Options
	server *embednats.Server
	conn   *bus.Conn
	bus    *bus.Bus
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, opts: embednats.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"}}
	w.start()
	url := w.server.ClientURL()
	w.opts.Listen = strings.TrimPrefix(url, "nats://")
	nc, err := bus.Dial(bus.DialOptions{URL: url, Name: t.Name(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	w.conn, w.bus = nc, newBus(t, nc)
	if err := w.bus.Ensure(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return w
}

func newBus(t *testing.T, nc *bus.Conn) *bus.Bus {
	t.Helper()
	b, err := bus.New(nc, bus.Options{Service: "loop"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func (w *world) start() {
	w.t.Helper()
	s, err := embednats.Start(testContext(w.t), w.opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.server = s
	w.t.Cleanup(s.Shutdown)
}

func (w *world) stop() { w.server.Shutdown() }

// relay runs a relay until the test ends or stop is called.
func relay(t *testing.T, db *sqldb.DB, b *bus.Bus, log ...*slog.Logger) (r *outbox.Relay, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r = outbox.NewRelay(db, b, append(log, slog.New(slog.DiscardHandler))[0])
	var run sync.WaitGroup
	run.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop = func() { cancel(); run.Wait() }
	t.Cleanup(stop)
	return r, stop
}

// warnings is a log handler that sends the attributes of all records to the channel.
type warnings chan string

func (warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler     { return w }
func (w warnings) WithGroup(string) slog.Handler          { return w }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		w <- a.Value.String()
		return true
	})
	return nil
}

// change increases the sequence of an agent and announces it in the same transaction.
func change(ctx context.Context, t *testing.T, db *sqldb.DB, agent string) {
	t.Helper()
	err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		var seq int64
		err := tx.QueryRowContext(ctx, `insert into agents (id, seq) values ($1, 1)
			on conflict (id) do update set seq = agents.seq + 1 returning seq`, agent).Scan(&seq)
		if err != nil {
			return err
		}
		return outbox.Add(ctx, tx, fmt.Sprintf("%s/%d", agent, seq), api.AgentChanged{Agent: agent, Seq: seq, Reason: "tests <it>"})
	})
	if err != nil {
		t.Errorf("change %s: %v", agent, err)
	}
}

// follow returns the published changes of agents, in order.
func follow(t *testing.T, b *bus.Bus) <-chan api.AgentChanged {
	t.Helper()
	c := make(chan api.AgentChanged, 10_000)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		err := b.Follow(ctx, 0, func(s bus.Stored) error {
			var m api.AgentChanged
			if err := api.Decode(s.Data, &m); err != nil {
				return err
			}
			c <- m
			return nil
		}, api.AgentChanged{}.Subject().All())
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Follow: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	return c
}

func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

// rows returns the number of rows of a table.
func rows(t *testing.T, db *sqldb.DB, table string) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(testContext(t), "select count(*) from "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func waitRows(t *testing.T, db *sqldb.DB, want int) {
	t.Helper()
	ctx := testContext(t)
	for rows(t, db, "outbox") != want {
		select {
		case <-ctx.Done():
			t.Fatalf("%d rows in the outbox, want %d", rows(t, db, "outbox"), want)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestWhatIsCommittedIsPublished(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		w := newWorld(t)
		got := follow(t, w.bus)
		ctx := testContext(t)
		change(ctx, t, db, "before") // committed without a relay, as after a crash
		r, _ := relay(t, db, w.bus)
		if m := wait(t, got, "what was committed before the relay"); m.Agent != "before" {
			t.Errorf("got %+v", m)
		}
		change(ctx, t, db, "lucky")
		r.Wake()
		want := api.AgentChanged{Agent: "lucky", Seq: 1, Reason: "tests <it>"}
		if diff := cmp.Diff(want, wait(t, got, "the message")); diff != "" {
			t.Errorf("published (-want +got):\n%s", diff)
		}
		waitRows(t, db, 0)
		stored, err := w.bus.Last(ctx, want.Subject())
		if err != nil {
			t.Fatal(err)
		}
		if plain, err := api.Encode(want); err != nil || string(stored.Data) != string(plain) {
			t.Errorf("stored %s, want %s (%v)", stored.Data, plain, err)
		}
	})
}

// TestWhatIsPublishedIsDeletedAtTheEnd checks that a published row that waits for its
// deletion is published once, and deleted before Run returns.
func TestWhatIsPublishedIsDeletedAtTheEnd(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		w := newWorld(t)
		got := follow(t, w.bus)
		ctx := testContext(t)
		var tries atomic.Int64
		watch, err := nats.Connect(w.server.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Close()
		sub, err := watch.Subscribe(api.AgentChanged{}.Subject().All(), func(*nats.Msg) { tries.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		if err := watch.Flush(); err != nil {
			t.Fatal(err)
		}
		r, stop := relay(t, db, w.bus)
		const n = 100 // more rows than may wait for their deletion
		for i := range n {
			change(ctx, t, db, "lucky")
			r.Wake()
			if m := wait(t, got, "the message"); m.Seq != int64(i+1) {
				t.Fatalf("got %+v, want message %d", m, i+1)
			}
		}
		stop()
		// The acknowledgement of the last message may not have arrived before the stop.
		if left := rows(t, db, "outbox"); left > 1 {
			t.Errorf("%d rows are left, want one at most", left)
		}
		if err := sub.Drain(); err != nil {
			t.Fatal(err)
		}
		for sub.IsValid() {
			runtime.Gosched()
		}
		if got := tries.Load(); got != n {
			t.Errorf("published %d times, want %d", got, n)
		}
	})
}

// lines receives the lines of a log.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// TestOutageOfDeleting checks that an outage lasts while published rows cannot be
// deleted, as on a full disk, although no rows are left to publish.
func TestOutageOfDeleting(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), testContext(t)
	db, err := sqldb.Open(ctx, "sqlite:"+filepath.Join(t.TempDir(), "x.db"), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the test has ended
	if err := sqldb.Migrate(ctx, db, migrations()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "create trigger full before delete on outbox begin select raise(abort, 'no space left'); end"); err != nil {
		t.Fatal(err)
	}
	got, log := follow(t, w.bus), make(lines, 1000)
	change(ctx, t, db, "lucky")
	relay(t, db, w.bus, slog.New(slog.NewTextHandler(log, nil)))
	wait(t, got, "the message")
	for range 2 {
		if line := wait(t, log, "a line about the outage"); !strings.Contains(line, "outbox relay failed") {
			t.Fatalf("got %s while nothing can be deleted, want that the outbox waits", line)
		}
	}
	if _, err := db.ExecContext(ctx, "drop trigger full"); err != nil {
		t.Fatal(err)
	}
	for line := ""; !strings.Contains(line, "outbox relay resumed"); {
		line = wait(t, log, "the line about the end")
	}
	waitRows(t, db, 0)
}

func TestWhatIsRolledBackIsNot(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := testContext(t)
		errNo := errors.New("no")
		err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
			if err := outbox.Add(ctx, tx, "1", api.AgentChanged{Agent: "lucky"}); err != nil {
				return err
			}
			return errNo
		})
		if !errors.Is(err, errNo) {
			t.Fatal(err)
		}
		if n := rows(t, db, "outbox"); n != 0 {
			t.Errorf("got %d rows in the outbox, want none", n)
		}
	})
}

func TestAddTwiceIsOnce(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx := testContext(t)
		for range 2 {
			err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
				return errors.Join(
					outbox.Add(ctx, tx, "1", api.AgentChanged{Agent: "lucky"}),
					outbox.Add(ctx, tx, "1", api.AgentChanged{Agent: "lucky"}))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := rows(t, db, "outbox"); n != 1 {
			t.Errorf("%d rows, want 1", n)
		}
	})
}

func TestAddRefusesWhatCannotBePublished(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, migrations())
	ctx := testContext(t)
	for name, add := range map[string]func(tx *sqldb.Tx) error{
		"a request": func(tx *sqldb.Tx) error { return outbox.Add(ctx, tx, "1", api.GetAgent{}) },
		"a bad key": func(tx *sqldb.Tx) error { return outbox.Add(ctx, tx, "1", api.AgentChanged{Agent: "a.b"}) },
		"no id":     func(tx *sqldb.Tx) error { return outbox.Add(ctx, tx, "", api.AgentChanged{Agent: "a"}) },
	} {
		if err := sqldb.InTx(ctx, db, add); err == nil {
			t.Errorf("%s was added", name)
		}
	}
}

// TestDyingBeforeTheMark checks that messages are stored once in the stream if the
// relay stops after it has published them and before it has deleted them.
func TestDyingBeforeTheMark(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		w := newWorld(t)
		ctx := testContext(t)
		forbidDeletes(t, db)
		for range 3 {
			change(ctx, t, db, "lucky")
		}
		for range 3 {
			warned := make(warnings, 100)
			_, stop := relay(t, db, w.bus, slog.New(warned))
			if what := wait(t, warned, "the relay to notice"); !strings.Contains(what, "the power is off") {
				t.Errorf("the relay says %q", what)
			}
			stop()
			if n := rows(t, db, "outbox"); n != 3 {
				t.Fatalf("%d rows, want 3 that could not be deleted", n)
			}
		}
		allowDeletes(t, db)
		r, _ := relay(t, db, w.bus)
		waitRows(t, db, 0)
		change(ctx, t, db, "lucky")
		r.Wake()
		waitRows(t, db, 0)
		stream := follow(t, w.bus)
		for n := range int64(4) { // one of each, although they were published several times
			if m := wait(t, stream, "a message"); m.Seq != n+1 {
				t.Errorf("got %d, want %d", m.Seq, n+1)
			}
		}
	})
}

func forbidDeletes(t *testing.T, db *sqldb.DB) {
	t.Helper()
	statements := []string{`create trigger forbid before delete on outbox begin select raise(abort, 'the power is off'); end`}
	if db.Engine == sqldb.Postgres {
		statements = []string{
			`create function forbid() returns trigger language plpgsql as $$ begin raise exception 'the power is off'; end $$`,
			`create trigger forbid before delete on outbox for each row execute function forbid()`,
		}
	}
	for _, s := range statements {
		if _, err := db.ExecContext(testContext(t), s); err != nil {
			t.Fatal(err)
		}
	}
}

func allowDeletes(t *testing.T, db *sqldb.DB) {
	t.Helper()
	s := `drop trigger forbid`
	if db.Engine == sqldb.Postgres {
		s += ` on outbox`
	}
	if _, err := db.ExecContext(testContext(t), s); err != nil {
		t.Fatal(err)
	}
}

// TestOrderPerKeyOverAnOutage checks the order of the messages of each subject with
// concurrent writers, two relays and an outage of NATS.
func TestOrderPerKeyOverAnOutage(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		const agents, writers, each = 4, 3, 25
		w := newWorld(t)
		one, _ := relay(t, db, w.bus)
		two, _ := relay(t, db, w.bus)
		ctx := testContext(t)
		write := func() {
			var all sync.WaitGroup
			for a := range agents {
				for range writers {
					all.Go(func() {
						for n := range each {
							change(ctx, t, db, fmt.Sprint("agent-", a))
							if n%2 == 0 {
								one.Wake()
							} else {
								two.Wake()
							}
						}
					})
				}
			}
			all.Wait()
		}
		write()
		w.stop()
		write()
		if n := rows(t, db, "outbox"); n < agents*writers*each {
			t.Fatalf("%d rows, want at least the %d written without NATS", n, agents*writers*each)
		}
		w.start()
		waitRows(t, db, 0)

		next, got := map[string]int64{}, follow(t, w.bus)
		for range 2 * agents * writers * each {
			m := wait(t, got, "a message")
			next[m.Agent]++
			if m.Seq != next[m.Agent] {
				t.Fatalf("%s: got %d, want %d", m.Agent, m.Seq, next[m.Agent])
			}
		}
	})
}

// TestAFullQueueHoldsUpItsKeyOnly checks that a message that the stream refuses delays
// the messages of its own subject only.
func TestAFullQueueHoldsUpItsKeyOnly(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		w := newWorld(t)
		ctx := testContext(t)
		const full = api.QueueDepth + 1
		add := func(session string, n int) {
			t.Helper()
			err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
				id := fmt.Sprintf("%s/%d", session, n)
				return outbox.Add(ctx, tx, id, api.Run{Run: fmt.Sprint(n), Session: session})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for n := range full + 2 {
			add("full", n)
		}
		add("other", 0)
		relay(t, db, w.bus)
		waitRows(t, db, 2)
		if _, err := w.bus.Last(ctx, api.Run{Session: "other"}.Subject()); err != nil {
			t.Errorf("the other key: %v", err)
		}

		got := make(chan string, 100)
		serveCtx, stop := context.WithCancel(t.Context())
		var serving sync.WaitGroup
		serving.Go(func() {
			err := w.bus.Serve(serveCtx, patience, func() {}, bus.On(func(_ context.Context, r api.Run) error {
				if r.Session == "full" {
					got <- r.Run
				}
				return nil
			}))
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
		t.Cleanup(func() { stop(); serving.Wait() })
		for n := range full + 2 {
			if r := wait(t, got, "a run"); r != fmt.Sprint(n) {
				t.Errorf("got run %s, want %d", r, n)
			}
		}
		waitRows(t, db, 0)
	})
}

func TestATooLargeMessageHoldsUpItsKeyOnly(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, migrations())
	w := newWorld(t)
	ctx := testContext(t)
	err := sqldb.InTx(ctx, db, func(tx *sqldb.Tx) error {
		for i, m := range []api.Message{
			api.AgentChanged{Agent: "big", Reason: strings.Repeat("x", 9<<20)},
			api.AgentChanged{Agent: "big", Seq: 2},
			api.AgentChanged{Agent: "small"},
		} {
			if err := outbox.Add(ctx, tx, fmt.Sprint(i), m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := follow(t, w.bus)
	relay(t, db, w.bus)
	if m := wait(t, got, "the small message"); m.Agent != "small" {
		t.Errorf("got %s, want small", m.Agent)
	}
	waitRows(t, db, 2)
}

func TestTraceIsContinued(t *testing.T) {
	t.Parallel()
	db := sqldbtest.SQLite(t, migrations())
	w := newWorld(t)
	traceID, err := trace.TraceIDFromHex("0af7651916cd43dd8448eb211c80319c")
	if err != nil {
		t.Fatal(err)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: trace.SpanID{7}, TraceFlags: trace.FlagsSampled})
	ctx := testContext(t)
	change(trace.ContextWithSpanContext(ctx, span), t, db, "lucky")
	relay(t, db, w.bus)
	waitRows(t, db, 0)
	got, err := w.bus.Last(ctx, api.AgentChanged{Agent: "lucky"}.Subject())
	if err != nil {
		t.Fatal(err)
	}
	if got.Sender.TraceID() != traceID {
		t.Errorf("trace %v, want %v", got.Sender.TraceID(), traceID)
	}
}

// turns receives a description of each span that starts, with its agent, turn and
// parent.
type turns chan string

func (c turns) OnStart(ctx context.Context, s sdk.ReadWriteSpan) {
	agent, turn := telemetry.Turn(ctx)
	c <- fmt.Sprintf("%s of agent %q turn %q below %s", s.Name(), agent, turn, s.Parent().SpanID())
}
func (turns) OnEnd(sdk.ReadOnlySpan)           {}
func (turns) Shutdown(context.Context) error   { return nil }
func (turns) ForceFlush(context.Context) error { return nil }

// TestTurnIsContinued checks that the publish span of a message belongs to the turn
// that added the message, and that of the next message does not.
func TestTurnIsContinued(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		w := newWorld(t)
		started := make(turns, 100)
		b, err := bus.New(w.conn, bus.Options{Service: "loop", Tracer: sdk.NewTracerProvider(sdk.WithSpanProcessor(started))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		ctx := testContext(t)
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{7}, TraceFlags: trace.FlagsSampled})
		change(telemetry.WithTurn(trace.ContextWithSpanContext(ctx, span), "lucky", "run/3, \"x\""), t, db, "lucky")
		change(telemetry.WithTurn(ctx, "ace", ""), t, db, "ace")
		change(ctx, t, db, "joker")
		relay(t, db, b)
		for _, want := range []string{
			`agent "lucky" turn "run/3, \"x\"" below 0700000000000000`,
			`agent "ace" turn "" below 0000000000000000`,
			`agent "" turn "" below 0000000000000000`,
		} {
			if got := wait(t, started, "a span"); !strings.HasSuffix(got, " of "+want) {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		waitRows(t, db, 0)
	})
}

func TestStoresKeepTheirOwnMigrations(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, migrations(), func(t *testing.T, db *sqldb.DB) {
		// The same migrations are applied by every start of a service.
		if err := sqldb.Migrate(testContext(t), db, migrations()); err != nil {
			t.Error(err)
		}
		more := outbox.WithMigrations(fstest.MapFS{
			"migrations/0001_create_agents.sql": {Data: []byte("create table agents (id text primary key, seq bigint not null)")},
			"migrations/0002_add_names.sql":     {Data: []byte("alter table agents add name text")},
		})
		if err := sqldb.Migrate(testContext(t), db, more); err != nil {
			t.Error(err)
		}
	})
}

package host

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/sqldb"
)

// TestStreamLostWhileRunning checks that a stream that is removed while its service runs is
// reported by readiness, and that the next start detects the loss.
func TestStreamLostWhileRunning(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, err := embednats.Start(ctx, embednats.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	conn, err := bus.Dial(bus.DialOptions{InProcess: server.InProcess()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	b, err := bus.New(conn, bus.Options{Service: "social"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(ctx, "1", api.MessageReceived{Agent: "lucky"}); err != nil {
		t.Fatal(err)
	}
	db, err := sqldb.Open(ctx, "sqlite:"+filepath.Join(t.TempDir(), "social.db"), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := sqldb.Migrate(ctx, db, fstest.MapFS{"0001_make_t.sql": {Data: []byte("create table t (a text)")}}); err != nil {
		t.Fatal(err)
	}
	e := &Env{
		Bus: b, Log: slog.New(slog.DiscardHandler), Now: time.Now, service: Service{Name: "social"}, status: newStatus(nil),
		cfg: Config{Sync: SyncAlways, Installation: b.Installation()},
	}
	m, err := e.check(ctx, db)
	if err != nil {
		t.Fatal(err)
	}

	nc, err := nats.Connect("", nats.InProcessServer(server.InProcess()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(ctx, "SOCIAL_EVT"); err != nil {
		t.Fatal(err)
	}
	if err := m.write(ctx, 0); err == nil {
		t.Error("a mark is written without the stream")
	}
	if got, want := strings.Join(e.status.faults(), "; "), "the stream SOCIAL_EVT is missing or cut off"; !strings.Contains(got, want) {
		t.Errorf("readiness: got %q, want %q", got, want)
	}
	if err := b.Ensure(ctx); err != nil { // as the next start does
		t.Fatal(err)
	}
	if _, err := e.check(ctx, db); api.CodeOf(err) != api.Conflict || !strings.Contains(err.Error(), "SOCIAL_EVT is missing or empty") {
		t.Errorf("the next start: got %v, want a conflict that names the stream", err)
	}
}

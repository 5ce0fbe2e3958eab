package bus_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats/clustertest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	three.stop()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience is the timeout of every wait in these tests; none of them should come near it.
const patience = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func logger(t testing.TB) *slog.Logger {
	if _, bench := t.(*testing.B); bench {
		return slog.New(slog.DiscardHandler)
	}
	w := &output{w: t.Output()}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.w = io.Discard
	})
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// output is the log of a test, discarded after its end: connections log that they close.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.Write(p)
}

// startServer runs a NATS server in this process until the test ends.
func startServer(t testing.TB, change ...func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{
		ServerName: "alone", DontListen: true, Host: "127.0.0.1", Port: -1,
		JetStream: true, StoreDir: t.TempDir(), DisableJetStreamBanner: true, NoLog: true, NoSigs: true,
	}
	for _, f := range change {
		f(o)
	}
	return run(t, o)
}

func listen(o *server.Options) { o.DontListen = false }

func run(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not become ready")
	}
	return s
}

// three is the cluster that the tests of replicated streams share, because the election
// of its leaders takes seconds. Each test uses its own keys.
var three cluster

// cluster is three servers that replicate to each other, started on first use.
type cluster struct {
	mu      sync.Mutex
	dir     string
	servers []*server.Server
}

func (c *cluster) stop() {
	clustertest.Stop(c.servers)
	_ = os.RemoveAll(c.dir) // a temporary folder
}

func (c *cluster) start(t testing.TB) []*server.Server {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.servers) > 0 {
		return c.servers
	}
	dir, err := os.MkdirTemp("", "bus") // used beyond this test
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	if c.servers, err = clustertest.Start(dir, false); err != nil {
		t.Fatal(err)
	}
	return c.servers
}

func connect(t testing.TB, s *server.Server) *bus.Conn {
	t.Helper()
	nc, err := bus.Dial(bus.DialOptions{InProcess: s, Name: t.Name(), Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newBus(t testing.TB, nc *bus.Conn, o bus.Options) *bus.Bus {
	t.Helper()
	if o.Service == "" {
		o.Service = "loop"
	}
	if o.Log == nil {
		o.Log = logger(t)
	}
	b, err := bus.New(nc, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return b
}

// one returns a bus on its own server.
func one(t testing.TB) (*bus.Bus, *server.Server) {
	t.Helper()
	s := startServer(t)
	return newBus(t, connect(t, s), bus.Options{}), s
}

// everywhere runs a test on one server and on three, because replicated streams behave
// differently in edge cases.
func everywhere(t *testing.T, f func(t *testing.T, b *bus.Bus, other *bus.Bus)) {
	t.Run("R1", func(t *testing.T) {
		t.Parallel()
		b, s := one(t)
		f(t, b, newBus(t, connect(t, s), bus.Options{}))
	})
	t.Run("R3", func(t *testing.T) {
		t.Parallel()
		c := three.start(t)
		b := newBus(t, connect(t, c[0]), bus.Options{Replicas: 3})
		f(t, b, newBus(t, connect(t, c[1]), bus.Options{Replicas: 3}))
	})
}

// serving is a Serve in progress.
type serving struct {
	t      testing.TB
	cancel context.CancelFunc
	done   chan error
}

// serve runs the routes until the test ends or stop is called. When it returns, they are
// served.
func serve(t testing.TB, b *bus.Bus, drain time.Duration, routes ...bus.Route) *serving {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &serving{t: t, cancel: cancel, done: make(chan error, 1)}
	ready := make(chan struct{})
	go func() { s.done <- b.Serve(ctx, drain, func() { close(ready) }, routes...) }()
	t.Cleanup(func() {
		cancel()
		_ = wait(t, s.done, "the end of Serve") // a test that expects an error calls stop
	})
	select {
	case <-ready:
	case err := <-s.done:
		s.done <- err
		t.Fatalf("Serve ended before it was ready: %v", err)
	case <-time.After(patience):
		t.Fatal("Serve does not become ready")
	}
	return s
}

// stop ends Serve and returns its error.
func (s *serving) stop() error {
	s.t.Helper()
	s.cancel()
	return s.wait()
}

func (s *serving) wait() error {
	s.t.Helper()
	err := wait(s.t, s.done, "the end of Serve")
	s.done <- err // for the cleanup
	return err
}

// wait receives from c.
func wait[T any](t testing.TB, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

// quiet fails if c delivers a value within d.
func quiet[T any](t testing.TB, c <-chan T, d time.Duration, what string) {
	t.Helper()
	select {
	case v := <-c:
		t.Fatalf("%s: %+v", what, v)
	case <-time.After(d):
	}
}

func wantCode(t testing.TB, err error, code api.Code, reason string) {
	t.Helper()
	if api.CodeOf(err) != code || api.ReasonOf(err) != reason {
		t.Fatalf("error %v: code %q reason %q, want code %q reason %q", err, api.CodeOf(err), api.ReasonOf(err), code, reason)
	}
}

// raw returns JetStream without the bus, for checks of stored data.
func raw(t testing.TB, s *server.Server) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(connect(t, s).NATS())
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func messages(t testing.TB, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	st, err := js.Stream(testContext(t), stream)
	if err != nil {
		t.Fatal(err)
	}
	return st.CachedInfo().State.Msgs
}

// fresh returns a key that no other run of a test has used: the cluster is shared.
func fresh(name string) string { return name + "-" + rand.Text() }

func changed(agent string, seq int64) api.AgentChanged {
	return api.AgentChanged{Agent: agent, Name: agent, State: api.StateRunning, Seq: seq}
}

// Package apptest runs services on real servers in a test: an embedded JetStream server,
// the databases of the services, and a bus for the test. It is for tests only and
// contains no fakes.
package apptest

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/embednats/clustertest"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry"
)

// patience is how long a test waits for an expected event.
const patience = 30 * time.Second

// World is a running set of services.
type World struct {
	Bus   *bus.Bus // of the test itself
	Conn  *bus.Conn
	NATS  nats.InProcessConnProvider
	HTTP  string // "http://host:port" of the services' HTTP API
	Ops   string // "http://host:port" of their ops port
	Token string // the operator's token
	Data  string // the services' data folder
	stop  func()
}

// Stop drains and stops the services as a signal does, and waits until they have ended. A
// repeated call does nothing.
func (w *World) Stop() { w.stop() }

// Options holds the settings of a world. The zero value starts a new one.
type Options struct {
	Data   string            // "" means a new folder
	Env    map[string]string // settings by variable
	Server *embednats.Server // nil: a new one with its own store
	// SyncAlways syncs every write to the disk before it is acknowledged, including those
	// of a new server.
	SyncAlways bool
	// Replicated replicates every stream over three new servers.
	Replicated bool
}

// Server starts a JetStream server for the test.
func Server(t testing.TB) *embednats.Server {
	t.Helper()
	return start(t, false)
}

func start(t testing.TB, syncAlways bool) *embednats.Server {
	t.Helper()
	s, err := embednats.Start(t.Context(), embednats.Options{Dir: t.TempDir(), SyncAlways: syncAlways, Log: Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

// cluster starts three servers and returns the first of them.
func cluster(t testing.TB, syncAlways bool) nats.InProcessConnProvider {
	t.Helper()
	all, err := clustertest.Start(t.TempDir(), syncAlways)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { clustertest.Stop(all) })
	return all[0]
}

// Log returns a logger that writes to the test's output until the test ends. A request
// without the permission to send it fails the test, even if the service ignores the
// error: in a cluster such a request waits for its timeout.
func Log(t testing.TB) *slog.Logger {
	o := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.MessageKey && a.Value.String() == bus.NotPermitted {
			t.Errorf("%s", bus.NotPermitted)
		}
		return a
	}}
	if _, ok := t.(*testing.B); ok {
		o.Level = slog.LevelError // log lines would be part of the measurement
	}
	return slog.New(slog.NewTextHandler(Output(t), o))
}

// Output is the test's output, until the test ends.
// The writer discards later output.
func Output(t testing.TB) io.Writer {
	w := &output{w: t.Output()}
	t.Cleanup(w.close)
	return w
}

// output discards lines that are written after the end of the test, which the testing
// package reports as an error.
type output struct {
	mu sync.Mutex
	w  io.Writer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w == nil {
		return len(p), nil
	}
	return o.w.Write(p)
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.w = nil
}

// Bus returns a bus on a new server with the given services, which run until the test
// ends. They are ready when it returns.
func Bus(t testing.TB, services ...host.Service) *bus.Bus {
	t.Helper()
	return Start(t, Options{}, services...).Bus
}

// Start runs services in this process until the test ends.
func Start(t testing.TB, o Options, services ...host.Service) *World {
	t.Helper()
	var provider nats.InProcessConnProvider
	replicas := 1
	switch {
	case o.Replicated:
		provider, replicas = cluster(t, o.SyncAlways), 3
	case o.Server != nil:
		provider = o.Server.InProcess()
	default:
		provider = start(t, o.SyncAlways).InProcess()
	}
	if o.Data == "" {
		o.Data = t.TempDir()
	}
	log := Log(t)
	nc := dial(t, provider)
	w := &World{Conn: nc, NATS: provider, Token: "apptest-token", Data: o.Data, stop: func() {}}
	b, err := bus.New(nc, bus.Options{Service: "apptest", Log: log, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Bus = b
	if len(services) == 0 {
		return w
	}
	lookup := func(k string) (string, bool) { v, ok := o.Env[k]; return v, ok }
	exp, err := telemetry.Open(t.Context(), telemetry.Options{Version: host.Version(), Lookup: lookup, Log: log, Spool: filepath.Join(o.Data, "spans")})
	if err != nil {
		t.Fatal(err)
	}
	cfg := host.Defaults()
	cfg.Data, cfg.HTTPAddr, cfg.OpsAddr, cfg.Token, cfg.Sync = o.Data, "127.0.0.1:0", "127.0.0.1:0", "apptest-token", host.SyncInterval
	cfg.Replicas = replicas
	if o.SyncAlways {
		cfg.Sync = host.SyncAlways
	}
	if err := config.Load("", &cfg, lookup); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan host.Addrs, 1), make(chan error, 1)
	own := dial(t, provider)
	go func() {
		done <- host.Run(ctx, host.Process{
			Config: cfg, Conn: own, Log: log, Lookup: lookup, Exporters: exp, Ready: func(a host.Addrs) { ready <- a },
		}, services...)
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("services: %v", err)
		}
		end, over := context.WithTimeout(context.Background(), 5*time.Second)
		defer over()
		if err := exp.Shutdown(end); err != nil {
			t.Errorf("telemetry: %v", err)
		}
		own.Close()
	})
	t.Cleanup(w.stop)
	select {
	case a := <-ready:
		w.HTTP, w.Ops = "http://"+a.HTTP, "http://"+a.Ops
	case err := <-done:
		done <- nil
		t.Fatalf("services did not start: %v", err)
	case <-time.After(patience):
		t.Fatal("services not ready")
	}
	return w
}

// Dial returns a connection to a server, which is closed when the test ends.
func Dial(t testing.TB, s *embednats.Server) *bus.Conn {
	t.Helper()
	return dial(t, s.InProcess())
}

func dial(t testing.TB, p nats.InProcessConnProvider) *bus.Conn {
	t.Helper()
	nc, err := bus.Dial(bus.DialOptions{InProcess: p, Name: t.Name(), Log: Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Watch returns a channel of all messages M, from the first stored one on, until the test
// ends. It includes the events in the journals of runs.
func Watch[M api.Message](t testing.TB, b *bus.Bus) <-chan M {
	t.Helper()
	var zero M
	c := make(chan M, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := b.Events(ctx, 0, func(s bus.Stored) error {
			var m M
			if err := api.Decode(s.Data, &m); err != nil {
				return err
			}
			select {
			case c <- m:
			case <-ctx.Done(): // the test does not read all messages
			}
			return nil
		}, zero.Subject())
		if ctx.Err() == nil {
			t.Errorf("watch %s: %v", zero.Subject().All(), err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// Next returns the next message of c for which fits returns true, or fails the test.
func Next[M any](t testing.TB, c <-chan M, fits func(M) bool) M {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case m := <-c:
			if fits == nil || fits(m) {
				return m
			}
		case <-late:
			t.Fatalf("no %T that fits came", *new(M))
		}
	}
}

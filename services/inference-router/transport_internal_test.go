package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/telemetry"
)

// TestDeadConnection checks that an HTTP/2 connection whose server has become silent is closed
// during a request, so that the next request has another one.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	wire := forward(t, server.Listener.Addr().String())
	base := transport(1, 100*time.Millisecond).(connecting).base.(*http.Transport)     //nolint:forcetypeassert // made so above
	base.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // as documented
	defer base.CloseIdleConnections()
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+wire.addr, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := base.RoundTrip(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }() // it is only read
		if proto, err := io.ReadAll(res.Body); err != nil || string(proto) != "HTTP/2.0" {
			t.Errorf("got %s, %v; want HTTP/2.0", proto, err)
		}
		return nil
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	wire.cut()
	if err := ask(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("on a dead connection: got %v, want an error before the deadline", err)
	}
	if err := ask(); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// TestIdleConnections checks that the client of the providers closes its idle connections when
// it is asked to, as at the end of the service.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	server, closed := httptest.NewUnstartedServer(http.NotFoundHandler()), make(chan struct{}, 1)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := &http.Client{Transport: telemetry.NewTransport(transport(1, maxSilence))}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, res.Body) // to its end: the connection is idle then
	if err := errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	client.CloseIdleConnections()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("the idle connection is open")
	}
}

// forwarder forwards connections to a server. Those before a cut stay open and transport
// nothing any more.
type forwarder struct {
	addr string
	dead atomic.Pointer[atomic.Bool] // of the connections until the next cut
}

func (f *forwarder) cut() { f.dead.Swap(new(atomic.Bool)).Store(true) }

func forward(t *testing.T, to string) *forwarder {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{addr: ln.Addr().String()}
	f.dead.Store(new(atomic.Bool))
	var all sync.WaitGroup
	t.Cleanup(all.Wait)
	t.Cleanup(func() { _ = ln.Close() }) // its end is the end of the loop
	all.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = in.Close()
				return
			}
			dead := f.dead.Load()
			for _, p := range [][2]net.Conn{{in, out}, {out, in}} {
				all.Go(func() {
					defer func() { _ = p[0].Close(); _ = p[1].Close() }()
					_, _ = io.Copy(p[1], alive{p[0], dead}) // until one end closes
				})
			}
		}
	})
	return f
}

// alive reads nothing from a connection once it is dead, until the connection closes.
type alive struct {
	net.Conn

	dead *atomic.Bool
}

func (a alive) Read(p []byte) (int, error) {
	for {
		n, err := a.Conn.Read(p)
		if err != nil || !a.dead.Load() {
			return n, err
		}
	}
}

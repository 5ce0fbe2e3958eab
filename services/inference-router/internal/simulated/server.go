package simulated

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Server serves a handler on its own port.
type Server struct {
	http   *http.Server
	url    string
	cancel context.CancelFunc
	done   chan error // receives the result of Serve
}

// Listen serves on an address; port 0 selects a free one. Use a loopback address only,
// because the server requires no key. ctx bounds the resolution of the address, not the
// server.
func Listen(ctx context.Context, addr string, h http.Handler) (*Server, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the simulated model: %w", err)
	}
	return Start(ctx, ln, h), nil
}

// Start serves on the listener and takes ownership of it. The contexts of requests have
// the values of ctx but not its cancellation; [Server.Close] cancels them.
func Start(ctx context.Context, ln net.Listener, h http.Handler) *Server {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{
		http: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: 10 * time.Second,
			BaseContext:       func(net.Listener) context.Context { return base },
			ErrorLog:          log.New(io.Discard, "", 0), // clients that break off are part of the tests
		},
		url:    "http://" + ln.Addr().String() + "/v1",
		cancel: cancel,
		done:   make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(ln) }()
	return s
}

// URL returns the base URL for an OpenAI client, with the version.
func (s *Server) URL() string { return s.url }

// shutdownWait bounds Close. Handlers return when their context is canceled.
const shutdownWait = 5 * time.Second

// Close cancels the running answers, stops serving and waits for both. It must be called
// once.
func (s *Server) Close() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownWait)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

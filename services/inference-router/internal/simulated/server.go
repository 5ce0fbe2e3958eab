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

// Server is a handler on a port of its own.
type Server struct {
	http   *http.Server
	url    string
	cancel context.CancelFunc
	done   chan error // what Serve returned
}

// Listen serves on an address; port 0 takes a free one. Only loopback is right
// for it: it asks for no key. ctx bounds finding the address, not the server.
func Listen(ctx context.Context, addr string, h http.Handler) (*Server, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the simulated model: %w", err)
	}
	return Start(ctx, ln, h), nil
}

// Start serves on the listener and takes it over. Requests see ctx's values but
// not its end; [Server.Close] ends them.
func Start(ctx context.Context, ln net.Listener, h http.Handler) *Server {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{
		http: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: 10 * time.Second,
			BaseContext:       func(net.Listener) context.Context { return base },
			ErrorLog:          log.New(io.Discard, "", 0), // broken clients are the test's wish
		},
		url:    "http://" + ln.Addr().String() + "/v1",
		cancel: cancel,
		done:   make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(ln) }()
	return s
}

// URL is the base URL for an OpenAI client, with the version.
func (s *Server) URL() string { return s.url }

// shutdownWait bounds Close; handlers end at once when their context does.
const shutdownWait = 5 * time.Second

// Close ends running answers, stops serving and waits for both. It is called
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

package devchain

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxBody is the largest request, in bytes.
const maxBody = 1 << 20

// ServeHTTP answers JSON-RPC. A request that reads or changes the state sees a block that
// is not older than the interval, and a transaction is in a block when its request has
// been answered.
func (c *Chain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	sends := bytes.Contains(body, []byte(`"eth_sendRawTransaction"`))
	if sends || bytes.Contains(body, []byte(`"eth_call"`)) || bytes.Contains(body, []byte(`"eth_estimateGas"`)) {
		c.mine(true)
	}
	if !sends {
		c.rpc.ServeHTTP(w, r)
		return
	}
	answer := &buffered{ResponseWriter: w}
	c.rpc.ServeHTTP(answer, r)
	c.mine(false)
	answer.flush()
}

// buffered keeps the answer to a transaction until its block is made.
type buffered struct {
	http.ResponseWriter

	status int
	body   bytes.Buffer
}

// WriteHeader keeps the status.
func (b *buffered) WriteHeader(status int) { b.status = status }

// Write keeps a part of the body.
func (b *buffered) Write(p []byte) (int, error) { return b.body.Write(p) }

func (b *buffered) flush() {
	if b.status != 0 {
		b.ResponseWriter.WriteHeader(b.status)
	}
	_, _ = b.ResponseWriter.Write(b.body.Bytes()) // the client may have gone
}

// Server is a dev chain that starts with its first request, because a node needs time and
// memory that most runs do not use.
type Server struct {
	opts     Options
	listener net.Listener

	mu     sync.Mutex
	chain  *Chain
	closed bool
}

// Listen opens the port of a dev chain on loopback; port 0 chooses one. The chain does not
// run yet.
func Listen(ctx context.Context, port string, o Options) (*Server, error) {
	o.defaults()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return nil, err
	}
	return &Server{opts: o, listener: l}, nil
}

// URL returns the address of the JSON-RPC.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Running reports whether the chain has been started.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chain != nil
}

// Chain returns the chain, and starts it if it does not run.
func (s *Server) Chain() (*Chain, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the dev chain is stopping")
	}
	if s.chain != nil {
		return s.chain, nil
	}
	began := time.Now()
	c, err := Start(s.opts)
	if err != nil {
		s.opts.Log.Error("dev chain not started", "err", err)
		return nil, err
	}
	s.opts.Log.Info("dev chain started", "took", time.Since(began).Round(time.Millisecond))
	s.chain = c
	return c, nil
}

// Serve answers requests until ctx ends, and closes the chain.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: http.HandlerFunc(s.answer), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
	}
	var stopping sync.WaitGroup
	ended, end := context.WithCancel(ctx)
	stopping.Go(func() {
		<-ended.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(drain) // requests that are left fail when the chain is closed
	})
	err := server.Serve(s.listener)
	end()
	stopping.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.chain != nil {
		if e := s.chain.Close(); e != nil {
			s.opts.Log.Warn("dev chain not closed cleanly", "err", e)
		}
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// answer refuses requests of web pages: the faucet needs no password.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(host); r.Header.Get("Origin") != "" || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		http.Error(w, "the dev chain answers programs on this machine only", http.StatusForbidden)
		return
	}
	c, err := s.Chain()
	if err != nil {
		http.Error(w, "the dev chain does not start; see the log", http.StatusServiceUnavailable)
		return
	}
	c.ServeHTTP(w, r)
}

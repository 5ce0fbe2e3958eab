// Package embednats runs a NATS server with JetStream inside this process. It is the only
// package that imports the server. It must not contain subjects, streams or messages of
// the services.
package embednats

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/disk"
)

const (
	maxPayload = 8 << 20   // bytes; a transcript page with tool output fits
	maxMemory  = 256 << 20 // bytes for streams in memory; the services use file streams

	// writeDeadline bounds how long a client may not read before the server drops its
	// connection. The in-process pipe has no buffer, so a write waits for the client, also
	// while the machine does not run this process. A refused login over the pipe takes this
	// long, because the client does not read the server's response.
	writeDeadline = 10 * time.Second

	startTimeout = time.Minute // if ctx has no earlier deadline; loading a million messages takes seconds
)

// Options holds the settings of a server.
type Options struct {
	// Dir is the folder of the streams. It is created if it is missing. Only one running
	// server may use it.
	Dir string
	// Listen is the address for other processes, such as "127.0.0.1:4222"; port 0 picks a
	// free one, no host means 127.0.0.1. Empty: no port is opened. An address that other
	// machines can reach requires a Token.
	Listen string
	// Token is required of every client, including those in this process. Empty: none.
	Token string
	// SyncAlways makes the server sync each message to the disk before it acknowledges
	// it. Otherwise it syncs every 2 minutes, and a power failure may lose the messages of
	// this time; a crash of the process loses none.
	SyncAlways bool
	// Log receives the server's log lines at their levels; nil: they are discarded.
	Log *slog.Logger
}

// Server is a running server. It is safe for concurrent use.
type Server struct {
	o    Options
	opts *server.Options
	stop func()

	mu     sync.RWMutex
	ns     *server.Server
	failed string        // the error of a failed write; "" while the server stores messages
	broken chan struct{} // receives a value when failed is set
}

// Start starts a server and returns when it accepts connections. ctx bounds the start
// only; the server runs until Shutdown.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	opts := &server.Options{
		ServerName: "anima", NoSigs: true, DontListen: o.Listen == "",
		JetStream: true, StoreDir: o.Dir, JetStreamMaxMemory: maxMemory, DisableJetStreamBanner: true,
		SyncAlways: o.SyncAlways, MaxPayload: maxPayload, WriteDeadline: writeDeadline,
	}
	if o.Token != "" {
		opts.CustomClientAuthentication = token(o.Token)
	}
	if o.Listen != "" {
		var err error
		if opts.Host, opts.Port, err = address(ctx, o.Listen, o.Token != ""); err != nil {
			return nil, err
		}
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	// The reserve of the disk limits what is stored (see package disk). The default limit
	// of the server would be derived from the free space at its start.
	if space, err := disk.Of(o.Dir); err == nil {
		opts.JetStreamMaxStore = space.Total
	}
	s := &Server{o: o, opts: opts, broken: make(chan struct{}, 1)}
	watching, end := context.WithCancel(context.WithoutCancel(ctx))
	var watcher sync.WaitGroup
	s.stop = sync.OnceFunc(func() {
		end()
		watcher.Wait()
		if ns := s.Running(); ns != nil {
			ns.Shutdown()
			ns.WaitForShutdown()
		}
		if err := unlock(lock); err != nil {
			o.Log.Error("nats server: lock not released", "err", err)
		}
	})
	if err := s.boot(ctx); err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("nats server in %s: %w", o.Dir, err)
	}
	watcher.Go(func() { s.recover(watching) })
	return s, nil
}

// boot creates a server with the options and starts it.
func (s *Server) boot(ctx context.Context) error {
	ns, err := server.NewServer(s.opts.Clone())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ns, s.failed = ns, ""
	s.mu.Unlock()
	log := &logger{log: s.o.Log, fatal: make(chan string, 1), failed: s.fail}
	debug := s.o.Log.Enabled(ctx, slog.LevelDebug)
	ns.SetLoggerV2(log, debug, false, false) // no trace, because it would log payloads
	return start(ctx, ns, log.fatal)
}

// start waits until the server has loaded its streams and accepts connections. The server
// reports a fatal error only through its log, from which fatal receives it.
func start(ctx context.Context, ns *server.Server, fatal <-chan string) error {
	started := make(chan struct{})
	go func() {
		defer close(started)
		ns.Start()
	}()
	var ended error
	select {
	case <-started:
	case <-ctx.Done():
		ended = fmt.Errorf("not ready: %w", ctx.Err())
		<-started // Shutdown during Start is a data race in the server
		ns.Shutdown()
	}
	select {
	case text := <-fatal:
		return errors.New(text)
	default:
	}
	if ended == nil && !ns.ReadyForConnections(time.Second) {
		ended = errors.New("not ready; see its log")
	}
	return ended
}

// InProcess returns the option value of nats.InProcessServer, which connects clients in
// this process without a port.
func (s *Server) InProcess() nats.InProcessConnProvider { return s }

// Running returns the current server, which a failed write replaces. Outside of the
// package it is for tests that change the behaviour of the server.
func (s *Server) Running() *server.Server {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ns
}

// InProcessConn implements [nats.InProcessConnProvider].
func (s *Server) InProcessConn() (net.Conn, error) { return s.Running().InProcessConn() }

// ClientURL returns the URL for other processes on this machine; "" without a port.
func (s *Server) ClientURL() string {
	addr, ok := s.Running().Addr().(*net.TCPAddr)
	if s.o.Listen == "" || !ok {
		return ""
	}
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "nats://" + net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// Healthz returns an error if the server does not accept connections, lacks streams or
// consumers, or has failed to store a message.
func (s *Server) Healthz() error {
	s.mu.RLock()
	ns, failed := s.ns, s.failed
	s.mu.RUnlock()
	if failed != "" {
		return fmt.Errorf("nats server: writes fail: %s", failed)
	}
	var h *server.HealthStatus
	for range healthTries {
		if h = ns.Healthz(nil); h.Error == "" {
			return nil
		}
	}
	return fmt.Errorf("nats server: %s", h.Error)
}

// healthTries is how often Healthz asks a server that reports an error. The server gives
// itself 1 ms to look at its listeners; on a busy machine that can pass before it has
// looked at any, and then it reports that it accepts no connections.
const healthTries = 3

// Shutdown stops the server and returns when its files are closed. Clients must drain
// before it to avoid the loss of messages in flight. It may be called repeatedly.
func (s *Server) Shutdown() { s.stop() }

// token authenticates clients by the token. The server's built-in check would log a
// warning about a password in a configuration file, which does not exist.
type token string

func (t token) Check(c server.ClientAuthentication) bool {
	return subtle.ConstantTimeCompare([]byte(t), []byte(c.GetOpts().Token)) == 1
}

// address checks listen, and returns an error if the server cannot listen there.
func address(ctx context.Context, listen string, secret bool) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("nats address %q: %w; use host:port, as in 127.0.0.1:4222", listen, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, p))
	if err != nil {
		return "", 0, fmt.Errorf("nats address %s: %w; stop what uses it or choose another port (0 picks a free one)", listen, err)
	}
	bound, err := netip.ParseAddrPort(l.Addr().String())
	if err = errors.Join(err, l.Close()); err != nil { // the server opens it again
		return "", 0, fmt.Errorf("nats address %s: %w", listen, err)
	}
	if !bound.Addr().Unmap().IsLoopback() && !secret {
		return "", 0, fmt.Errorf("nats address %s is open to other machines: set a token or listen on 127.0.0.1", listen)
	}
	if port = int(bound.Port()); p == "0" {
		port = server.RANDOM_PORT // another process may have taken the checked port meanwhile
	}
	return host, port, nil
}

// Package embednats runs a NATS server with JetStream inside this process. It is
// the only package that links the server; what is said over NATS is no matter of
// its own.
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
	maxMemory  = 256 << 20 // bytes for streams in memory; ours are files

	// A refused login over the in-process pipe waits this long: nobody reads the
	// server's answer. It also bounds how long a client may not read.
	writeDeadline = 2 * time.Second

	startTimeout = time.Minute // where ctx has no deadline; reading back a million messages takes seconds
)

// Options of a server.
type Options struct {
	// Dir keeps the streams. It is made if it is missing and belongs to one running
	// server.
	Dir string
	// Listen is the address for other processes, "127.0.0.1:4222"; port 0 picks a
	// free one, no host means 127.0.0.1. Empty: no port is opened. An address that
	// other machines reach needs a Token.
	Listen string
	// Token is asked of every client, those in this process included. Empty: none.
	Token string
	// SyncAlways puts each message on the disk before it is acknowledged.
	SyncAlways bool
	// SyncInterval is how often the disk is synced otherwise, and so what a power
	// cut may take; a crash of this process takes nothing. 0: the server's 2 minutes.
	SyncInterval time.Duration
	// Log takes the server's lines at their levels; nil: none.
	Log *slog.Logger
	// Name of the server in the lists of clients. Empty: "anima".
	Name string
}

// Server is a running server. It is safe for concurrent use.
type Server struct {
	o      Options
	opts   *server.Options
	listen bool
	stop   func()

	mu     sync.RWMutex
	ns     *server.Server
	failed string        // why it stores nothing any more; "" while it does
	broken chan struct{} // receives when failed is set
}

// Start runs a server and returns when it takes connections. ctx bounds the start
// only; the server runs until Shutdown.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Name == "" {
		o.Name = "anima"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	opts := &server.Options{
		ServerName: o.Name, NoSigs: true, DontListen: o.Listen == "",
		JetStream: true, StoreDir: o.Dir, JetStreamMaxMemory: maxMemory, DisableJetStreamBanner: true,
		SyncAlways: o.SyncAlways, SyncInterval: o.SyncInterval,
		MaxPayload: maxPayload, WriteDeadline: writeDeadline,
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
	// The reserve of the disk bounds what is stored (see package disk); the server's
	// own bound would be what was free when it started.
	if space, err := disk.Of(o.Dir); err == nil {
		opts.JetStreamMaxStore = space.Total
	}
	s := &Server{o: o, opts: opts, listen: o.Listen != "", broken: make(chan struct{}, 1)}
	watching, end := context.WithCancel(context.WithoutCancel(ctx))
	var watcher sync.WaitGroup
	s.stop = sync.OnceFunc(func() {
		end()
		watcher.Wait()
		if ns := s.server(); ns != nil {
			ns.Shutdown()
			ns.WaitForShutdown()
		}
		if err := lock.Close(); err != nil {
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

func (s *Server) server() *server.Server {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ns
}

// boot makes a server of the options and starts it.
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
	ns.SetLoggerV2(log, debug, false, false) // no trace: it would show payloads
	return start(ctx, ns, log.fatal)
}

// start waits until the server has read its streams and listens. The server tells
// its log what stops it, and nobody else.
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
		<-started // a server must not be shut down while it starts: it races with itself
		ns.Shutdown()
	}
	select {
	case text := <-fatal:
		return errors.New(text)
	default:
	}
	if ended == nil && !ns.ReadyForConnections(time.Second) {
		ended = errors.New("not ready; its log says why")
	}
	return ended
}

// InProcess connects clients of this process without a port; give it to
// nats.InProcessServer.
func (s *Server) InProcess() nats.InProcessConnProvider { return s }

// Running is the server that runs now, for tests that change what it does.
func (s *Server) Running() *server.Server { return s.server() }

// InProcessConn implements [nats.InProcessConnProvider].
func (s *Server) InProcessConn() (net.Conn, error) { return s.server().InProcessConn() }

// ClientURL is where other processes on this machine connect; "" without a port.
func (s *Server) ClientURL() string {
	addr, ok := s.server().Addr().(*net.TCPAddr)
	if !s.listen || !ok {
		return ""
	}
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "nats://" + net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// Healthz reports whether the server takes connections, has all its streams and
// consumers, and stores what it is given.
func (s *Server) Healthz() error {
	s.mu.RLock()
	ns, failed := s.ns, s.failed
	s.mu.RUnlock()
	if failed != "" {
		return fmt.Errorf("nats server: nothing is stored: %s", failed)
	}
	h := ns.Healthz(nil)
	if h.Error != "" {
		return fmt.Errorf("nats server: %s", h.Error)
	}
	return nil
}

// Shutdown stops the server and returns when its files are closed. Clients that
// should not lose what they are sending drain before. It may be called again.
func (s *Server) Shutdown() { s.stop() }

// token lets in who knows it. The server's own check would warn of a password in
// the configuration, which there is not.
type token string

func (t token) Check(c server.ClientAuthentication) bool {
	return subtle.ConstantTimeCompare([]byte(t), []byte(c.GetOpts().Token)) == 1
}

// address checks listen and says why nothing can listen there.
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
	if err = errors.Join(err, l.Close()); err != nil { // the server opens it again by itself
		return "", 0, fmt.Errorf("nats address %s: %w", listen, err)
	}
	if !bound.Addr().Unmap().IsLoopback() && !secret {
		return "", 0, fmt.Errorf("nats address %s is open to other machines: set a token or listen on 127.0.0.1", listen)
	}
	if port = int(bound.Port()); p == "0" {
		port = server.RANDOM_PORT // not the one just seen: it may be taken by now
	}
	return host, port, nil
}

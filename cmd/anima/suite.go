package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/services/heartbeat"
	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/loop"
	"github.com/anima-run/anima/services/policy"
	"github.com/anima-run/anima/services/social"
	"github.com/anima-run/anima/services/treasury"
)

// services returns the services of the suite. They may be started in any order.
func services() []host.Service {
	return []host.Service{loop.Service, router.Service, policy.Service, treasury.Service, heartbeat.Service, social.Service}
}

// suite holds the components of all services in one process.
type suite struct {
	dir      string
	cfg      host.Config
	tokenSet bool   // the operator set the token; it is not the data folder's
	jaeger   string // URL of the Jaeger UI; may be empty
	server   *embednats.Server
	conn     *bus.Conn
	bus      *bus.Bus
	exp      *telemetry.Exporters
	log      *slog.Logger
	lookup   config.Lookup
	chain    *devChain // nil if another chain is configured, or none
}

// open validates all settings, then creates the data folder, the token, the embedded NATS
// server and the connection to it. The caller closes the suite.
func (a *app) open(ctx context.Context, dir string, lookup config.Lookup, listen bool) (_ *suite, err error) {
	cfg, up, err := settings(lookup)
	if err != nil {
		return nil, err
	}
	if !listen {
		up.NATSListen = ""
	}
	s := &suite{dir: dir, cfg: cfg, lookup: lookup, tokenSet: cfg.Token.Reveal() != "", jaeger: up.JaegerURL}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.log, err = telemetry.NewLogger(a.Err, telemetry.Config{Log: cfg.Log, LogFormat: cfg.LogFormat}); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, notWritable(err)
	}
	if err := disk.Write(dir, needed); err != nil { // the errors of the stores would not name the cause
		return nil, notWritable(err)
	}
	if !s.tokenSet {
		if s.cfg.Token, err = operatorToken(dir); err != nil {
			return nil, err
		}
	}
	s.cfg.Data = dir
	if s.cfg.Installation, err = installation(dir); err != nil {
		return nil, err
	}
	if s.exp, err = telemetry.Open(ctx, telemetry.Options{Version: host.Version(), Lookup: lookup, Log: s.log, Spool: filepath.Join(dir, "spans")}); err != nil {
		return nil, err
	}
	token := s.cfg.Token.Reveal()
	s.server, err = embednats.Start(ctx, embednats.Options{
		Dir: filepath.Join(dir, "nats"), Listen: up.NATSListen, Token: token, SyncAlways: cfg.Sync == host.SyncAlways, Log: s.log,
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s for NATS: %w; another program listens there, perhaps another anima up: stop it, or set ANIMA_NATS_LISTEN (--listen) to another address, or move all ports with --port", up.NATSListen, syscall.EADDRINUSE)
	}
	if err != nil {
		return nil, err
	}
	if s.conn, err = bus.Dial(bus.DialOptions{InProcess: s.server.InProcess(), Token: token, Name: "anima", Log: s.log}); err != nil {
		return nil, err
	}
	if s.bus, err = bus.New(s.conn, bus.Options{Service: "anima-up", Log: s.log}); err != nil {
		return nil, err
	}
	return s, s.startDevChain(ctx)
}

// close releases what open acquired, also after open failed in part.
func (s *suite) close() {
	if s.bus != nil {
		s.bus.Close()
	}
	if s.conn != nil {
		s.conn.Close()
	}
	if s.server != nil {
		s.server.Shutdown()
	}
	if s.chain != nil {
		if err := s.chain.close(); err != nil {
			s.log.Warn("dev chain not closed cleanly", "err", err)
		}
	}
	if s.exp != nil {
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.exp.Shutdown(end); err != nil {
			s.log.Warn("spans not exported, the last ones may be lost", "err", err)
		}
	}
}

// errStop is the error by which work ends the services without a failure.
var errStop = errors.New("stop")

// serve runs all services until ctx ends or work returns an error. work is called when
// the services are ready and may block.
func (s *suite) serve(ctx context.Context, work func(context.Context, host.Addrs) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, done := make(chan host.Addrs, 1), make(chan error, 1)
	go func() {
		done <- host.Run(ctx, host.Process{
			Config: s.cfg, Conn: s.conn, Log: s.log, Lookup: s.lookup, Exporters: s.exp, Stores: s.server.Healthz,
			Ready: func(a host.Addrs) { ready <- a },
		}, services()...)
	}()
	select {
	case addrs := <-ready:
		if err := work(ctx, addrs); err != nil {
			cancel()
			if errors.Is(err, errStop) {
				err = nil
			}
			return errors.Join(err, <-done)
		}
	case err := <-done:
		return err
	}
	return <-done
}

// operatorToken reads the token of the data folder, or creates it.
func operatorToken(dir string) (config.Secret, error) {
	file := filepath.Join(dir, "token")
	data, err := config.ReadSecretFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", notWritable(err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		token = rand.Text()
		if err := writeFile(file, []byte(token+"\n")); err != nil {
			return "", notWritable(err)
		}
	}
	if len(token) < 16 {
		return "", failure(api.Invalid, file+" holds a token of fewer than 16 characters, which can be guessed",
			"write a longer token into it, or remove the file: anima up creates a new token")
	}
	return config.Secret(token), nil
}

// installation reads the id of the data folder, or creates it. embednats holds a file
// lock on the folder, so only one process uses it at a time: earlier processes with the
// same id have ended.
func installation(dir string) (string, error) {
	file := filepath.Join(dir, "installation")
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err := createFile(file, []byte(rand.Text()+"\n")); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", notWritable(err)
		}
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return "", notWritable(err)
	}
	id := strings.TrimSpace(string(data))
	if !api.ValidKey(id) {
		return "", failure(api.Invalid, file+" does not hold the id of an installation", "restore the file from a backup of the data folder")
	}
	return id, nil
}

// needed is the number of bytes that must be free in the data folder at the start.
const needed = 64 << 10

func notWritable(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		e := failure(api.Unavailable, "the disk of the data folder is full: "+err.Error(), "free space on it, or name a folder on another disk with --data, or in ANIMA_DATA")
		e.Reason = api.ReasonNoSpace
		return e
	}
	return failure(api.Invalid, "the data folder cannot be used: "+err.Error(), "name a folder that you may write with --data, or in ANIMA_DATA")
}

// writeEndpoint writes the endpoint file for other commands. The returned function, which
// is never nil, removes it.
func (s *suite) writeEndpoint(addrs host.Addrs) (func(), error) {
	file := filepath.Join(s.dir, endpointFile)
	err := writePrivate(file, endpoint{
		NATS: s.server.ClientURL(), Token: s.cfg.Token.Reveal(), HTTP: localURL(addrs.HTTP), Ops: localURL(addrs.Ops), Jaeger: s.jaeger,
	})
	if err != nil {
		return func() {}, notWritable(err)
	}
	return func() {
		if err := os.Remove(file); err != nil {
			s.log.Warn("endpoint file not removed, commands will try to connect to it", "err", err)
		}
	}, nil
}

// localURL returns the URL at which this machine reaches the listener on addr; "" if addr is
// empty.
func localURL(addr string) string {
	if addr == "" {
		return ""
	}
	if ap, err := netip.ParseAddrPort(addr); err == nil && ap.Addr().IsUnspecified() {
		_, port, _ := net.SplitHostPort(addr)
		addr = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + addr
}

package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
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

// services of the suite; their order means nothing.
func services() []host.Service {
	return []host.Service{loop.Service, router.Service, policy.Service, treasury.Service, heartbeat.Service, social.Service}
}

//go:embed demo/lucky.md
var luckyMD string

type upCmd struct {
	HTTP      string `help:"Address of the HTTP surface (ANIMA_HTTP_ADDR)." placeholder:"127.0.0.1:8080"`
	Ops       string `help:"Address of health and metrics (ANIMA_OPS_ADDR)." placeholder:"127.0.0.1:9090"`
	Listen    string `help:"Address at which NATS is open to the command line (ANIMA_NATS_LISTEN)." placeholder:"127.0.0.1:4222"`
	Sync      string `help:"When a write is on the disk: interval, the dev profile, or always (ANIMA_SYNC)." placeholder:"interval"`
	Log       string `help:"debug, info, warn or error (ANIMA_LOG)." placeholder:"warn"`
	LogFormat string `help:"json or text (ANIMA_LOG_FORMAT)." placeholder:"json"`
	Empty     bool   `help:"Do not make the first agent."`
}

// Run brings everything up and serves until it is told to stop.
func (c upCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	listen := c.Listen
	if listen == "" {
		if listen, _ = a.Lookup("ANIMA_NATS_LISTEN"); listen == "" {
			listen = "127.0.0.1:4222"
		}
	}
	set := map[string]string{}
	for k, v := range map[string]string{
		"ANIMA_HTTP_ADDR": c.HTTP, "ANIMA_OPS_ADDR": c.Ops, "ANIMA_SYNC": c.Sync, "ANIMA_LOG": c.Log, "ANIMA_LOG_FORMAT": c.LogFormat, "ANIMA_DATA": dir,
	} {
		if v != "" {
			set[k] = v
		}
	}
	s, err := a.open(ctx, dir, listen, set)
	if err != nil {
		return err
	}
	defer s.close()
	return s.serve(ctx, func(ctx context.Context, addrs host.Addrs) error {
		if err := s.writeEndpoint(addrs); err != nil {
			return err
		}
		if !c.Empty {
			if err := s.firstAgent(ctx); err != nil {
				return err
			}
		}
		return a.banner(ctx, s, addrs)
	})
}

// suite is everything in one process.
type suite struct {
	dir    string
	cfg    host.Config
	token  string
	server *embednats.Server
	conn   *nats.Conn
	bus    *bus.Bus
	exp    *telemetry.Exporters
	log    *slog.Logger
	lookup config.Lookup
}

// devDefaults are what makes a laptop's profile: loopback only, a faucet, writes
// synced at intervals. The environment and flags override them.
func devDefaults(lookup config.Lookup, set map[string]string) config.Lookup {
	dev := map[string]string{
		"ANIMA_HTTP_ADDR": "127.0.0.1:8080", "ANIMA_OPS_ADDR": "127.0.0.1:9090", "ANIMA_SYNC": host.SyncInterval,
		"ANIMA_LOG": "warn", "ANIMA_TREASURY_FAUCET": "true",
	}
	return func(k string) (string, bool) {
		if v, ok := set[k]; ok {
			return v, true
		}
		if v, ok := lookup(k); ok {
			return v, true
		}
		v, ok := dev[k]
		return v, ok
	}
}

// open makes the folder, the token, the embedded NATS and the connection to it.
func (a *app) open(ctx context.Context, dir, listen string, set map[string]string) (*suite, error) {
	s := &suite{dir: dir, lookup: devDefaults(a.Lookup, set), cfg: host.Defaults()}
	if err := config.Load("", &s.cfg, s.lookup); err != nil {
		return nil, &api.Error{Code: api.Invalid, Message: "the settings have faults", Details: strings.Split(err.Error(), "\n"), Next: "mend them; docs/config.md lists all settings"}
	}
	for _, svc := range services() {
		if err := svc.Check(s.lookup); err != nil {
			return nil, &api.Error{Code: api.Invalid, Message: "the settings of " + svc.Name + " have faults", Details: strings.Split(err.Error(), "\n"), Next: "mend them; docs/config.md lists all settings"}
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &api.Error{Code: api.Invalid, Message: "the data folder cannot be made: " + err.Error(), Next: "name a folder that you may write with --data"}
	}
	var err error
	if s.token, err = operatorToken(dir, s.cfg.Token.Reveal()); err != nil {
		return nil, err
	}
	s.cfg.Token, s.cfg.Data = config.Secret(s.token), dir
	if s.log, err = telemetry.NewLogger(a.Err, telemetry.Config{Log: s.cfg.Log, LogFormat: s.cfg.LogFormat}); err != nil {
		return nil, err
	}
	if s.exp, err = telemetry.Open(ctx, telemetry.Options{Version: host.Version(), Lookup: s.lookup, Log: s.log}); err != nil {
		return nil, err
	}
	s.server, err = embednats.Start(ctx, embednats.Options{
		Dir: filepath.Join(dir, "nats"), Listen: listen, Token: s.token, SyncAlways: s.cfg.Sync == host.SyncAlways, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	s.conn, err = bus.Dial(bus.Dialing{InProcess: s.server.InProcess(), Token: s.token, Name: "anima", Log: s.log})
	if err == nil {
		s.bus, err = bus.New(s.conn, bus.Options{Service: "anima-up", Log: s.log})
	}
	if err != nil {
		s.server.Shutdown()
		return nil, err
	}
	return s, nil
}

func (s *suite) close() {
	s.bus.Close()
	s.conn.Close()
	s.server.Shutdown()
	end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.exp.Shutdown(end); err != nil {
		s.log.Warn("the last spans may be lost", "err", err)
	}
}

// serve runs all services until ctx ends or work, which begins when they are
// ready and may be long, fails.
func (s *suite) serve(ctx context.Context, work func(context.Context, host.Addrs) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ready, done := make(chan host.Addrs, 1), make(chan error, 1)
	go func() {
		done <- host.Run(ctx, host.Process{
			Config: s.cfg, Conn: s.conn, Log: s.log, Lookup: s.lookup, Exporters: s.exp,
			Ready: func(a host.Addrs) { ready <- a },
		}, services()...)
	}()
	select {
	case addrs := <-ready:
		if err := work(ctx, addrs); err != nil {
			cancel()
			return errors.Join(err, <-done)
		}
	case err := <-done:
		return err
	}
	return <-done
}

// operatorToken reads the token of this folder, or makes it.
func operatorToken(dir, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	file := filepath.Join(dir, "token")
	data, err := os.ReadFile(file)
	if err == nil && len(strings.TrimSpace(string(data))) >= 16 {
		return strings.TrimSpace(string(data)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token := rand.Text()
	if err := writeFile(file, []byte(token+"\n")); err != nil {
		return "", &api.Error{Code: api.Invalid, Message: "the data folder cannot be written: " + err.Error(), Next: "name a folder that you may write with --data"}
	}
	return token, nil
}

// writeFile replaces a file of the owner's only, whole or not at all.
func writeFile(file string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name()) // it is of no use to anyone
	}
	return err
}

func (s *suite) writeEndpoint(addrs host.Addrs) error {
	data, err := json.MarshalIndent(endpoint{
		NATS: s.server.ClientURL(), Token: s.token, HTTP: "http://" + addrs.HTTP, Ops: "http://" + addrs.Ops,
	}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(s.dir, endpointFile), append(data, '\n'))
}

// firstAgent makes sure that somebody lives here. Its first money comes once: the
// deposit's id says so.
func (s *suite) firstAgent(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	all, err := bus.Call[api.Agents](ctx, s.bus, api.ListAgents{})
	if err != nil || len(all.Agents) > 0 {
		return err
	}
	agent, err := bus.Call[api.Agent](ctx, s.bus, api.ApplyAgent{Source: luckyMD})
	if err != nil {
		return err
	}
	_, err = bus.Call[api.Posted](ctx, s.bus, api.Deposit{
		ID: "first-money-" + agent.ID, Agent: agent.ID, Amount: 5 * api.Dollar, Source: "faucet", Memo: "a start in life",
	})
	if api.CodeOf(err) == api.Denied {
		s.log.Warn("the first agent has no money: the faucet is off", "agent", agent.ID)
		return nil
	}
	return err
}

// banner says what is up, where, and how safe writes are.
func (a *app) banner(ctx context.Context, s *suite, addrs host.Addrs) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	models, err := bus.Call[api.Models](ctx, s.bus, api.ListModels{})
	if err != nil {
		return err
	}
	model := "none: no model can be used, see anima model list"
	for _, m := range models.Models {
		if m.Usable {
			model = m.Provider
			if model == "simulated" {
				model = "simulated, because no provider is configured (set OPENAI_API_KEY or OPENAI_BASE_URL for a real one)"
			}
			break
		}
	}
	sync := "interval: a power cut may take the last two minutes, a crash nothing (dev profile; --sync always keeps every write)"
	if s.cfg.Sync == host.SyncAlways {
		sync = "always: every acknowledged write is on the disk"
	}
	database := "SQLite in " + s.dir
	if s.cfg.DatabaseURL.Reveal() != "" {
		database = "PostgreSQL"
	}
	fmt.Fprintf(a.Out, `anima %s is up

  http       http://%s   (token in %s)
  ops        http://%s/readyz   /metrics
  nats       %s   (same token)
  data       %s
  database   %s
  writes     %s
  model      %s

  anima agent list                      who lives here
  anima session send lucky "hello"      talk to the first one
  anima demo                            see the whole story once
`, host.Version(), addrs.HTTP, filepath.Join(s.dir, "token"), addrs.Ops, s.server.ClientURL(), s.dir, database, sync, model)
	return nil
}

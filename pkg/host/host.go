// Package host runs services, one alone or several in one process. It provides each
// service with its bus, database, HTTP routes, log and instruments, and shuts the
// services down in order. It must not depend on any service.
//
// One service or several is not a mode: [Run] takes a list of services.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"
)

// Service describes a service for the host; [Define] creates one.
type Service struct {
	Name   string // as in services/<name>
	Fields func() []config.Field
	// Check reports whether the settings are valid, without running the service.
	Check func(config.Lookup) error

	run        func(context.Context, *Env) error
	migrations fs.FS // nil without a database
	examine    Examiner
}

// Define creates a service from a run function. cfg holds the defaults, and is filled
// from the environment before run is called. run builds the service, calls [Env.Serve]
// and returns its error. migrations are those of the database's schema, nil without a
// database.
func Define[C any](name string, cfg C, migrations fs.FS, run func(context.Context, *Env, C) error) Service {
	return Service{
		Name: name, migrations: migrations,
		Fields: func() []config.Field { return config.Fields(name, &cfg) },
		Check: func(lookup config.Lookup) error {
			cfg := cfg
			return config.Load(name, &cfg, lookup)
		},
		run: func(ctx context.Context, env *Env) error {
			cfg := cfg
			if err := config.Load(name, &cfg, env.lookup); err != nil {
				return err
			}
			return run(ctx, env, cfg)
		},
	}
}

// Env is the environment that the host provides to a service while it runs.
type Env struct {
	Bus    *bus.Bus
	Log    *slog.Logger
	Now    func() time.Time
	Tracer trace.TracerProvider
	Meter  metric.MeterProvider
	Data   string // the service's own folder, created by [Env.Folder]
	HTTP   Routes // HTTP routes of the service, in addition to its bus routes

	service  Service
	cfg      Config
	lookup   config.Lookup
	status   *status
	marks    *marks // of the database; nil until it is open
	requests *requests
	ready    func()
}

// Serve runs the bus routes until ctx ends and then drains: it returns after the last
// message, request and HTTP request in progress, whose contexts end when the drain is over.
// The service is ready when the routes are active.
func (e *Env) Serve(ctx context.Context, routes ...bus.Route) error {
	if e.marks != nil {
		routes = append(routes, bus.Go(e.marks.keep))
	}
	err := e.Bus.Serve(ctx, e.cfg.Drain, func() {
		e.status.set(e.service.Name, "")
		e.Log.Info("ready")
		e.ready()
	}, routes...)
	if ctx.Err() != nil { // otherwise the service has failed, and HTTP requests still arrive
		e.requests.close(context.WithoutCancel(ctx)) // the server ends them when the drain is over
	}
	return err
}

// Folder returns the service's own data folder, and creates it if it does not exist.
func (e *Env) Folder() (string, error) {
	if err := os.MkdirAll(e.Data, 0o700); err != nil {
		return "", fmt.Errorf("data folder: %w; point ANIMA_DATA at a folder this user may write", err)
	}
	if err := e.status.keep(e.cfg.Data, e.cfg.DiskReserve); err != nil {
		return "", fmt.Errorf("data folder: %w", err)
	}
	return e.Data, nil
}

// Room returns an error, Unavailable with ReasonNoSpace, if only the reserve of the data
// folder's disk is free. A service must call it before it accepts new work. It returns
// nil in a process without a data folder.
func (e *Env) Room() error { return e.status.room() }

// DB opens the service's database with its schema up to date. It runs the migrations
// itself, or waits until the argument migrate has run them (ANIMA_MIGRATE). It also waits
// for a database server that is not running yet. Readiness reports the wait. It returns a
// Conflict error if the database or a stream of the service is missing, empty or older
// than recorded in another store.
func (e *Env) DB(ctx context.Context) (*sqldb.DB, error) {
	if e.service.migrations == nil {
		return nil, errors.New("no migrations: give them to host.Define")
	}
	prepare := sqldb.Migrate
	if e.cfg.Migrate == MigrateWait {
		prepare = sqldb.Behind
	}
	db, err := e.open(ctx, prepare)
	if err != nil {
		return nil, err
	}
	if e.marks, err = e.check(ctx, db); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	e.status.examined(e.service.Name, func(ctx context.Context) []Finding {
		return e.service.Examine(ctx, db, e.Bus, e.Bus.Installation(), e.cfg.Sync, e.Now(), true)
	})
	return db, nil
}

func (e *Env) open(ctx context.Context, prepare func(context.Context, *sqldb.DB, fs.FS) error) (*sqldb.DB, error) {
	name := e.service.Name
	if e.cfg.DatabaseURL.Reveal() == "" {
		if _, err := e.Folder(); err != nil {
			return nil, err
		}
	}
	url := e.url()
	for said := ""; ; {
		db, err := sqldb.Open(ctx, url, sqldb.Options{
			Schema: strings.ReplaceAll(name, "-", "_"), TracerProvider: e.Tracer, StatementSpans: e.cfg.StatementSpans, MeterProvider: e.Meter,
		})
		if err == nil {
			if err = prepare(ctx, db, e.service.migrations); err == nil {
				return db, nil
			}
			err = errors.Join(err, db.Close())
		}
		away := strings.HasPrefix(url, "postgres") && errors.Is(err, sqldb.ErrUnavailable)
		if ctx.Err() != nil || !away && !errors.Is(err, sqldb.ErrBehind) {
			return nil, err
		}
		e.status.set(name, "waiting for the database")
		if err.Error() != said {
			said = err.Error()
			e.Log.Warn("waiting for the database", "err", err)
		}
		if err := wait.For(ctx, 500*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// file returns the path of the service's SQLite database.
func (e *Env) file() string { return filepath.Join(e.Data, e.service.Name+".db") }

func (e *Env) url() string {
	if url := e.cfg.DatabaseURL.Reveal(); url != "" {
		return url
	}
	url := "sqlite:" + e.file()
	if e.cfg.Sync == SyncAlways {
		url += "?sync=full"
	}
	return url
}

// dataOf returns the service's own folder.
func dataOf(c Config, s Service) string { return filepath.Join(c.Data, s.Name) }

// Process holds what the services of one process share.
type Process struct {
	Config Config
	Conn   *bus.Conn
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
	Lookup config.Lookup    // the environment; nil: an empty one
	// Ready, which may be nil, is called with the listen addresses of the process once
	// all services are ready.
	Ready func(Addrs)
	// Listening, which may be nil, is called once the ports are open, before any service
	// is ready.
	Listening func(Addrs)
	// Stores, which may be nil, returns an error if a store of the process outside of the
	// services cannot be written. Readiness reports it.
	Stores func() error
	// Exporters export spans and metrics. The caller shuts them down.
	Exporters *telemetry.Exporters
}

// Addrs holds the listen addresses of a process; "" for a closed port.
type Addrs struct{ HTTP, Ops string }

// Run runs the services together until ctx ends or one of them fails; then the others are
// stopped too. They may start in any order, because they communicate through streams,
// which are persistent.
func Run(ctx context.Context, p Process, services ...Service) error {
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.Lookup == nil {
		p.Lookup = func(string) (string, bool) { return "", false }
	}
	st := newStatus(services)
	edge := newEdge(p.Config, st)
	servers, addrs, err := listen(p, edge, st)
	if err != nil {
		return err
	}
	if p.Listening != nil {
		p.Listening(addrs)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range servers {
		g.Go(func() error { return s.serve(ctx) })
	}
	r := &running{Process: p, edge: edge, several: len(services) > 1, status: st, quiet: newBarrier(len(services)), ready: newBarrier(len(services))}
	for _, s := range services {
		g.Go(func() error {
			if err := r.runOne(ctx, s); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			return nil
		})
	}
	g.Go(func() error {
		wait.Every(ctx, idleInterval, returnMemory(debug.FreeOSMemory))
		return nil
	})
	g.Go(func() error {
		r.ready.wait(ctx)
		if p.Ready != nil && ctx.Err() == nil && st.ready() {
			p.Ready(addrs)
		}
		return nil
	})
	return g.Wait()
}

// running is a process whose services run.
type running struct {
	Process

	edge         *edge
	several      bool // services
	status       *status
	quiet, ready *barrier   // the services have settled their last message; they are ready
	ensure       sync.Mutex // serialises Ensure: after the first call the streams exist
}

func (p *running) runOne(ctx context.Context, s Service) error {
	ready, quiet := p.ready.arrival(), p.quiet.arrival()
	defer ready()
	defer quiet() // the other services must not wait for this one
	defer p.status.set(s.Name, "stopped")
	log := p.Log.With("svc", s.Name)
	prov, err := p.Exporters.Start(ctx, s.Name)
	if err != nil {
		return err
	}
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := prov.Shutdown(flush); err != nil {
			log.Warn("the last spans may be lost", "err", err)
		}
	}()
	b, err := bus.New(p.Conn, bus.Options{
		Service: s.Name, Version: Version(), Log: log, Replicas: p.Config.Replicas, Guarded: true, Installation: p.Config.Installation,
		Tracer: prov.TracerProvider(), Meter: prov.MeterProvider(),
		Quiet: func(ctx context.Context) {
			if p.several {
				p.edge.requests.close(ctx) // their handlers make requests to the other services
			}
			quiet()
			p.quiet.wait(ctx)
		},
	})
	if err != nil {
		return err
	}
	defer b.Close()
	if err := waitConnected(ctx, b, log, func(waits string) { p.status.set(s.Name, waits) }); err != nil {
		return err
	}
	p.ensure.Lock()
	err = b.Ensure(ctx)
	p.ensure.Unlock()
	if err != nil {
		return err
	}
	p.status.set(s.Name, "starting")
	keys := newKeyring(p.Now, func(ctx context.Context, m api.AuthenticateKey) (api.KeyIdentity, error) {
		return bus.Call[api.KeyIdentity](ctx, b, m)
	})
	return s.run(ctx, &Env{
		Bus: b, Log: log, Now: p.Now, Tracer: prov.TracerProvider(), Meter: prov.MeterProvider(),
		Data: dataOf(p.Config, s), HTTP: serviceRoutes{edge: p.edge, tracers: prov.TracerProvider(), keys: keys},
		service: s, cfg: p.Config, lookup: p.Lookup, status: p.status, requests: &p.edge.requests, ready: ready,
	})
}

// waitConnected waits for NATS. It tells status and the log what it is waiting for.
func waitConnected(ctx context.Context, b *bus.Bus, log *slog.Logger, status func(waits string)) error {
	status("waiting for NATS")
	for said, refused := false, false; !b.Connected(); said = true {
		if !said {
			log.Info("waiting for NATS")
		}
		if !refused && b.Refused() {
			refused = true
			status("waiting for NATS, which refuses the credentials")
			log.Error("NATS refuses the credentials, retrying; check the token, the nkey or the credentials file")
		}
		if err := wait.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

package host

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/telemetry"
)

// Main is the body of a service's main function. It runs the service alone until SIGTERM
// or SIGINT. The NATS server may start later.
func Main(s Service) {
	TuneGC(os.LookupEnv)
	if err := Alone(s, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		os.Exit(1)
	}
}

// Alone is Main with the arguments, environment and outputs as parameters. It returns an
// error instead of exiting.
func Alone(s Service, args []string, lookup config.Lookup, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	version := fs.Bool("version", false, "print the version and exit")
	fs.Usage = func() { usage(stderr, s) }
	if err := fs.Parse(args); err != nil {
		return err
	}
	if a := fs.Args(); len(a) > 1 || len(a) == 1 && a[0] != "migrate" {
		return fmt.Errorf("unknown argument %q: the only argument is migrate, which updates the database schema and exits", strings.Join(a, " "))
	}
	if *version {
		_, err := fmt.Fprintln(stdout, s.Name, Version())
		return err
	}
	cfg := Defaults()
	if err := config.Load("", &cfg, lookup); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(stderr, telemetry.Config{Log: cfg.Log, LogFormat: cfg.LogFormat})
	if err != nil {
		return err
	}
	for _, u := range config.Unknown(append(config.Fields("", &cfg), s.Fields()...), os.Environ()) {
		log.Warn("unknown setting", "variable", u)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if fs.Arg(0) == "migrate" {
		return migrate(ctx, s, cfg, log)
	}
	exp, err := telemetry.Open(ctx, telemetry.Options{Version: Version(), Lookup: lookup, Log: log, Spool: filepath.Join(cfg.Data, s.Name, "spans")})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = exp.Shutdown(end) // the services flushed before, and logged a failure
	}()
	if cfg.NATSCreds != "" {
		if err := config.CheckSecretFile(cfg.NATSCreds); err != nil {
			return fmt.Errorf("ANIMA_NATS_CREDS: %w", err)
		}
	}
	nc, err := bus.Dial(bus.DialOptions{
		URL: cfg.NATSURL, Token: cfg.NATSToken.Reveal(), Creds: cfg.NATSCreds, NKey: cfg.NATSNKey.Reveal(), CA: cfg.NATSCA, Name: s.Name, Wait: true, Log: log,
	})
	if err != nil {
		return err
	}
	defer nc.Close()
	return Run(ctx, Process{
		Config: cfg, Conn: nc, Log: log, Lookup: lookup, Exporters: exp,
		Ready: func(a Addrs) { _, _ = fmt.Fprintf(stdout, "ready http=%s ops=%s\n", a.HTTP, a.Ops) }, // fails only if stdout is closed
	}, s)
}

// migrate runs the service's migrations. A repeated call changes nothing.
func migrate(ctx context.Context, s Service, cfg Config, log *slog.Logger) error {
	e := &Env{Log: log, Data: filepath.Join(cfg.Data, s.Name), service: s, cfg: cfg, status: newStatus(nil)}
	db, err := e.open(ctx, sqldb.Migrate)
	if err != nil {
		return err
	}
	version, err := sqldb.Version(ctx, db)
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	log.Info("the schema is up to date", "svc", s.Name, "version", version)
	return nil
}

func usage(w io.Writer, s Service) {
	cfg := Defaults()
	var b strings.Builder
	fmt.Fprintf(&b, "%s runs one anima service; %s migrate updates its database schema and exits.\nThe service is configured by the environment:\n\n", s.Name, s.Name)
	for _, f := range append(config.Fields("", &cfg), s.Fields()...) {
		fmt.Fprintf(&b, "  %-38s %s", f.Env, f.Help)
		if f.Default != "" {
			fmt.Fprintf(&b, " (default %s)", f.Default)
		}
		b.WriteString("\n")
	}
	_, _ = io.WriteString(w, b.String()) // a failed write to the terminal has no remedy
}

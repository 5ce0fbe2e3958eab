package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/anima-run/anima/tools/jaeger/build"
)

// The configuration files. Jaeger merges them in this order.
var (
	//go:embed config.yaml
	baseYAML []byte
	//go:embed badger.yaml
	badgerYAML []byte
	//go:embed sampling.yaml
	samplingYAML []byte
)

// options are the settings of a Jaeger that runs on this machine.
type options struct {
	host     string
	dir      string
	sampling bool
	ports    ports
}

// ports holds the ports that Jaeger listens on, all on one address.
type ports struct{ otlpGRPC, otlpHTTP, query, queryGRPC, health int }

func (o *options) flags(cmd string) *flag.FlagSet {
	f := flag.NewFlagSet(cmd, flag.ContinueOnError)
	f.StringVar(&o.host, "host", "127.0.0.1", "`address` to listen on; Jaeger has no authentication")
	f.StringVar(&o.dir, "dir", "", "keep traces in this `folder` across restarts; without it they are kept in memory")
	f.BoolVar(&o.sampling, "sampling", false, "keep turns, money, refusals, errors and wakes, and one in a thousand of the rest; traces appear 3 s later")
	f.IntVar(&o.ports.otlpGRPC, "otlp-grpc", 4317, "`port` that takes OTLP over gRPC")
	f.IntVar(&o.ports.otlpHTTP, "otlp-http", 4318, "`port` that takes OTLP over HTTP")
	f.IntVar(&o.ports.query, "query", 16686, "`port` of the API")
	f.IntVar(&o.ports.queryGRPC, "query-grpc", 16685, "`port` of the API over gRPC")
	f.IntVar(&o.ports.health, "health", 13133, "`port` of the health check")
	return f
}

// at returns the address of a port.
func (o options) at(port int) string { return net.JoinHostPort(o.host, fmt.Sprint(port)) }

// env returns the environment variables that the configuration refers to.
func (o options) env() []string {
	return []string{
		"JAEGER_OTLP_GRPC=" + o.at(o.ports.otlpGRPC), "JAEGER_OTLP_HTTP=" + o.at(o.ports.otlpHTTP),
		"JAEGER_QUERY=" + o.at(o.ports.query), "JAEGER_QUERY_GRPC=" + o.at(o.ports.queryGRPC),
		"JAEGER_HEALTH=" + o.at(o.ports.health), "JAEGER_DIR=" + o.dir,
	}
}

type layer struct {
	name string
	data []byte
}

func (o options) layers() []layer {
	all := []layer{{"config.yaml", baseYAML}}
	if o.dir != "" {
		all = append(all, layer{"badger.yaml", badgerYAML})
	}
	if o.sampling {
		all = append(all, layer{"sampling.yaml", samplingYAML})
	}
	return all
}

func (o options) print(w io.Writer) error {
	for _, l := range o.layers() {
		if _, err := fmt.Fprintf(w, "--- # %s\n%s", l.name, l.data); err != nil {
			return err
		}
	}
	return nil
}

// serve runs Jaeger until ctx ends or Jaeger exits.
func serve(ctx context.Context, o options) (err error) {
	if o.dir != "" {
		if o.dir, err = filepath.Abs(o.dir); err != nil {
			return err
		}
		if err := os.MkdirAll(o.dir, 0o700); err != nil {
			return err
		}
	}
	bin, err := build.Build(ctx, "")
	if err != nil {
		return err
	}
	if err := o.free(); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "jaeger-conf-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a remainder is in the temporary folder
	var args []string
	for _, l := range o.layers() {
		file := filepath.Join(tmp, l.name)
		if err := os.WriteFile(file, l.data, 0o600); err != nil {
			return err
		}
		args = append(args, "--config="+file)
	}
	c := exec.Command(bin, args...) //nolint:noctx // stopped by a signal below, not killed with a context
	c.Env = append(os.Environ(), o.env()...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	c.SysProcAttr = lonely()
	if err := c.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	began := time.Now()
	if err := o.ready(ctx, ended); err != nil {
		if ctx.Err() == nil {
			return err
		}
	} else {
		o.say(time.Since(began))
	}
	select {
	case err := <-ended:
		return fmt.Errorf("jaeger ended: %w", errors.Join(err, errors.New("it was not asked to stop")))
	case <-ctx.Done():
	}
	fmt.Fprintln(os.Stderr, "jaeger: stopping")
	_ = c.Process.Signal(syscall.SIGTERM) // it may have exited
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("jaeger did not stop within 30 s and was killed"), c.Process.Kill(), <-ended)
	}
	return nil
}

// free returns an error if a port is in use. Jaeger's own message does not name the flag
// that selects another port.
func (o options) free() error {
	for _, p := range []struct {
		flag string
		port int
	}{{"otlp-grpc", o.ports.otlpGRPC}, {"otlp-http", o.ports.otlpHTTP}, {"query", o.ports.query}, {"query-grpc", o.ports.queryGRPC}, {"health", o.ports.health}} {
		l, err := net.Listen("tcp", o.at(p.port))
		if err != nil {
			return fmt.Errorf("%w: another Jaeger may be running; stop it, or choose another port with -%s", err, p.flag)
		}
		_ = l.Close() // nothing was written
	}
	return nil
}

// ready waits until the API answers, for at most one minute.
func (o options) ready(ctx context.Context, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+o.at(o.ports.query)+"/api/v3/services", nil)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			return fmt.Errorf("jaeger ended before it was ready: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("jaeger is not ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// say prints the addresses.
func (o options) say(took time.Duration) {
	kept := "in memory, until it exits"
	if o.dir != "" {
		kept = "in " + o.dir + ", for a week"
	}
	sampled := "every trace"
	if o.sampling {
		sampled = "turns, money, refusals, errors, wakes; of the rest one in a thousand"
	}
	fmt.Printf(`jaeger %s is ready after %.1f s

  otlp      http://%s (gRPC), http://%s (HTTP)
  api       http://%s/api/v3/services
  kept      %s
  sampling  %s

  anima up --jaeger     sends its traces here

`, build.Release, took.Seconds(), o.at(o.ports.otlpGRPC), o.at(o.ports.otlpHTTP), o.at(o.ports.query), kept, sampled)
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
)

// endpoint holds the addresses of a running anima. `anima up` writes it into its data
// folder for the other commands.
type endpoint struct {
	NATS  string `json:"nats"`
	Token string `json:"token"`
	HTTP  string `json:"http"`
	Ops   string `json:"ops"`

	Jaeger string `json:"jaeger,omitempty"` // URL of the Jaeger UI that shows its traces
}

const endpointFile = "endpoint.json"

// env returns an environment variable; "" if it is not set.
func (a *app) env(name string) string {
	v, _ := a.Lookup(name)
	return v
}

// dataDir returns the data folder: the flag --data, ANIMA_DATA, or the default below the
// user's home.
func (a *app) dataDir() (string, error) {
	if dir := cmp.Or(a.cli.Data, a.env("ANIMA_DATA")); dir != "" {
		return dir, nil
	}
	dir := a.userDir("XDG_DATA_HOME", ".local", "share")
	if dir == "" {
		return "", api.Errorf(api.Invalid, "HOME is not set: name a data folder with --data")
	}
	return dir, nil
}

// userDir returns the folder of anima in the folder that the variable names, which by
// default is below the user's home. It is "" if HOME is needed and not set.
func (a *app) userDir(variable string, below ...string) string {
	base, home := a.env(variable), a.env("HOME")
	switch {
	case base != "":
		return filepath.Join(base, "anima")
	case home == "":
		return ""
	}
	return filepath.Join(home, filepath.Join(below...), "anima")
}

// clientConfig holds the settings of the commands that connect to a running anima.
type clientConfig struct {
	URL   string        `env:"nats_url"`
	Token config.Secret `env:"nats_token"`
	Creds string        `env:"nats_creds"`
	NKey  config.Secret `env:"nats_nkey"`
	CA    string        `env:"nats_ca"`
}

// urlNamed reports whether a flag or the environment sets the URL of NATS.
func (a *app) urlNamed() bool { return a.cli.NATS != "" || a.env("ANIMA_NATS_URL") != "" }

// dialing returns how to reach the anima that the command talks to: the one of a URL or a
// context, or the one that runs on the data folder. named reports that a URL or context
// was given; it is true also when contexts cannot be read.
func (a *app) dialing() (d bus.DialOptions, named bool, err error) {
	var c clientConfig
	if err := config.Load("", &c, a.Lookup); err != nil {
		return d, false, failure(api.Invalid, err.Error(), "")
	}
	to := savedContext{URL: cmp.Or(a.cli.NATS, c.URL), Token: c.Token.Reveal(), Creds: c.Creds, NKey: c.NKey.Reveal(), CA: c.CA}
	name, selected, err := a.selectedContext()
	if err != nil {
		return d, true, err
	}
	if name != "" {
		to = selected
	}
	named = to.URL != ""
	if !named {
		ep, err := a.endpoint()
		if err != nil {
			return d, false, err
		}
		if ep.NATS == "" { // the library would connect to its default address, and send the token there
			return d, false, failure(api.Conflict, "the anima of the data folder has no port for NATS, so commands cannot reach it",
				"start it with an address in ANIMA_NATS_LISTEN (--listen), or without the variable")
		}
		to = savedContext{URL: ep.NATS, Token: ep.Token}
	}
	if to.Creds != "" {
		err = config.CheckSecretFile(to.Creds)
	}
	d = bus.DialOptions{URL: to.URL, Token: to.Token, Creds: to.Creds, NKey: to.NKey, CA: to.CA, Name: bus.Operator, Log: slog.New(slog.DiscardHandler)}
	return d, named, err
}

// endpoint reads the endpoint file of the data folder.
func (a *app) endpoint() (ep endpoint, err error) {
	dir, err := a.dataDir()
	if err != nil {
		return ep, err
	}
	file := filepath.Join(dir, endpointFile)
	data, err := config.ReadSecretFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ep, notRunning(dir)
	case err != nil:
		return ep, fmt.Errorf("read the endpoint file: %w", err)
	}
	if err := json.Unmarshal(data, &ep); err != nil {
		return ep, fmt.Errorf("%s: %w; restart anima up, which writes the file again", file, err)
	}
	return ep, nil
}

// jaeger returns the base URL of the Jaeger UI: the one of the flag or of
// ANIMA_JAEGER_URL, otherwise the one that the anima of the data folder exports to. It is
// empty if there is none.
func (a *app) jaeger(flag string) (string, error) {
	if named := cmp.Or(flag, a.env("ANIMA_JAEGER_URL")); named != "" {
		base, err := jaegerBase(named)
		if err != nil {
			return "", failure(api.Invalid, err.Error(), "")
		}
		return base, nil
	}
	if a.urlNamed() {
		return "", nil // traces of another anima may be in another Jaeger
	}
	if name, _, err := a.selectedContext(); err != nil || name != "" {
		return "", err
	}
	ep, _ := a.endpoint() // the command itself reports the error
	return ep.Jaeger, nil
}

func notRunning(dir string) error {
	return failure(api.Unavailable, "no anima is running with the data folder "+dir,
		"start one with anima up, or name another's folder with --data, its NATS with --nats, or a context with --context")
}

// bus opens a connection to the services. The caller calls the returned function to close
// it.
func (a *app) bus() (*bus.Bus, func(), error) {
	d, named, err := a.dialing()
	if err != nil {
		return nil, nil, err
	}
	// Behind a forwarded port the addresses that the servers advertise cannot be reached;
	// trying them would hide the error of the given address.
	d.Outside = true
	nc, err := bus.Dial(d)
	if err != nil && !named && errors.Is(err, bus.ErrNoServers) {
		dir, _ := a.dataDir() // dialing has resolved it before
		return nil, nil, notRunning(dir)
	}
	if err != nil {
		return nil, nil, failure(api.Unavailable, err.Error(), "anima context show shows the context in use; docs/contexts.md says which address and credentials a command takes")
	}
	b, err := bus.New(nc, bus.Options{Service: bus.Operator, Log: d.Log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return b, func() { b.Close(); nc.Close() }, nil
}

// connect returns the connection that the requests of one command share, and opens it
// first if there is none or if it broke: anima may have been restarted at another address.
// [run] closes it. It must not be called concurrently.
func (a *app) connect() (b *bus.Bus, err error) {
	if a.conn != nil {
		select {
		case <-a.conn.Broken():
			a.disconnect()
		default:
			return a.conn, nil
		}
	}
	a.conn, a.hangUp, err = a.bus()
	return a.conn, err
}

// disconnect closes the connection of connect.
func (a *app) disconnect() {
	if a.conn != nil {
		a.hangUp()
		a.conn = nil
	}
}

// answerTimeout is the timeout of one request of the command line.
const answerTimeout = 10 * time.Second

// ask sends one request on the command's connection and returns the answer.
func ask[Resp any](ctx context.Context, a *app, req api.Message) (Resp, error) {
	b, err := a.connect()
	if err != nil {
		return *new(Resp), err
	}
	return callFor[Resp](ctx, b, req)
}

// callFor sends one request on a connection, with a timeout of answerTimeout.
func callFor[Resp any](ctx context.Context, b *bus.Bus, req api.Message) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return bus.Call[Resp](ctx, b, req)
}

// streamed sends a request with a streamed reply and returns its answer. It fails if no
// server begins within answerTimeout, when the server sends no keep-alives any more, and
// after limit.
func streamed[Delta, Resp any](ctx context.Context, b *bus.Bus, req api.Message, limit time.Duration, each func(Delta)) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stream, err := bus.OpenStream[Delta, Resp](ctx, b, req)
	if err != nil {
		return *new(Resp), err
	}
	defer stream.Close()
	if err := begin(ctx, stream); err != nil {
		return *new(Resp), err
	}
	for {
		d, more, err := stream.Next(ctx)
		if err != nil || !more {
			return stream.Answer(), err
		}
		each(d)
	}
}

// begin waits until a server has begun the streamed reply, for at most answerTimeout.
func begin(ctx context.Context, s interface{ Begin(context.Context) error }) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return s.Begin(ctx)
}

// repeatable adds to the error of a request that may have been executed the flag with
// which the command repeats the same request. Without the flag it would make another one,
// and the money would move twice.
func (a *app) repeatable(err error, flag, value, does string) error {
	e, coded := errors.AsType[*api.Error](err)
	switch {
	case a.conn == nil: // nothing was sent
		return err
	case coded && e.Code == api.Unavailable:
	case !coded && errors.Is(err, context.Canceled):
		e = &api.Error{Code: api.Unavailable, Message: interruptedText, Next: "the request may have been executed"}
	default:
		return err
	}
	again := *e
	again.Next = fmt.Sprintf("%s; with %s %s the command %s", api.Advice(e), flag, shellQuote(value), does)
	return &again
}

// interruptedText is the message for a command that a signal has ended.
const interruptedText = "interrupted"

// interrupted returns the error of a command that a signal has ended. An error with a code
// says itself what was interrupted.
func interrupted(err error) error {
	if _, coded := errors.AsType[*api.Error](err); coded || !errors.Is(err, context.Canceled) {
		return err
	}
	return failure(api.Unavailable, strings.ReplaceAll(err.Error(), context.Canceled.Error(), interruptedText),
		"a request that was sent may have been executed: look at its result before you repeat the command")
}

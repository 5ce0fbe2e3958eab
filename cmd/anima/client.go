package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

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

// dataDir returns the data folder: the flag --data, ANIMA_DATA, or the default below the
// user's home.
func (a *app) dataDir() (string, error) {
	if a.cli.Data != "" {
		return a.cli.Data, nil
	}
	if v, ok := a.Lookup("ANIMA_DATA"); ok && v != "" {
		return v, nil
	}
	if v, ok := a.Lookup("XDG_DATA_HOME"); ok && v != "" {
		return filepath.Join(v, "anima"), nil
	}
	home, ok := a.Lookup("HOME")
	if !ok || home == "" {
		return "", api.Errorf(api.Invalid, "HOME is not set: name a data folder with --data")
	}
	return filepath.Join(home, ".local", "share", "anima"), nil
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
func (a *app) urlNamed() bool {
	url, _ := a.Lookup("ANIMA_NATS_URL")
	return a.cli.NATS != "" || url != ""
}

// dialing returns how to reach the anima that the command talks to: the one of a URL or a
// context, or the one that runs on the data folder. named reports that a URL or context
// was given; it is true also when contexts cannot be read.
func (a *app) dialing() (d bus.Dialing, named bool, err error) {
	var c clientConfig
	if err := config.Load("", &c, a.Lookup); err != nil {
		return d, false, &api.Error{Code: api.Invalid, Message: err.Error()}
	}
	if a.cli.NATS != "" {
		c.URL = a.cli.NATS
	}
	d = bus.Dialing{URL: c.URL, Token: c.Token.Reveal(), Creds: c.Creds, NKey: c.NKey.Reveal(), CA: c.CA, Name: bus.Operator, Log: slog.New(slog.DiscardHandler)}
	name, p, err := a.selectedContext()
	if err != nil {
		return d, true, err
	}
	if name != "" {
		d.URL, d.Token, d.Creds, d.NKey, d.CA = p.URL, p.Token, p.Creds, p.NKey, p.CA
	}
	if d.URL != "" {
		if d.Creds != "" {
			err = config.CheckSecretFile(d.Creds)
		}
		return d, true, err
	}
	dir, err := a.dataDir()
	if err != nil {
		return d, false, err
	}
	file := filepath.Join(dir, endpointFile)
	data, err := config.ReadSecretFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d, false, notRunning(dir)
	case err != nil:
		return d, false, fmt.Errorf("read the endpoint file: %w", err)
	}
	var ep endpoint
	if err := json.Unmarshal(data, &ep); err != nil {
		return d, false, fmt.Errorf("%s: %w; restart anima up, which writes the file again", file, err)
	}
	d.URL, d.Token, d.Creds, d.NKey, d.CA = ep.NATS, ep.Token, "", "", ""
	return d, false, nil
}

// jaeger returns the base URL of the Jaeger UI: the one of the flag or of
// ANIMA_JAEGER_URL, otherwise the one that the anima of the data folder exports to. It is
// empty if there is none.
func (a *app) jaeger(flag string) (string, error) {
	named, _ := a.Lookup("ANIMA_JAEGER_URL")
	if flag != "" {
		named = flag
	}
	if named != "" {
		base, err := jaegerBase(named)
		if err != nil {
			return "", &api.Error{Code: api.Invalid, Message: err.Error()}
		}
		return base, nil
	}
	if a.urlNamed() {
		return "", nil // traces of another anima may be in another Jaeger
	}
	if name, _, err := a.selectedContext(); err != nil || name != "" {
		return "", err
	}
	dir, err := a.dataDir()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(dir, endpointFile))
	if err != nil {
		return "", nil //nolint:nilerr // without an endpoint file there are no links; the command itself reports the fault
	}
	var ep endpoint
	_ = json.Unmarshal(data, &ep) // the command itself reports a damaged file
	return ep.Jaeger, nil
}

func notRunning(dir string) error {
	return &api.Error{
		Code: api.Unavailable, Message: "no anima is running with the data folder " + dir,
		Next: "start one with anima up, or name another's folder with --data, its NATS with --nats, or a context with --context",
	}
}

// bus connects the command to the services. The caller calls the returned function to
// close the connection.
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
		return nil, nil, &api.Error{Code: api.Unavailable, Message: err.Error()}
	}
	b, err := bus.New(nc, bus.Options{Service: bus.Operator, Log: d.Log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return b, func() { b.Close(); nc.Close() }, nil
}

// answerTimeout is the timeout of one request of the command line.
const answerTimeout = 10 * time.Second

// ask sends one request on a new connection and returns the answer.
func ask[Resp any](ctx context.Context, a *app, req api.Message) (Resp, error) {
	b, done, err := a.bus()
	if err != nil {
		return *new(Resp), err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return bus.Call[Resp](ctx, b, req)
}

const outputJSON = "json"

// print writes v as JSON, or as the text that the function writes, by the output format.
func (a *app) print(v any, text func(io.Writer)) error {
	if a.cli.Output == outputJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// show sends a request and prints the answer.
func show[Resp any](ctx context.Context, a *app, req api.Message, text func(io.Writer, Resp)) error {
	v, err := ask[Resp](ctx, a, req)
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { text(w, v) })
}

// plain replaces control characters other than newline and tab, so that text of agents
// and models cannot control the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '\uFFFD'
		}
		return r
	}, s)
}

// line returns the first line of a text, cut to n characters and made plain.
func line(s string, n int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(s); len(r) > n {
		s = string(r[:n-1]) + "…"
	}
	return plain(s)
}

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
	"text/tabwriter"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// endpoint is where a running anima is; `anima up` writes it into its data
// folder for the commands beside it.
type endpoint struct {
	NATS  string `json:"nats"`
	Token string `json:"token"`
	HTTP  string `json:"http"`
	Ops   string `json:"ops"`
}

const endpointFile = "endpoint.json"

// dataDir is the folder that up uses and the other commands look into.
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
		return "", api.Errorf(api.Invalid, "there is no HOME to keep data in: name a folder with --data")
	}
	return filepath.Join(home, ".local", "share", "anima"), nil
}

// endpoint of the anima that the command talks to.
func (a *app) endpoint() (endpoint, error) {
	ep := endpoint{NATS: a.cli.NATS}
	if ep.NATS == "" {
		ep.NATS, _ = a.Lookup("ANIMA_NATS_URL")
	}
	ep.Token, _ = a.Lookup("ANIMA_NATS_TOKEN")
	if ep.NATS != "" {
		return ep, nil
	}
	dir, err := a.dataDir()
	if err != nil {
		return ep, err
	}
	data, err := os.ReadFile(filepath.Join(dir, endpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return ep, &api.Error{
			Code: api.Unavailable, Message: "no anima is running with the data folder " + dir,
			Next: "start one with `anima up`, or name its NATS with --nats",
		}
	}
	if err != nil {
		return ep, err
	}
	if err := json.Unmarshal(data, &ep); err != nil {
		return ep, fmt.Errorf("%s: %w; start anima up again, it writes the file anew", filepath.Join(dir, endpointFile), err)
	}
	return ep, nil
}

// bus connects a command to the services. The caller calls the function it gets.
func (a *app) bus() (*bus.Bus, func(), error) {
	ep, err := a.endpoint()
	if err != nil {
		return nil, nil, err
	}
	creds, _ := a.Lookup("ANIMA_NATS_CREDS")
	log := slog.New(slog.DiscardHandler)
	nc, err := bus.Dial(bus.Dialing{URL: ep.NATS, Token: ep.Token, Creds: creds, Name: "anima-cli", Log: log})
	if err != nil {
		return nil, nil, &api.Error{Code: api.Unavailable, Message: err.Error()}
	}
	b, err := bus.New(nc, bus.Options{Service: "anima-cli", Log: log})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return b, func() { b.Close(); nc.Close() }, nil
}

// answerTimeout bounds one question of the command line.
const answerTimeout = 10 * time.Second

// ask asks one question on a connection of its own.
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

// print writes v as JSON, or as text made by the function.
func (a *app) print(v any, text func(io.Writer)) error {
	if a.cli.Output == "json" {
		enc := json.NewEncoder(a.Out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

// show asks a question and prints the answer.
func show[Resp any](ctx context.Context, a *app, req api.Message, text func(io.Writer, Resp)) error {
	v, err := ask[Resp](ctx, a, req)
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { text(w, v) })
}

// when renders a time of the contracts.
func when(micros int64) string {
	if micros == 0 {
		return "-"
	}
	return time.UnixMicro(micros).UTC().Format("2006-01-02 15:04:05")
}

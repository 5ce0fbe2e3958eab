package main

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/loop"
)

//go:embed demo/lucky.md
var luckyMD string

type upCmd struct {
	Port      *int   `help:"Port of the HTTP surface on this machine; health and NATS use the next two. 0 selects three free ports." placeholder:"8080"`
	HTTP      string `help:"Address of the HTTP surface (ANIMA_HTTP_ADDR)." placeholder:"127.0.0.1:8080"`
	Ops       string `help:"Address of health and metrics (ANIMA_OPS_ADDR)." placeholder:"127.0.0.1:9090"`
	Listen    string `help:"Listen address of NATS, for the command line (ANIMA_NATS_LISTEN)." placeholder:"127.0.0.1:4222"`
	Sync      string `help:"When writes are synced to the disk: interval, the dev profile, or always (ANIMA_SYNC)." placeholder:"interval"`
	Log       string `help:"debug, info, warn or error (ANIMA_LOG)." placeholder:"warn"`
	LogFormat string `help:"json or text (ANIMA_LOG_FORMAT)." placeholder:"json"`
	Empty     bool   `help:"Do not create the first agent."`
	Accept    bool   `name:"accept-loss" help:"Start although stores are missing or older than other stores expect; the losses are recorded."`
	Agent     string `help:"An AGENT.md to apply, as anima init writes it, instead of the first agent, Lucky." placeholder:"FILE"`

	Quiet bool `short:"q" help:"Do not print a line for each turn; without a terminal none is printed."`

	Jaeger jaegerFlag `help:"Send traces to a Jaeger and print links to them (ANIMA_JAEGER_URL); without a URL, to the one on this machine." placeholder:"URL"`
}

// Run starts everything and serves until ctx ends.
func (c upCmd) Run(ctx context.Context, a *app) error {
	dir, err := a.dataDir()
	if err != nil {
		return err
	}
	if err := c.ports(); err != nil {
		return err
	}
	first, err := c.first(a)
	if err != nil {
		return err
	}
	warnings := config.Unknown(known(), a.Environ)
	if a.env("ANIMA_NATS_URL") != "" {
		warnings = append(warnings, "ANIMA_NATS_URL is for the other commands: anima up runs its own NATS")
	}
	a.warn(append(warnings, unusedProvider(a.Lookup, dir)...))
	flags := map[string]string{
		"ANIMA_HTTP_ADDR": c.HTTP, "ANIMA_OPS_ADDR": c.Ops, "ANIMA_NATS_LISTEN": c.Listen, "ANIMA_SYNC": c.Sync,
		"ANIMA_LOG": c.Log, "ANIMA_LOG_FORMAT": c.LogFormat, "ANIMA_DATA": dir, "ANIMA_JAEGER_URL": string(c.Jaeger),
	}
	maps.DeleteFunc(flags, func(_, value string) bool { return value == "" })
	if c.Accept {
		flags["ANIMA_ACCEPT_LOSS"] = time.Now().UTC().Format(time.RFC3339)
	}
	stored, err := storedProvider(a.Lookup, dir)
	if err != nil {
		return err
	}
	s, err := a.open(ctx, dir, sendToJaeger(upLookup(a.Lookup, flags, stored)), true)
	if err != nil {
		return err
	}
	defer s.close()
	if s.jaeger != "" {
		a.warn(jaegerWarnings(ctx, s.exp.Endpoint(), s.jaeger))
	}
	gone := func() {}
	defer func() { gone() }()
	var watching sync.WaitGroup
	defer watching.Wait()
	return s.serve(ctx, func(ctx context.Context, addrs host.Addrs) (err error) {
		name := "NAME"
		if first != nil {
			if name, err = s.firstAgent(ctx, *first, c.Agent != ""); err != nil {
				return err
			}
		}
		if gone, err = s.writeEndpoint(addrs); err != nil {
			return err
		}
		if err := a.banner(ctx, s, addrs, name); err != nil {
			return err
		}
		if isTerminal(a.Out) && !c.Quiet && !a.json() {
			watching.Go(func() { s.printTurns(ctx, a.Out) })
		}
		return nil
	})
}

// warn prints warnings on standard error.
func (a *app) warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(a.Err, "anima: warning:", w)
	}
}

// ports derives the addresses that no flag sets from --port.
func (c *upCmd) ports() error {
	if c.Port == nil {
		return nil
	}
	first, step := *c.Port, 1
	if first == 0 {
		step = 0
	}
	if first < 0 || first+2*step > 65535 {
		return failure(api.Invalid, fmt.Sprintf("--port %d leaves no room for three ports", first), "give a port from 1 to 65533, or 0 for free ones")
	}
	for i, addr := range []*string{&c.HTTP, &c.Ops, &c.Listen} {
		if *addr == "" {
			*addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i*step))
		}
	}
	return nil
}

// agentFile is an AGENT.md and the id of its agent.
type agentFile struct{ id, source string }

// first returns the agent that up creates; nil means none. It reports faults of the
// AGENT.md before anything is started.
func (c upCmd) first(a *app) (*agentFile, error) {
	if c.Agent == "" {
		if c.Empty {
			return nil, nil
		}
		return &agentFile{"lucky", luckyMD}, nil
	}
	src, err := a.readText(c.Agent, "name an AGENT.md; anima init writes one")
	if err != nil {
		return nil, err
	}
	id, faults := loop.CheckAgentFile([]byte(src))
	if len(faults) > 0 {
		return nil, failure(api.Invalid, c.Agent+" has faults; nothing was started", "correct them", faults...)
	}
	return &agentFile{id, src}, nil
}

// firstAgent applies the AGENT.md of b and returns the name of an agent to talk with. If
// the operator did not name the file, it does so only in a new installation: an agent that
// was deleted stays deleted, and its sessions are kept. A new agent gets a deposit before
// it is created. The deposit has a fixed id, so that after a crash in between the next
// start does not deposit again.
func (s *suite) firstAgent(ctx context.Context, b agentFile, named bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err := bus.Call[api.Agent](ctx, s.bus, api.GetAgent{Agent: b.id})
	exists := err == nil
	if !exists && api.CodeOf(err) != api.NotFound {
		return "", err
	}
	if !named {
		past, err := bus.Call[api.Sessions](ctx, s.bus, api.ListSessions{Limit: 1})
		if err != nil {
			return "", err
		}
		if len(past.Sessions) > 0 {
			return s.anyAgent(ctx, b.id, exists)
		}
	}
	if !exists {
		if err := s.fundFirstAgent(ctx, b.id); err != nil {
			return "", err
		}
	}
	g, err := bus.Call[api.Agent](ctx, s.bus, api.ApplyAgent{Source: b.source})
	for _, warning := range g.Warnings {
		s.log.Warn("the agent cannot use all tools of its AGENT.md", "agent", b.id, "why", warning)
	}
	return b.id, err
}

// anyAgent returns the preferred agent if it exists, else another one, else NAME.
func (s *suite) anyAgent(ctx context.Context, preferred string, exists bool) (string, error) {
	if exists {
		return preferred, nil
	}
	all, err := bus.Call[api.Agents](ctx, s.bus, api.ListAgents{Limit: 1})
	if err != nil || len(all.Agents) == 0 {
		return "NAME", err
	}
	return all.Agents[0].ID, nil
}

func (s *suite) fundFirstAgent(ctx context.Context, id string) error {
	if _, err := bus.Call[api.Account](ctx, s.bus, api.OpenAccount{Agent: id}); err != nil {
		return err
	}
	_, err := bus.Call[api.Posted](ctx, s.bus, api.Deposit{
		ID: "first-money-" + id, Agent: id, Amount: 5 * api.Dollar, Source: "faucet", Memo: "a start in life",
	})
	if api.CodeOf(err) == api.Denied {
		s.log.Warn("the first agent has no money: the faucet is off", "agent", id)
		return nil
	}
	return err
}

// upView is the output of up after the start.
type upView struct {
	Version  string `json:"version"`
	HTTP     string `json:"http,omitempty"`
	Ops      string `json:"ops,omitempty"`
	NATS     string `json:"nats"`
	Token    string `json:"token"` // path of its file, not its value
	Data     string `json:"data"`
	Database string `json:"database"`
	Writes   string `json:"writes"`
	Model    string `json:"model"`
	Chain    string `json:"chain,omitempty"`  // JSON-RPC of the dev chain
	Traces   string `json:"traces,omitempty"` // address that traces are exported to
	Jaeger   string `json:"jaeger,omitempty"` // URL of the Jaeger UI
}

// banner prints the addresses, the mode in which writes are synced, and the agent to talk
// to.
func (a *app) banner(ctx context.Context, s *suite, addrs host.Addrs, agent string) error {
	models, err := callFor[api.Models](ctx, s.bus, api.ListModels{})
	if err != nil {
		return err
	}
	v := upView{
		Version: host.Version(), HTTP: localURL(addrs.HTTP), Ops: localURL(addrs.Ops), NATS: s.server.ClientURL(),
		Token: "in " + filepath.Join(s.dir, "token"), Data: s.dir, Database: "SQLite in " + s.dir,
		Writes: "interval: a power cut may take the last two minutes, a crash nothing (dev profile; --sync always keeps every write)",
		Model:  a.modelInUse(models), Traces: s.exp.Endpoint(), Jaeger: s.jaeger, Chain: s.chain.url(),
	}
	if s.tokenSet {
		v.Token = "the one of ANIMA_TOKEN"
	}
	if s.cfg.Sync == host.SyncAlways {
		v.Writes = "always: every acknowledged write is on the disk"
	}
	if s.cfg.DatabaseURL.Reveal() != "" {
		v.Database = "PostgreSQL"
	}
	health, metrics := "none", "none"
	if v.Ops != "" {
		health, metrics = v.Ops+"/readyz", v.Ops+"/metrics"
	}
	nats := "none (ANIMA_NATS_LISTEN is empty: the other commands cannot reach it)"
	if v.NATS != "" {
		nats = v.NATS + " (same token)"
	}
	at := ""
	if a.cli.Data != "" { // the commands of the banner need it, too
		at = " --data " + shellQuote(a.cli.Data)
	}
	chain := ""
	if v.Chain != "" {
		chain = v.Chain + " (dev chain, starts with its first use: " + a.named("anima wallet fund NAME 5") + at + ")"
	}
	traces := v.Traces
	switch {
	case traces == "":
		traces = a.named("not sent (anima up --jaeger sends them to the Jaeger of make jaeger)")
	case v.Jaeger != "":
		traces += ", shown by " + v.Jaeger
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "anima %s is up\n\n", v.Version)
		fields(w, "  http", cmp.Or(v.HTTP, "none"), "  token", v.Token, "  health", health, "  metrics", metrics, "  nats", nats,
			"  data", v.Data, "  database", v.Database, "  writes", v.Writes, "  model", v.Model, "  chain", chain, "  traces", traces)
		fmt.Fprint(w, a.named("\n  anima agent list"), at, "\tlist the agents\n", a.named("  anima chat "+agent), at, "\ttalk with it\n",
			a.named("  anima demo\trun one complete example\n"))
	})
}

// modelInUse describes the first model that can be used.
func (a *app) modelInUse(v api.Models) string {
	i := slices.IndexFunc(v.Models, func(m api.Model) bool { return m.Usable })
	switch {
	case i >= 0 && v.Models[i].Provider == simulated:
		return a.named("simulated, because no provider is configured (set OPENAI_API_KEY, OPENAI_BASE_URL or OLLAMA_HOST for a real one, or store one with anima init)")
	case i >= 0:
		return v.Models[i].Provider
	case len(v.Faults) > 0:
		return "none yet: no list of models from " + v.Faults[0]
	}
	return a.named("none can be used: anima model list says why")
}

// Package router implements the service inference-router: it selects a model for each
// model call, holds credits at treasury, calls the provider, stores the answer and
// settles its cost. A repeated call gets the stored answer, so it is paid once. Only this
// service has the keys of the providers.
//
// The package must not depend on the state of an agent or on the purpose of a call; a
// request carries the tier, the task and the prompt.
package router

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/inference-router/internal/admission"
	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
	"github.com/anima-run/anima/services/inference-router/internal/ratelimit"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// Config holds the settings of the service.
type Config struct {
	OpenAIKey config.Secret `env:"OPENAI_API_KEY,exact" help:"key of OpenAI, or of the service at OPENAI_BASE_URL"`
	OpenAIURL string        `env:"OPENAI_BASE_URL,exact" help:"base URL of an OpenAI-compatible service, with the version: http://127.0.0.1:11434/v1; the router reads its list of models"`
	Ollama    string        `env:"OLLAMA_HOST,exact" help:"address of an Ollama server, in the form that Ollama uses: 127.0.0.1:11434; with or without OPENAI_*"`
	ClaudeKey config.Secret `env:"ANTHROPIC_API_KEY,exact" help:"key of Anthropic, or of the service at ANTHROPIC_BASE_URL; with or without OPENAI_*"`
	ClaudeURL string        `env:"ANTHROPIC_BASE_URL,exact" help:"base URL of an Anthropic-compatible service, without the version"`
	RawKey    bool          `env:"raw_key" help:"send OPENAI_API_KEY without the word Bearer"`
	OpenAIAPI string        `env:"openai_api" oneof:"chat|responses" help:"protocol of OPENAI_BASE_URL: chat completions or responses"`
	ConwayKey config.Secret `env:"CONWAY_API_KEY,exact" help:"key of Conway's API, which is sent without the word Bearer; with or without OPENAI_*"`
	ConwayURL string        `env:"CONWAY_API_URL,exact" help:"base URL of Conway's API or of a compatible service, without the version"`
	Others    []string      `env:"providers" help:"further providers, as name=kind:url with the kind chat, responses, raw-chat, raw-responses (key without the word Bearer) or anthropic, like groq=chat:https://api.groq.com/openai/v1"`
	OtherKeys config.Secret `env:"provider_keys" help:"keys of the further providers, as name=key, separated by commas"`
	Models    []string      `env:"models" help:"models, as id=input/output/context: two prices in dollars per million tokens and the context window in tokens; 0/0 is free; with /vision after it the model sees images; these models are tried after those of the routing matrix; not needed for a service that lists its models with prices"`
	Local     string        `env:"local" oneof:"auto|yes|no" help:"whether models without a known price are free: yes, no, or auto, which is yes for services on this machine or in a private network"`
	Simulated bool          `env:"simulated" help:"use the simulated model also where a provider is configured"`
	Script    string        `env:"script" help:"script of the simulated model, a JSON file; empty: the script of the demo"`
	Workers   int           `env:"workers" help:"maximum number of concurrent model calls in this process"`
	Queue     int           `env:"queue" help:"maximum number of model calls that wait in this process while it makes as many as it can; calls for safety_check and heartbeat_triage begin first"`
	Memory    int           `env:"request_memory" help:"total size of the requests in progress in MiB; 0: an eighth of the process's memory limit (GOMEMLIMIT), at most 512; further requests of more than 64 KiB wait, and are refused after 10s"`
	Rates     []string      `env:"rates" help:"rates that providers allow, as provider=requests/tokens a minute, like openai=500/200000; 0 is no limit; with several replicas each has its own share; the router waits or calls another provider instead of exceeding them"`
	Endpoints config.Secret `env:"endpoints" help:"more endpoints of the providers, for the same models, as provider=url|key; an empty url or key is that of the provider, as in openai=|second-key; calls are balanced over them"`
	Hedge     string        `env:"hedge" help:"when a call without a first token makes a second attempt at another endpoint or model: off, p95 for the 95th percentile of the earlier calls to the model, or a time like 2s; the first attempt with a token is used, and both are paid"`
	Attempts  int           `env:"attempts" help:"maximum number of attempts for one model call, over all providers; a call is repeated after a transient failure"`
	Failures  int           `env:"run_failures" help:"maximum number of failed attempts in one run, over all its model calls"`
	First     time.Duration `env:"first_token_timeout" help:"how long a model may take to its first token before the call is repeated; 0: 60s, and no separate limit for servers on this machine or in a private network, which may have to load the model"`
	Between   time.Duration `env:"token_timeout" help:"how long a model may pause between two tokens before the call is repeated"`
	Breaker   time.Duration `env:"breaker" help:"how long a model is not called after 5 calls in a row have failed within 60s; then one call tries it"`
}

// Validate reports the first setting that is out of range or cannot be parsed.
func (c *Config) Validate() error {
	if c.Workers < 1 {
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_WORKERS is %d: at least 1 is needed", c.Workers)
	}
	switch {
	case c.Queue < 0:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_QUEUE is %d: it cannot be negative", c.Queue)
	case c.Memory < 0:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_REQUEST_MEMORY is %d: it cannot be negative", c.Memory)
	case c.Attempts < 1:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_ATTEMPTS is %d: at least 1 is needed", c.Attempts)
	case c.Failures < 1:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_RUN_FAILURES is %d: at least 1 is needed", c.Failures)
	case c.First < 0:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_FIRST_TOKEN_TIMEOUT is %s: it cannot be negative", c.First)
	case c.Between <= 0:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_TOKEN_TIMEOUT is %s: it must be more than 0", c.Between)
	case c.Breaker <= 0:
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_BREAKER is %s: it must be more than 0", c.Breaker)
	}
	if _, err := parseHedge(c.Hedge); err != nil {
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_HEDGE: %w", err)
	}
	if _, err := ratelimit.Parse(c.Rates); err != nil {
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_RATES: %w", err)
	}
	if _, err := parseOthers(c.Others, c.OtherKeys); err != nil {
		return err
	}
	if _, err := extraModels(c.Models); err != nil {
		return err
	}
	_, err := sourcesOf(*c, &http.Client{}, time.Now) // makes no request; finds wrong addresses and a wrong script
	return err
}

// Service is the definition of inference-router for package host.
var Service = host.Define("inference-router", Config{Workers: 256, Queue: 512, OpenAIAPI: apiChat, Local: "auto", Hedge: hedgeOff, Attempts: 4, Failures: 12, Between: 30 * time.Second, Breaker: health.OpenFor}, sqlstore.Migrations(), run)

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // all transactions are committed by now
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	sources, stop, err := open(env, cfg)
	if err != nil {
		return err
	}
	defer stop()
	models := newCatalog(env.Log, env.Now, sqlstore.New(db), sources)
	if err := models.open(ctx, env.Bus); err != nil {
		return err
	}
	if err := models.observe(tel); err != nil {
		return err
	}
	rates, err := ratelimit.Parse(cfg.Rates)
	if err != nil {
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_RATES: %w", err)
	}
	routes, err := newRouteHealth(ctx, env.Bus, cfg.Breaker, env.Now, env.Log)
	if err != nil {
		return err
	}
	if err := routes.observe(env.Meter); err != nil {
		return err
	}
	h := &handlers{
		log: env.Log, now: env.Now, bus: env.Bus, store: sqlstore.New(db), models: models, rates: ratelimit.New(rates), health: routes,
		limits:  limits{attempts: cfg.Attempts, failures: cfg.Failures, patience: provider.TokenTimeouts{First: cfg.First, Between: cfg.Between}},
		sources: byName(sources), unsettled: make(chan struct{}, 1), tracer: env.Tracer.Tracer("github.com/anima-run/anima/services/inference-router"), tel: tel,
	}
	for name := range h.sources {
		tel.hedge(ctx, name, "made", 0) // so that the first hedge is an increase
	}
	if h.hedges.mode, err = parseHedge(cfg.Hedge); err != nil {
		return fmt.Errorf("ANIMA_INFERENCE_ROUTER_HEDGE: %w", err)
	}
	h.gate = admission.New(cfg.Workers, cfg.Queue, env.Now, tel.refused)
	memory := requestMemory(cfg.Memory)
	h.memory = admission.NewMemory(memory, func() { tel.refused(admission.Normal) })
	h.httpMemory = h.memory.Part(memory / httpShare)
	if err := tel.observe(h.gate); err != nil {
		return err
	}
	attempts, err := bus.OpenBucket[api.AttemptQuery](ctx, env.Bus)
	if err != nil {
		return err
	}
	h.questions = &questions{log: env.Log, bucket: attempts, owner: env.Bus.Owner(), mine: &h.working}
	if h.matrix, err = openMatrix(ctx, env, tel); err != nil {
		return err
	}
	h.settler.most, h.settler.send, h.settler.pause = api.MaxSettlements, h.sendSettlements, h.groupPause
	h.recorder.most, h.recorder.send, h.recorder.pause = sqlstore.MaxRecords, h.storeRecords, h.groupPause
	h.httpRoutes(env.HTTP)
	// The questions are answered until the last call has ended, which is after the drain of the
	// bus. A replica without an answer would pay an attempt that is in progress here as lost,
	// and make another one.
	asked, unasked := context.WithCancel(context.WithoutCancel(ctx))
	var answering sync.WaitGroup
	defer answering.Wait()
	defer unasked()
	broken := make(chan error, 1)
	answering.Go(func() { broken <- h.questions.run(asked) })
	// A call that finds no free slot is refused at first, so that it begins at another
	// replica; if none has one, it waits in the gate.
	atOnce := h.gate.Normal()
	limits := []bus.Limit{bus.Workers(atOnce), bus.Queue(cfg.Workers - atOnce + cfg.Queue)}
	return env.Serve(ctx,
		bus.Stream(h.complete, limits...),
		bus.Stream(h.completeV2, limits...),
		bus.Reply(h.confirm),
		bus.Reply(h.listModels),
		bus.Reply(h.explainRoute),
		bus.Reply(models.add),
		bus.Reply(models.setPrice),
		bus.Reply(models.remove),
		bus.Reply(models.prices),
		bus.Reply(h.refreshModels),
		bus.Reply(h.matrix.get),
		bus.Reply(h.matrix.set),
		executor.Routes[api.ListInferenceTools, api.CallInferenceTool](env.Bus, env.Now, h.tools(), nil),
		bus.Go(h.settleLeftovers),
		bus.Go(models.run),
		bus.Go(models.watch),
		bus.Go(routes.run),
		bus.Go(func(ctx context.Context) error {
			select {
			case err := <-broken:
				return err
			case <-ctx.Done():
				return nil
			}
		}),
		bus.Go(h.matrix.watch),
	)
}

// open returns the configured providers, or the simulated provider when none is
// configured. The returned function closes the idle connections.
func open(env *host.Env, cfg Config) ([]*source, func(), error) {
	client := &http.Client{Transport: telemetry.NewTransport(transport(cfg.Workers, maxSilence))}
	sources, err := sourcesOf(cfg, client, env.Now)
	if err == nil && sources[0].provider.Name() == simulated.Name {
		env.Log.Warn("the model is simulated: no provider is configured")
	}
	return sources, client.CloseIdleConnections, err
}

// sourcesOf returns the providers of the settings with their endpoints, or the simulated
// provider when none is configured. It makes no request.
func sourcesOf(cfg Config, client *http.Client, now func() time.Time) ([]*source, error) {
	sources, err := configured(cfg, client, now)
	if err == nil && len(sources) == 0 {
		sources, err = simulatedSources(cfg)
	}
	if err == nil {
		err = addEndpoints(sources, cfg.Endpoints)
	}
	return sources, err
}

// configured returns the providers of the settings, and none when the settings ask for
// the simulated model. The models of the settings belong to the first provider.
func configured(cfg Config, client *http.Client, now func() time.Time) ([]*source, error) {
	if cfg.Simulated {
		return nil, nil
	}
	var sources []*source
	add := func(c endpoint, setting string) error {
		s, err := c.source(cfg, client, now)
		if err != nil {
			return fmt.Errorf("%s: %w", setting, err)
		}
		sources = append(sources, s)
		return nil
	}
	if cfg.OpenAIKey.Reveal() != "" || cfg.OpenAIURL != "" {
		url := cfg.OpenAIURL
		if url == "" {
			url = openAIURL
		}
		if err := add(endpoint{name: "openai", url: url, key: cfg.OpenAIKey.Reveal(), raw: cfg.RawKey, kind: cfg.OpenAIAPI}, "OPENAI_BASE_URL"); err != nil {
			return nil, err
		}
		sources[0].official = cfg.OpenAIURL == ""
	}
	if cfg.ClaudeKey.Reveal() != "" || cfg.ClaudeURL != "" {
		c := endpoint{name: "anthropic", url: cmp.Or(cfg.ClaudeURL, anthropicURL), key: cfg.ClaudeKey.Reveal(), kind: apiAnthropic}
		if err := add(c, "ANTHROPIC_BASE_URL"); err != nil {
			return nil, err
		}
		s := sources[len(sources)-1]
		s.official, s.local = cfg.ClaudeURL == "", false
	}
	if cfg.ConwayKey.Reveal() != "" || cfg.ConwayURL != "" {
		c := endpoint{name: conway, url: conwayBase(cfg.ConwayURL), key: cfg.ConwayKey.Reveal(), raw: true, kind: apiChat}
		if err := add(c, "CONWAY_API_URL"); err != nil {
			return nil, err
		}
	}
	others, err := parseOthers(cfg.Others, cfg.OtherKeys)
	if err != nil {
		return nil, err
	}
	for _, c := range others {
		if err := add(c, settingProviders); err != nil {
			return nil, err
		}
	}
	if cfg.Ollama != "" {
		url, err := ollamaURL(cfg.Ollama)
		if err != nil {
			return nil, err
		}
		if err := add(endpoint{name: ollama, url: url, kind: apiChat}, "OLLAMA_HOST"); err != nil {
			return nil, err
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	extra, err := extraModels(cfg.Models)
	if err != nil {
		return nil, err
	}
	for i := range extra {
		extra[i].Provider = sources[0].provider.Name()
	}
	sources[0].static = extra
	return sources, nil
}

// simulatedSources returns the simulated provider, with the models of the settings.
func simulatedSources(cfg Config) ([]*source, error) {
	script, err := loadScript(cfg.Script)
	if err != nil {
		return nil, err
	}
	p, err := simulated.New(script)
	if err != nil {
		return nil, fmt.Errorf("script of the simulated model: %w", err)
	}
	extra, err := extraModels(cfg.Models)
	if err != nil {
		return nil, err
	}
	another := func(string, string) (provider.Provider, error) { return simulated.New(script) }
	return []*source{{provider: p, another: another, static: append(extra, simulatedModel(script))}}, nil
}

func byName(sources []*source) map[string]*source {
	all := map[string]*source{}
	for _, s := range sources {
		all[s.provider.Name()] = s
	}
	return all
}

// simulatedModel returns the model of a script. It has a price, so that simulated calls
// also use holds and settlements.
func simulatedModel(s simulated.Script) model.Model {
	return model.Model{
		ID: s.Model, Provider: simulated.Name, ContextWindow: 128_000, MaxOutput: 4096, InputPrice: 1_000_000, OutputPrice: 4_000_000,
		Known: true, Tools: true, TierMinimum: api.TierCritical, Fallback: true,
	}
}

func loadScript(path string) (simulated.Script, error) {
	if path == "" {
		return simulated.Default()
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return simulated.Script{}, fmt.Errorf("ANIMA_INFERENCE_ROUTER_SCRIPT: %w", err)
	}
	s, err := simulated.Parse(data)
	if err != nil {
		return s, fmt.Errorf("ANIMA_INFERENCE_ROUTER_SCRIPT %s: %w", path, err)
	}
	return s, nil
}

// extraModels parses the models of the settings, in the form id=input/output/context or
// id=input/output/context/vision.
func extraModels(list []string) ([]model.Model, error) {
	var out []model.Model
	for _, item := range list {
		id, rest, ok := strings.Cut(strings.TrimSpace(item), "=")
		rest, vision := strings.CutSuffix(rest, "/vision")
		parts := strings.Split(rest, "/")
		if !ok || id == "" || len(parts) != 3 {
			return nil, fmt.Errorf("ANIMA_INFERENCE_ROUTER_MODELS: %q is not id=input/output/context, like llama3.3=0/0/128000, or id=input/output/context/vision", item)
		}
		in, err1 := api.ParseMicros(parts[0])
		outPrice, err2 := api.ParseMicros(parts[1])
		window, err3 := strconv.ParseInt(parts[2], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil || window <= 0 {
			return nil, fmt.Errorf("ANIMA_INFERENCE_ROUTER_MODELS: %q has a price or a context window that is not a number", item)
		}
		out = append(out, model.Model{
			ID: id, Provider: "openai", InputPrice: int64(in), OutputPrice: int64(outPrice), Known: true, ContextWindow: window,
			MaxOutput: max(1, min(4096, window/4)), // at most a quarter of the window, the rest is for the prompt
			Tools:     true, Vision: vision, TierMinimum: api.TierCritical, Fallback: true,
		})
	}
	return out, nil
}

type handlers struct {
	log         *slog.Logger
	now         func() time.Time
	bus         *bus.Bus
	store       *sqlstore.Store
	models      *catalog
	health      *routeHealth
	matrix      *matrix
	sources     map[string]*source // by name of the provider
	limits      limits
	gate        *admission.Gate
	memory      *admission.Memory
	httpMemory  *admission.Memory // the part for requests over HTTP
	rates       *ratelimit.Limiter
	calls       callGroup
	toolLists   toolLists
	tiers       tiers
	recorder    recorder
	settler     settler
	unsure      unsure
	unpaid      unpaid
	working     working
	questions   *questions
	hedges      hedges
	singleUntil atomic.Int64  // until this time, in Unix µs, settlements are sent one by one
	unsettled   chan struct{} // signals settleLeftovers that settling failed
	tracer      trace.Tracer
	tel         *instruments
}

package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/lease"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/egress"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/notes"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/session"
	"github.com/anima-run/anima/services/loop/internal/skill"
	"github.com/anima-run/anima/services/loop/internal/soul"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/builtin"
	"github.com/anima-run/anima/services/loop/internal/tools/mcp"
)

const scope = "github.com/anima-run/anima/services/loop" // instrumentation scope of the spans

// handlers serves the requests about agents, sessions and runs, and holds the parts of
// the service.
type handlers struct {
	cfg     Config
	bus     *bus.Bus
	log     *slog.Logger
	now     func() time.Time
	store   *sqlstore.Store
	relay   *outbox.Relay
	clients clients
	wakes   *bus.Bucket[api.Wake]
	locks   session.Locks
	leases  goalLeases
	queue   *session.Queue
	begins  *session.Begins
	expiry  session.Expiry
	ingest  *ingestion
	outputs outputs
	room    func() error // error while the disk has only its reserve and no message may be accepted
	engine  *engine.Engine
	running metric.Int64UpDownCounter

	goals    *goalHandlers
	memories memoryHandlers
	replays  replayHandlers
	tools    toolHandlers
	owners   *owners
	servers  *mcp.Manager
	proxy    *egress.Proxy
}

// newHandlers builds the service. It starts the proxy of commands, and nothing else.
func newHandlers(ctx context.Context, env *host.Env, cfg Config, db *sqldb.DB) (*handlers, error) {
	dir, err := env.Folder()
	if err != nil {
		return nil, err
	}
	workspaces, err := filepath.Abs(filepath.Join(dir, "workspaces"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(workspaces, 0o700); err != nil {
		return nil, fmt.Errorf("create workspaces: %w", err)
	}
	h := &handlers{
		cfg: cfg, bus: env.Bus, log: env.Log, now: env.Now, room: env.Room, store: sqlstore.New(db, workspaces),
		relay: outbox.NewRelay(db, env.Bus, env.Log), clients: newClients(env.Bus, env.Now), queue: session.NewQueue(env.Bus, env.Log),
		outputs: outputs{bus.NewObjects(env.Bus, api.Outputs)}, owners: newOwners(env.Bus, env.Log),
	}
	if err := h.openBuckets(ctx, env); err != nil {
		return nil, err
	}
	h.goals = newGoals(h)
	h.memories = newMemories(h.store, env.Now)
	h.ingest = newIngestion(h.memories.store, env.Now, env.Log)
	h.memories.memory.Shown = h.ingest.shown
	h.expiry = session.Expiry{
		Store: h.store, Queue: h.queue, Begun: h.locks.Journal.InProgress, Limit: cfg.QueueTimeout, Now: env.Now,
		Drop: func(ctx context.Context, end engine.End) error {
			return h.engine.Drop(ctx, end, session.NewEvents(h.bus))
		},
	}
	h.begins = session.NewBegins(func(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) error {
		defer h.relay.Wake()
		return h.store.Announced(ctx, cmd, input, tier, at)
	}, h.expiry.Soon, env.Log)
	souls := &soul.Keeper{Store: h.memories.store, Now: env.Now}
	if err := h.openTools(ctx, env, dir, souls); err != nil {
		return nil, err
	}
	if err := h.openEngine(env, souls); err != nil {
		h.close()
		return nil, err
	}
	addFailpoints(h)
	h.replays = replayHandlers{store: h.store, journal: h.locks.Journal, clients: h.clients, models: h.engine.Context.Models, tools: h.engine.Tools}
	return h, nil
}

func (h *handlers) openBuckets(ctx context.Context, env *host.Env) error {
	var err error
	if h.wakes, err = bus.OpenBucket[api.Wake](ctx, env.Bus); err != nil {
		return err
	}
	locks, err := bus.OpenBucket[api.Lock](ctx, env.Bus)
	if err != nil {
		return err
	}
	leases, err := bus.OpenBucket[api.Lease](ctx, env.Bus)
	if err != nil {
		return err
	}
	h.locks = session.NewLocks(locks, session.Journal{Bus: env.Bus}, env.Bus.Owner(), h.cfg.Lease, env.Now, env.Log)
	h.leases = goalLeases{bucket: leases, owner: env.Bus.Owner(), ttl: h.cfg.Lease, now: env.Now, log: env.Log, mine: &sync.Map{}}
	return nil
}

// openTools builds the tools that agents can call, and starts the proxy through which
// their commands reach the network.
func (h *handlers) openTools(ctx context.Context, env *host.Env, dir string, souls *soul.Keeper) error {
	held := sandbox.Probe(ctx)
	if !held.Sandboxed() {
		env.Log.Warn("the kernel cannot sandbox commands: exec is refused unless ANIMA_LOOP_ALLOW_UNSANDBOXED is set",
			"landlock_abi", held.LandlockABI, "allowed", h.cfg.AllowUnsandboxed)
	}
	allowed, err := h.cfg.egressAllow()
	if err != nil {
		return err
	}
	if h.proxy, err = egress.Start(ctx, egress.Options{Allow: allowed, Log: env.Log}); err != nil {
		return err
	}
	cfg := tools.Config{
		AllowUnsandboxed: h.cfg.AllowUnsandboxed, NPM: sandbox.Finds("npm"), Egress: h.proxy, Quota: h.cfg.quota(), Room: env.Room, Now: env.Now,
	}
	h.servers = mcp.New(mcp.Config{Config: cfg, Dir: filepath.Join(dir, "mcp"), Log: env.Log, Tracer: env.Tracer.Tracer(scope)})
	all := builtin.All(cfg, h.store, h.clients)
	for _, t := range slices.Concat(
		h.owners.tools(), goal.Tools(h.goals.orchestrator), memory.Tools(h.memories.memory), soul.Tools(souls), skill.Tools(cfg),
		[]engine.Tool{h.servers.Installer()},
	) {
		all[t.Name] = t
	}
	for _, name := range writers() {
		all[name] = limited(all[name], cfg.Quota, env.Room)
	}
	all["git_clone"] = watched(all["git_clone"], cfg.Quota, env.Room)
	h.tools = toolHandlers{store: h.store, bus: env.Bus, tools: all, servers: h.servers, exec: held.Sandboxed() || cfg.AllowUnsandboxed}
	return nil
}

func (h *handlers) openEngine(env *host.Env, souls *soul.Keeper) error {
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	h.running = tel.running
	h.engine = &engine.Engine{
		Store: timedStore{h.store}, Journal: h.locks.Journal, Router: h.clients, Policy: policyClient{executor.NewKeys(env.Bus), env.Bus},
		Inbox: h.clients, Treasury: h.clients, Topups: h.clients, Queue: h.queue, Alarms: h.clients, Outputs: h.outputs, Tools: h.tools.tools, Toolbox: h.servers,
		Context: engine.Context{
			Store: h.store, Models: &models{bus: env.Bus, now: env.Now}, Memory: h.memories.memory,
			Sources:   slices.Concat([]engine.Source{souls}, skill.Sources(), []engine.Source{&goal.Source{Store: h.store}}, notes.Sources()),
			Revisions: h.memories.store.Revisions,
		},
		Now: env.Now, Root: rootSpan(env.Tracer), Ending: rootEnding, Tracer: env.Tracer.Tracer(scope),
		Attempts: h.cfg.Attempts, Observe: tel, Within: bus.Within, Begun: h.begins.Begun, Over: h.runEnded,
	}
	return nil
}

func (h *handlers) close() {
	h.servers.Close()
	h.proxy.Close()
}

// runEnded starts what waits for the end of a run: the ingestion of its turns into
// memory, and the goal that the run works for.
func (h *handlers) runEnded(ctx context.Context, m api.LoopEnd) error {
	h.ingest.gather(m.Session)
	return h.goals.ended(ctx, m)
}

// background returns the work that no request starts.
func (h *handlers) background(env *host.Env, db *sqldb.DB) []bus.Route {
	return []bus.Route{
		bus.Go(h.watchWakes),
		bus.Go(h.sweep),
		bus.Go(h.sweepBalances),
		bus.Go(h.ingest.run),
		bus.Go(h.begins.Run),
		bus.Go(h.queue.Listen),
		bus.Go(h.owners.run),
		bus.Go(h.servers.Run),
		bus.Go(h.relay.Run),
		bus.Go(h.tidy),
		bus.Go(func(ctx context.Context) error { return h.settleLosses(ctx, db) }),
		bus.Go(func(ctx context.Context) error { return telemetry.Resolve(ctx, env.Tracer, h.turnEnded) }),
	}
}

// tidyEvery is the interval at which expired locks and leases are deleted.
const tidyEvery = time.Hour

// tidy deletes expired locks and leases of goals at the start, again after the length of
// a lease, and then every tidyEvery. Those that it leaves do not block other owners.
func (h *handlers) tidy(ctx context.Context) error {
	for pause := h.cfg.Lease + time.Second; ; pause = tidyEvery {
		err := errors.Join(h.locks.Sweep(ctx), lease.Sweep(ctx, h.leases.bucket, api.LeaseKey("goal.*"), h.leases.owner, h.now()))
		if err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "expired locks and leases not deleted", "err", err)
		}
		if wait.For(ctx, pause) != nil {
			return nil
		}
	}
}

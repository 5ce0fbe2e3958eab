// Package loop runs agents: it accepts messages durably, locks sessions, builds
// prompts, executes turns and persists them. It does not decide about models, rules or
// money; it calls the services that own them.
//
// It must not be given key material of any wallet or provider, and it must not execute
// a tool without a decision token of policy.
package loop

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/egress"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
	"github.com/anima-run/anima/services/loop/internal/mcp"
	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/notes"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/skill"
	"github.com/anima-run/anima/services/loop/internal/soul"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
	"github.com/anima-run/anima/services/loop/internal/tool"
)

// Config holds the settings of the service.
type Config struct {
	Slots            int           `env:"slots" help:"runs executed at a time in this process"`
	Lease            time.Duration `env:"lease" help:"time for which a session stays locked after its owner crashed; at least 1s"`
	Attempts         int           `env:"attempts" help:"attempts at one turn before its run is given up"`
	QueueTimeout     time.Duration `env:"queue_timeout" help:"upper limit on the time that a message waits for its session behind other messages; an AGENT.md sets the time, by default 30s"`
	MailSenderRuns   int           `env:"mail_sender_runs" help:"runs that mail of one sender may start within a day; further mail waits in the inbox"`
	MailAgentRuns    int           `env:"mail_agent_runs" help:"runs that mail of all senders may start within a day, for each agent"`
	MailSenderCost   int64         `env:"mail_sender_cost" help:"micro-USD that runs for mail of one sender may cost within a day, for each agent; 0: no bound"`
	MailAgentCost    int64         `env:"mail_agent_cost" help:"micro-USD that runs for mail may cost an agent within a day; 0: no bound"`
	WorkspaceMiB     int64         `env:"workspace_mib" help:"MiB that an agent's folder may take on the disk; 0: no bound"`
	WorkspaceFiles   int64         `env:"workspace_files" help:"files and folders that an agent's folder may hold; 0: no bound"`
	EgressAllow      []string      `env:"egress_allow" help:"addresses (CIDR) that are not public, but that commands with a network may reach, such as a mirror of packages"`
	AllowUnsandboxed bool          `env:"allow_unsandboxed" help:"run commands even if the kernel cannot sandbox them (no Landlock); only for machines that have no other data"`
}

// Validate returns an error for a setting that cannot work.
func (c *Config) Validate() error {
	switch {
	case c.Slots < 1:
		return fmt.Errorf("ANIMA_LOOP_SLOTS is %d: at least 1 is needed", c.Slots)
	case c.Lease < bus.MinTTL:
		return fmt.Errorf("ANIMA_LOOP_LEASE is %s: at least %s is needed", c.Lease, bus.MinTTL)
	case c.QueueTimeout <= 0:
		return fmt.Errorf("ANIMA_LOOP_QUEUE_TIMEOUT is %s: it must be more than 0", c.QueueTimeout)
	case c.WorkspaceMiB < 0 || c.WorkspaceMiB > 1<<30:
		return fmt.Errorf("ANIMA_LOOP_WORKSPACE_MIB is %d: use a number of MiB, or 0 for no bound", c.WorkspaceMiB)
	case c.WorkspaceFiles < 0:
		return fmt.Errorf("ANIMA_LOOP_WORKSPACE_FILES is %d: use a number of files, or 0 for no bound", c.WorkspaceFiles)
	case c.MailSenderRuns < 1 || c.MailAgentRuns < 1:
		return fmt.Errorf("ANIMA_LOOP_MAIL_SENDER_RUNS is %d and ANIMA_LOOP_MAIL_AGENT_RUNS is %d: at least 1 is needed", c.MailSenderRuns, c.MailAgentRuns)
	case c.MailSenderCost < 0 || c.MailAgentCost < 0:
		return fmt.Errorf("ANIMA_LOOP_MAIL_SENDER_COST is %d and ANIMA_LOOP_MAIL_AGENT_COST is %d: they must not be negative", c.MailSenderCost, c.MailAgentCost)
	case c.Attempts < 1:
		return fmt.Errorf("ANIMA_LOOP_ATTEMPTS is %d: at least 1 is needed", c.Attempts)
	}
	_, err := c.egressAllow()
	return err
}

// egressAllow returns EgressAllow as prefixes.
func (c *Config) egressAllow() (all []netip.Prefix, err error) {
	for _, text := range c.EgressAllow {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("ANIMA_LOOP_EGRESS_ALLOW has %.60q: use addresses such as 10.1.2.0/24", text)
		}
		all = append(all, p)
	}
	return all, nil
}

// Service is the loop service for a host. For its default lease of 15 s see
// docs/reference/loop.md, Ownership. The default cost limits of mail are the price of
// some hundred short answers of a large model.
var Service = host.Define("loop", Config{Slots: 128, Lease: 15 * time.Second, Attempts: 20, QueueTimeout: time.Hour, MailSenderRuns: 20, MailAgentRuns: 100, MailSenderCost: 500_000, MailAgentCost: 2_000_000, WorkspaceMiB: 1024, WorkspaceFiles: 100_000}, sqlstore.Migrations(), run).Examining(examine)

// Init must be the first call of every main function that may run loop: the sandbox
// executes the program again to confine a command.
func Init() { sandbox.Init() }

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // all transactions are committed
	dir, err := env.Folder()
	if err != nil {
		return err
	}
	workspaces, err := filepath.Abs(filepath.Join(dir, "workspaces"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(workspaces, 0o700); err != nil {
		return fmt.Errorf("create workspaces: %w", err)
	}
	wakes, err := bus.OpenBucket[api.Wake](ctx, env.Bus)
	if err != nil {
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
	tel, err := newInstruments(env.Meter)
	if err != nil {
		return err
	}
	held := sandbox.Probe(ctx)
	if c := held; !c.Sandboxed() {
		env.Log.Warn("the kernel cannot sandbox commands: exec is refused unless ANIMA_LOOP_ALLOW_UNSANDBOXED is set", "landlock_abi", c.LandlockABI, "allowed", cfg.AllowUnsandboxed)
	}
	allowed, err := cfg.egressAllow()
	if err != nil {
		return err
	}
	proxy, err := egress.Start(ctx, egress.Options{Allow: allowed, Log: env.Log})
	if err != nil {
		return err
	}
	defer proxy.Close() // after Serve, because runs that are drained keep their calls
	store := sqlstore.New(db, workspaces)
	relay := outbox.NewRelay(db, env.Bus, env.Log)
	peers := newClients(env.Bus, env.Now)
	waiting := newQueue(env.Bus, env.Log)
	kept := outputs{bus.NewObjects(env.Bus, api.Outputs)}
	others := newOwners(env.Bus, env.Log)
	leasing := leaser{leases: leases, owner: env.Bus.Owner(), ttl: cfg.Lease, now: env.Now, log: env.Log}
	goals := newGoals(store, peers, leasing, relay.Kick, env.Now, env.Log)
	tools := tool.All(tool.Config{AllowUnsandboxed: cfg.AllowUnsandboxed, Egress: proxy, NPM: tool.HasNPM(), Now: env.Now, Quota: cfg.quota(), Room: env.Room}, store, peers)
	memories := newMemories(store, env.Now)
	turns := newIngestion(memories.store, env.Now, env.Log)
	memories.memory.Shown = turns.shown
	souls := &soul.Keeper{Store: memories.store, Now: env.Now}
	servers := mcp.New(mcp.Config{
		Dir: filepath.Join(dir, "mcp"), AllowUnsandboxed: cfg.AllowUnsandboxed, Egress: proxy, Now: env.Now, Log: env.Log,
		Quota: cfg.quota(), Room: env.Room,
		Tracer: env.Tracer.Tracer("github.com/anima-run/anima/services/loop"),
	})
	defer servers.Close() // after Serve, because runs that are drained keep their calls
	for _, more := range [][]engine.Tool{
		others.tools(), goal.Tools(goals.orchestrator), memory.Tools(memories.memory), soul.Tools(souls),
		skill.Tools(skill.Config{AllowUnsandboxed: cfg.AllowUnsandboxed, Egress: proxy, Quota: cfg.quota(), Room: env.Room}),
		{servers.Installer()},
	} {
		for _, t := range more {
			tools[t.Name] = t
		}
	}
	for _, name := range writers() {
		tools[name] = limited(tools[name], cfg.quota(), env.Room)
	}
	tools["git_clone"] = watched(tools["git_clone"], cfg.quota(), env.Room)
	can := abilities{store: store, bus: env.Bus, tools: tools, servers: servers, exec: held.Sandboxed() || cfg.AllowUnsandboxed}
	h := &handlers{
		can: can, goals: goals, servers: servers, queue: waiting, outputs: kept, room: env.Room,
		cfg: cfg, bus: env.Bus, log: env.Log, now: env.Now, store: store, relay: relay, clients: peers, wakes: wakes,
		locks: newLocker(locks, journal{env.Bus}, env.Bus.Owner(), cfg.Lease, env.Now, env.Log),
		engine: &engine.Engine{
			Store: failpointStore{timedStore{store}}, Journal: journal{env.Bus}, Router: peers, Policy: policyClient{executor.NewKeys(env.Bus), env.Bus}, Inbox: peers, Treasury: peers,
			Queue: waiting, Alarms: peers, Outputs: kept, Tools: effects(tools), Toolbox: servers,
			Context: engine.Context{
				Store: store, Models: &models{bus: env.Bus, now: env.Now}, Memory: memories.memory,
				Sources:   slices.Concat([]engine.Source{souls}, skill.Sources(), []engine.Source{&goal.Source{Store: store}}, notes.Sources()),
				Revisions: memories.store.Revisions,
			},
			Now: env.Now, Root: rootSpan(env.Tracer), Ending: rootEnding(env.Tracer), Tracer: env.Tracer.Tracer("github.com/anima-run/anima/services/loop"),
			Attempts: cfg.Attempts, Observe: tel, Within: bus.Within,
		},
		running: tel.running,
	}
	h.routes(env.HTTP)
	h.listRoutes(env.HTTP, memories)
	past := replays{store: store, journal: journal{env.Bus}, clients: peers, models: h.engine.Context.Models, tools: h.engine.Tools}
	begins := newBeginRecorder(func(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) error {
		defer relay.Kick()
		return store.Announced(ctx, cmd, input, tier, at)
	}, env.Log)
	h.begins, h.engine.Begun = begins, begins.begun
	h.engine.Over = func(ctx context.Context, m api.LoopEnd) error {
		turns.ended(m.Session)
		return goals.ended(ctx, m)
	}
	// The messages of a crashed replica, of runs and of goals, are redelivered before
	// its locks and leases expire.
	silent := max(cfg.Lease/3, time.Second)
	err = env.Serve(ctx, append(goals.routes(silent),
		bus.Reply(h.applyAgent),
		bus.Reply(h.getAgent),
		bus.Reply(h.listAgents),
		bus.Reply(h.deleteAgent),
		bus.Reply(h.createSession),
		bus.Reply(can.listTools),
		bus.Reply(can.checkTool),
		bus.Reply(can.listSkills),
		bus.Reply(can.getSkill),
		bus.Reply(can.listServers),
		bus.Reply(memories.forget),
		bus.Reply(h.sendMessage),
		bus.Reply(h.getSession),
		bus.Reply(h.listSessions),
		bus.Reply(h.getTranscript),
		bus.Reply(h.getTurn),
		bus.Reply(h.listTurns),
		bus.Reply(h.getRun),
		bus.Reply(h.cancelRun),
		bus.Reply(h.terminateSession),
		bus.Reply(h.resetSession),
		bus.Reply(h.sleepAgent),
		bus.Reply(h.explainAgent),
		bus.Reply(past.replay),
		bus.Stream(past.fork),
		bus.Reply(memories.list),
		bus.Reply(memories.recall),
		bus.Reply(memories.souls),
		// For runs without a turn, and for runs of older releases. Deliveries are not
		// limited: a goal that waits for the end would otherwise never continue.
		bus.On(h.engine.Over, bus.Consuming{Workers: 32, AckWait: silent, InOrder: true, MaxDeliver: -1}),
		bus.On(h.tierChanged),
		bus.Reply(h.getOutput),
		bus.Reply(h.importTranscript),
		// A run that was delivered to a replica that had already crashed has no owner,
		// and need not wait for a lease to expire; other runs are returned until their
		// lease has expired. A run may therefore be delivered often before it fails for
		// the first time, and its pause must not grow with the number of deliveries.
		bus.On(h.run, bus.Consuming{
			Workers: cfg.Slots, AckWait: silent, MaxDeliver: -1, InOrder: true, NoSpan: true, MaxPause: maxPause, Patience: patience,
		}),
		bus.Go(h.watchWakes),
		bus.Go(func(ctx context.Context) error { return tidy(ctx, env.Log, cfg.Lease, h.locks.tidy, leasing.tidy) }),
		bus.Go(func(ctx context.Context) error { return h.settleLosses(ctx, db) }),
		bus.Go(turns.run),
		bus.Go(begins.run),
		bus.Go(waiting.listen),
		bus.Go(h.sweep),
		bus.Go(others.run),
		bus.Go(servers.Run),
		bus.Go(func(ctx context.Context) error { return telemetry.Resolve(ctx, env.Tracer, h.turnEnded) }),
		bus.Go(relay.Run),
	)...)
	begins.leave(ctx)
	return err
}

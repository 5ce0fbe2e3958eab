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
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
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
// executes the program again to confine a command, and package git to confine the library.
func Init() {
	sandbox.Init()
	git.Init()
}

func run(ctx context.Context, env *host.Env, cfg Config) error {
	db, err := env.DB(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // all transactions are committed
	h, err := newHandlers(ctx, env, cfg, db)
	if err != nil {
		return err
	}
	defer h.close() // after Serve, because runs that are drained keep their calls
	h.registerHTTP(env.HTTP)
	// The messages of a crashed replica, of runs and of goals, are redelivered before
	// its locks and leases expire.
	silent := max(cfg.Lease/3, time.Second)
	err = env.Serve(ctx, slices.Concat(
		h.agentRoutes(), h.sessionRoutes(), h.runRoutes(silent), h.goals.routes(silent),
		h.memories.routes(), h.replays.routes(), h.tools.routes(), h.background(env, db),
	)...)
	h.begins.Close(ctx)
	return err
}

package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type heartbeatCmd struct {
	List    heartbeatListCmd    `cmd:"" help:"List the schedules: the recurring wakes of agents."`
	Run     heartbeatRunCmd     `cmd:"" help:"Wake an agent now as an entry of its schedule would."`
	History heartbeatHistoryCmd `cmd:"" help:"List the entries that fired, the latest first."`
}

type heartbeatListCmd struct {
	watching
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

// Help returns the text that --help prints below the usage.
func (heartbeatListCmd) Help() string {
	return `Times are UTC. The schedule is a part of AGENT.md: change it there and apply it.

Examples:
  anima heartbeat list
  anima heartbeat list lucky -o json`
}

func (c heartbeatListCmd) Run(ctx context.Context, a *app) error {
	return c.show(ctx, a, func(ctx context.Context, a *app) error {
		return show(ctx, a, api.GetSchedule{Agent: strings.ToLower(c.Agent)}, func(w io.Writer, v api.Schedule) {
			fmt.Fprintln(w, "AGENT\tENTRY\tCRON\tNEXT\tLAST\tRUNS\tREASON")
			for _, e := range v.Entries {
				b := e.Beat
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", e.Agent, b.Name, b.Cron, when(b.Next), when(b.Last), b.Runs, line(b.Reason, 50))
			}
		})
	})
}

type heartbeatRunCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	Entry string `arg:"" help:"The entry's name."`
	ID    string `help:"Idempotency key: a repeated request wakes the agent once."`
}

// Help returns the text that --help prints below the usage.
func (heartbeatRunCmd) Help() string {
	return `The agent is told the entry's reason, with the authority of the entry. The next time
of the entry does not change.

Examples:
  anima heartbeat run lucky morning`
}

func (c heartbeatRunCmd) Run(ctx context.Context, a *app) error {
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	return show(ctx, a, api.RunBeat{Agent: c.Agent, Name: c.Entry, ID: c.ID}, func(w io.Writer, v api.Wake) {
		fmt.Fprintf(w, "%s is being woken: %s\n", v.Agent, line(v.Reason, 200))
	})
}

type heartbeatHistoryCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

func (c heartbeatHistoryCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListTicks{Agent: strings.ToLower(c.Agent), After: c.After, Limit: c.Limit}, func(w io.Writer, v api.Ticks) {
		fmt.Fprintln(w, "FIRED\tDUE\tAGENT\tENTRY")
		for _, t := range v.Ticks {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", when(t.At), when(t.Due), t.Agent, t.Name)
		}
		more(w, v.Page)
	})
}

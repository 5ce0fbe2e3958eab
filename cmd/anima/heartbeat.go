package main

import (
	"cmp"
	"context"
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

func (c heartbeatListCmd) Run(ctx context.Context, a *app) error {
	req := api.GetSchedule{Agent: strings.ToLower(c.Agent)}
	return listOf(ctx, a, req.Agent, req, func(v api.Schedule) int { return len(v.Entries) }, func(w io.Writer, v api.Schedule) {
		table(w, "AGENT\tENTRY\tCRON\tNEXT\tLAST\tRUNS\tREASON", v.Entries, api.Page{}, func(e api.ScheduleEntry) []any {
			b := e.Beat
			return []any{e.Agent, b.Name, b.Cron, when(b.Next), when(b.Last), b.Runs, line(b.Reason, 50)}
		})
	})
}

type heartbeatRunCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	Entry string `arg:"" help:"The entry's name."`
	ID    string `help:"Idempotency key: a repeated request wakes the agent once."`
}

func (c heartbeatRunCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.RunBeat{Agent: c.Agent, Name: c.Entry, ID: cmp.Or(c.ID, uuid.NewString())}, wakeText)
}

type heartbeatHistoryCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

func (c heartbeatHistoryCmd) Run(ctx context.Context, a *app) error {
	req := api.ListTicks{Agent: strings.ToLower(c.Agent), After: c.After, Limit: c.Limit}
	return listOf(ctx, a, req.Agent, req, func(v api.Ticks) int { return len(v.Ticks) }, func(w io.Writer, v api.Ticks) {
		table(w, "FIRED\tDUE\tAGENT\tENTRY", v.Ticks, v.Page, func(t api.Ticked) []any { return []any{when(t.At), when(t.Due), t.Agent, t.Name} })
	})
}

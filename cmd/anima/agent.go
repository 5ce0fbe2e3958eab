package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type agentCmd struct {
	Apply   agentApplyCmd   `cmd:"" help:"Create an agent from an AGENT.md, or change it."`
	List    agentListCmd    `cmd:"" help:"List the agents."`
	Get     agentGetCmd     `cmd:"" help:"Show an agent and its balance."`
	Explain agentExplainCmd `cmd:"" help:"Show why an agent is in its state, and what would change it."`
	Wake    agentWakeCmd    `cmd:"" help:"Wake an agent."`
	Sleep   agentSleepCmd   `cmd:"" help:"Put an agent to sleep."`
	Fund    agentFundCmd    `cmd:"" help:"Give an agent money."`
	Model   agentModelCmd   `cmd:"" help:"Choose the model that an agent thinks with."`
	Delete  agentDeleteCmd  `cmd:"" help:"Take an agent out of service."`
}

type agentApplyCmd struct {
	File string `arg:"" help:"The AGENT.md; - reads standard input."`
}

func (c agentApplyCmd) Run(ctx context.Context, a *app) error {
	source, err := a.readText(c.File, "name an AGENT.md, or - for standard input; anima init writes one")
	if err != nil {
		return err
	}
	return show(ctx, a, api.ApplyAgent{Source: source}, func(w io.Writer, v api.Agent) {
		fmt.Fprintf(w, "agent %s applied (version %d)\nwallet %s\n", v.ID, v.Version, v.Address)
		for _, warning := range v.Warnings {
			fmt.Fprintf(w, "warning: %s\n", plain(warning))
		}
		if len(v.Warnings) > 0 {
			fmt.Fprintln(w, a.named("anima tool list "+v.ID+" shows the tools that it can use"))
		}
	})
}

type agentListCmd struct {
	watching
	paging
}

func (c agentListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListAgents{After: c.After, Limit: c.Limit}, func(w io.Writer, v api.Agents) {
		table(w, "AGENT\tSTATE\tWHY\tTURNS\tADDRESS", v.Agents, v.Page, func(g api.Agent) []any {
			return []any{g.ID, g.State, line(g.Reason, 40), g.Turns, g.Address}
		})
	})
}

type agentGetCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
}

// agentView is an agent with its balance, which treasury owns.
type agentView struct {
	api.Agent
	Balance *api.Balance `json:"balance,omitempty"`
}

func (c agentGetCmd) Run(ctx context.Context, a *app) error {
	g, err := ask[api.Agent](ctx, a, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return err
	}
	v := agentView{Agent: g}
	switch b, err := ask[api.Balance](ctx, a, api.GetBalance{Agent: g.ID}); {
	case err == nil:
		v.Balance = &b
	case api.CodeOf(err) != api.Unavailable:
		return err
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "agent\t%s\nname\t%s\nstate\t%s (%s)\nsleeps until\t%s\nwallet\t%s\nsession\t%s\nturns\t%d\ntools\t%s\nversion\t%d\n",
			g.ID, g.Name, g.State, line(g.Reason, 80), when(g.SleepUntil), g.Address, g.Session, g.Turns, strings.Join(g.Tools, " "), g.Version)
		if b := v.Balance; b != nil {
			fields(w, "available", b.Available, "held", b.Held, "tier", b.Tier)
		} else {
			fields(w, "balance", "unknown: treasury does not answer")
		}
	})
}

type agentExplainCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	Limit int    `help:"How many entries of its history." default:"20"`
}

func (c agentExplainCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ExplainAgent{Agent: c.Agent, Limit: c.Limit}, func(w io.Writer, v api.Explanation) { a.explain(w, v, time.Now()) })
}

func (a *app) explain(w io.Writer, v api.Explanation, now time.Time) {
	fmt.Fprintf(w, "%s is %s: %s\n", v.Agent.ID, v.Agent.State, line(cmp.Or(v.Agent.Reason, "no reason is recorded"), 200))
	fmt.Fprintf(w, "since\t%s (%s)\n", when(v.Since), ago(v.Since, now))
	if v.Agent.SleepUntil != 0 {
		row(w, "until", when(v.Agent.SleepUntil))
	}
	row(w, "next", a.named(line(v.Next, 200)))
	k := v.Counters
	pattern := ""
	if k.Pattern != "" {
		pattern = " (" + line(k.Pattern, 60) + ")"
	}
	fmt.Fprint(w, "\nCOUNTER\tIN A ROW\tIT SLEEPS AT\n")
	row(w, "turns that change nothing", k.Idle, 10)
	row(w, "turns with the same tools"+pattern, k.Repeated, 6)
	row(w, "turns that look at itself", k.Maintenance, 6)
	row(w, "runs that failed", k.Errors, 5)
	row(w, "goals refused", k.Blocked, "1, longer each time")
	fields(w, "last sleep", line(k.Why, 100))
	table(w, "\nTIME\tFROM\tTO\tWHY", v.History, api.Page{}, func(h api.AgentChanged) []any {
		until := ""
		if h.SleepUntil != 0 {
			until = " (until " + when(h.SleepUntil) + ")"
		}
		return []any{when(h.At), cmp.Or(h.Previous, "-"), h.State, line(h.Reason, 80) + until}
	})
}

type agentWakeCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Reason string `help:"The reason that the agent is told." default:"your creator wakes you"`
}

func (c agentWakeCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.RequestWake{Agent: strings.ToLower(c.Agent), Cause: "creator-" + uuid.NewString(), Reason: c.Reason}, wakeText)
}

func wakeText(w io.Writer, v api.Wake) {
	fmt.Fprintf(w, "%s is being woken: %s\n", v.Agent, line(v.Reason, 200))
}

type agentSleepCmd struct {
	Agent  string        `arg:"" help:"The agent." predictor:"agent"`
	For    time.Duration `help:"How long: 90s, 1h; at most 24h." xor:"until" placeholder:"DURATION"`
	Until  string        `help:"Until when: 2026-11-21T08:00:00Z, or 08:00 on this machine's clock, today or tomorrow." xor:"until" placeholder:"TIME"`
	Reason string        `help:"The reason that the agent is told." default:"your creator lets you sleep"`
}

func (c agentSleepCmd) Run(ctx context.Context, a *app) error {
	until, err := c.time(time.Now())
	if err != nil {
		return err
	}
	return show(ctx, a, api.SleepAgent{Agent: c.Agent, Until: until, Reason: c.Reason}, func(w io.Writer, v api.Agent) {
		end := "the next message, wake or alarm"
		if v.SleepUntil != 0 {
			end = when(v.SleepUntil)
		}
		fmt.Fprintf(w, "%s is %s until %s\n", v.ID, v.State, end)
	})
}

// time returns the end of the sleep in Unix microseconds; 0 means until the next wake.
func (c agentSleepCmd) time(now time.Time) (int64, error) {
	end := now.Add(c.For)
	switch {
	case c.Until != "":
		var err error
		if end, err = clock(c.Until, now); err != nil {
			return 0, err
		}
	case c.For == 0:
		return 0, nil
	}
	if !end.After(now) {
		return 0, failure(api.Invalid, "the time is in the past", "name a time in the future, or none")
	}
	return end.UnixMicro(), nil
}

// clock parses an RFC 3339 time, or the next occurrence of an hour and minute in now's
// location.
func clock(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	h, err := time.Parse("15:04", s)
	if err != nil {
		return h, failure(api.Invalid, fmt.Sprintf("%q is not a time", plain(s)), "write 2026-11-21T08:00:00Z, or 08:00")
	}
	t := time.Date(now.Year(), now.Month(), now.Day(), h.Hour(), h.Minute(), 0, 0, now.Location())
	if !t.After(now) {
		t = t.AddDate(0, 0, 1)
	}
	return t, nil
}

type agentFundCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Amount string `arg:"" help:"Dollars: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request deposits once."`
}

// positive parses an amount of dollars, which must be greater than zero.
func positive(dollars string) (api.Micros, error) {
	amount, err := api.ParseMicros(dollars)
	if err == nil && amount == 0 {
		err = failure(api.Invalid, "the amount is zero", "name an amount above zero")
	}
	return amount, err
}

func (c agentFundCmd) Run(ctx context.Context, a *app) error {
	amount, err := positive(c.Amount)
	if err != nil {
		return err
	}
	agent := strings.ToLower(c.Agent)
	var v struct {
		Deposit api.Posted  `json:"deposit"`
		Balance api.Balance `json:"balance"`
	}
	req := api.Deposit{ID: cmp.Or(c.ID, "fund-"+uuid.NewString()), Agent: agent, Amount: amount, Source: "faucet", Memo: "agent fund"}
	if v.Deposit, err = ask[api.Posted](ctx, a, req); err != nil {
		return a.repeatable(err, "--id", req.ID, "deposits once")
	}
	if v.Balance, err = ask[api.Balance](ctx, a, api.GetBalance{Agent: agent}); err != nil {
		return fmt.Errorf("the money is deposited, but the balance could not be read: %w", err)
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%s has %s now (tier %s)\n", agent, v.Balance.Available+v.Balance.Held, v.Balance.Tier)
	})
}

type agentDeleteCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Force  bool   `help:"Delete the agent although its account holds money, which stays on the account."`
	Forget bool   `help:"Erase its memories, its soul, its skills, its MCP servers and its folder. This cannot be undone."`
	Reason string `help:"The reason." default:"its creator does not need it any more"`
}

func (c agentDeleteCmd) Run(ctx context.Context, a *app) error {
	req := api.DeleteAgent{Agent: c.Agent, Force: c.Force, Forget: c.Forget, Reason: c.Reason}
	return show(ctx, a, req, func(w io.Writer, v api.Deleted) {
		fmt.Fprintf(w, "%s is deleted since %s\n", v.Agent, when(v.At))
		if v.Left > 0 {
			fmt.Fprintf(w, "%s stays on its account %s\n", v.Left, v.Address)
		}
		if v.Forgotten {
			fmt.Fprintln(w, "its memories and its folder are erased")
		}
	})
}

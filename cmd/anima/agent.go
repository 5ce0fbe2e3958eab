package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

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
	Delete  agentDeleteCmd  `cmd:"" help:"Take an agent out of service."`
}

type agentApplyCmd struct {
	File string `arg:"" help:"The AGENT.md; - reads standard input."`
}

// Help returns the text that --help prints below the usage.
func (agentApplyCmd) Help() string {
	return `If the file has faults, each is listed with its line, and nothing is changed.

Examples:
  anima agent apply AGENT.md
  cat AGENT.md | anima agent apply -`
}

// maxSource is the maximum number of bytes that is read of a file. The limit on the
// length of an AGENT.md is loop's.
const maxSource = 1 << 20

func (c agentApplyCmd) Run(ctx context.Context, a *app) error {
	data, err := c.read(a.In)
	if err != nil {
		return &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name an AGENT.md, or - for standard input; anima init writes one"}
	}
	return show(ctx, a, api.ApplyAgent{Source: string(data)}, func(w io.Writer, v api.Agent) {
		fmt.Fprintf(w, "agent %s applied (version %d)\nwallet %s\n", v.ID, v.Version, v.Address)
		for _, warning := range v.Warnings {
			fmt.Fprintf(w, "warning: %s\n", plain(warning))
		}
		if len(v.Warnings) > 0 {
			fmt.Fprintf(w, "anima tool list %s shows the tools that it can use\n", v.ID)
		}
	})
}

func (c agentApplyCmd) read(stdin io.Reader) ([]byte, error) {
	from := stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // read only: a Close error loses no data
		from = f
	}
	data, err := io.ReadAll(io.LimitReader(from, maxSource+1))
	if err == nil && len(data) > maxSource {
		err = fmt.Errorf("%s is larger than %d bytes", c.File, maxSource)
	}
	if err == nil && !utf8.Valid(data) { // encoding as JSON would replace the invalid bytes
		err = fmt.Errorf("%s is not valid UTF-8", c.File)
	}
	return data, err
}

type agentListCmd struct {
	watching
	paging
}

func (c agentListCmd) Run(ctx context.Context, a *app) error {
	return c.show(ctx, a, func(ctx context.Context, a *app) error {
		return show(ctx, a, api.ListAgents{After: c.After, Limit: c.Limit}, func(w io.Writer, v api.Agents) {
			fmt.Fprintln(w, "AGENT\tSTATE\tWHY\tTURNS\tADDRESS")
			for _, g := range v.Agents {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", g.ID, g.State, line(g.Reason, 40), g.Turns, g.Address)
			}
			more(w, v.Page)
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
		if v.Balance != nil {
			fmt.Fprintf(w, "available\t%s\nheld\t%s\ntier\t%s\n", v.Balance.Available, v.Balance.Held, v.Balance.Tier)
		} else {
			fmt.Fprintln(w, "balance\tunknown: treasury does not answer")
		}
	})
}

type agentWakeCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Reason string `help:"The reason that the agent is told." default:"your creator wakes you"`
}

func (c agentWakeCmd) Run(ctx context.Context, a *app) error {
	req := api.RequestWake{Agent: strings.ToLower(c.Agent), Cause: "creator-" + uuid.NewString(), Reason: c.Reason}
	return show(ctx, a, req, func(w io.Writer, v api.Wake) { fmt.Fprintf(w, "%s is being woken: %s\n", v.Agent, line(v.Reason, 200)) })
}

type agentFundCmd struct {
	Agent  string `arg:"" help:"The agent." predictor:"agent"`
	Amount string `arg:"" help:"Dollars: 5, 0.25."`
	ID     string `help:"Idempotency key: a repeated request deposits once."`
}

// Help returns the text that --help prints below the usage.
func (agentFundCmd) Help() string {
	return `The money comes from the faucet, which is open in the dev profile only.

Examples:
  anima agent fund lucky 5
  anima agent fund lucky 0.25 --id monday`
}

// deposit parses an amount of dollars to deposit, which must be greater than zero.
func deposit(dollars string) (api.Micros, error) {
	amount, err := api.ParseMicros(dollars)
	if err == nil && amount == 0 {
		err = &api.Error{Code: api.Invalid, Message: "the amount is zero", Next: "name an amount above zero"}
	}
	return amount, err
}

func (c agentFundCmd) Run(ctx context.Context, a *app) error {
	amount, err := deposit(c.Amount)
	if err != nil {
		return err
	}
	if c.ID == "" {
		c.ID = "fund-" + uuid.NewString()
	}
	req := api.Deposit{ID: c.ID, Agent: strings.ToLower(c.Agent), Amount: amount, Source: "faucet", Memo: "agent fund"}
	posted, err := ask[api.Posted](ctx, a, req)
	if err != nil {
		return err
	}
	balance, err := ask[api.Balance](ctx, a, api.GetBalance{Agent: req.Agent})
	if err != nil {
		return fmt.Errorf("the money is deposited, but the balance could not be read: %w", err)
	}
	v := struct {
		Deposit api.Posted  `json:"deposit"`
		Balance api.Balance `json:"balance"`
	}{posted, balance}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%s has %s now (tier %s)\n", req.Agent, balance.Available+balance.Held, balance.Tier)
	})
}

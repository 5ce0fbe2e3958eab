package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type turnCmd struct {
	Show   turnShowCmd   `cmd:"" help:"Show one turn with its calls, its cost and its trace."`
	Output turnOutputCmd `cmd:"" help:"Print the complete output of a tool call."`
	Replay turnReplayCmd `cmd:"" help:"Replay a turn from its journal, without side effects, and show the first difference."`
	List   turnListCmd   `cmd:"" help:"List turns, the latest first."`
}

type turnShowCmd struct {
	Turn      string `arg:"" help:"The turn's id."`
	JaegerURL string `name:"jaeger-url" help:"URL of the Jaeger for the link to the trace (ANIMA_JAEGER_URL); default is the one of anima up --jaeger." placeholder:"URL"`
}

// turnView is a turn with the URL of its trace in the Jaeger UI.
type turnView struct {
	api.Turn

	TraceURL string `json:"traceUrl,omitempty"`
}

func (c turnShowCmd) Run(ctx context.Context, a *app) error {
	base, err := a.jaeger(c.JaegerURL)
	if err != nil {
		return err
	}
	t, err := ask[api.Turn](ctx, a, api.GetTurn{Turn: c.Turn})
	if err != nil {
		return err
	}
	v := turnView{Turn: t, TraceURL: traceURL(base, t.Trace)}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "turn\t%s\nagent\t%s\nsession\t%s\nby\t%s %s\nmodel\t%s (%s)\ntokens\t%d in, %d out\ncost\t%s\ntrace\t%s\ntime\t%s, %d ms\n",
			t.ID, t.Agent, t.Session, t.By.Kind, t.By.Address, t.Model, t.Provider, t.InputTokens, t.OutputTokens, t.Cost, strings.TrimSpace(t.Trace+"  "+v.TraceURL),
			when(t.StartedAt), (t.EndedAt-t.StartedAt)/1000)
		if t.Input != "" {
			fmt.Fprintf(w, "input\t%s\n", indent(t.Input))
		}
		fmt.Fprintf(w, "thought\t%s\n", indent(t.Thinking))
		for _, k := range t.Calls {
			fmt.Fprintf(w, "call %d\t%s %s\n\t%s in %d ms: %s%s\n", k.Index, k.Tool, plain(string(k.Arguments)), k.Outcome, k.DurationMS, line(k.Result, 200), line(k.Error, 200))
		}
	})
}

// indent indents continuation lines to the second column of a table.
func indent(s string) string { return strings.ReplaceAll(plain(s), "\n", "\n\t") }

type turnOutputCmd struct {
	Turn  string `arg:"" help:"The turn's id."`
	Index int    `arg:"" help:"The index of the call, from 0."`
}

// Help returns the text that --help prints below the usage.
func (turnOutputCmd) Help() string {
	return `A turn has only a part of a long output; the complete output is kept for seven days.
With -o json, the output has one part per line.

Examples:
  anima turn output 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 0 | less`
}

func (c turnOutputCmd) Run(ctx context.Context, a *app) error {
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	for offset, more := int64(0), true; more; {
		part, err := callFor[api.OutputPart](ctx, b, api.GetOutput{Turn: c.Turn, Index: c.Index, Offset: offset})
		if api.CodeOf(err) == api.NotFound && offset == 0 {
			part, err = c.short(ctx, b) // the turn has the complete output
		}
		if err != nil {
			return err
		}
		text := plain(part.Text)
		if a.cli.Output == outputJSON {
			data, err := api.Encode(part)
			if err != nil {
				return err
			}
			text = string(data) + "\n"
		}
		if _, err := io.WriteString(a.Out, text); err != nil {
			return err
		}
		more = part.Next > offset
		offset = part.Next
	}
	return nil
}

// short returns the output of the call that is stored in the turn itself.
func (c turnOutputCmd) short(ctx context.Context, b *bus.Bus) (api.OutputPart, error) {
	t, err := callFor[api.Turn](ctx, b, api.GetTurn{Turn: c.Turn})
	if err != nil {
		return api.OutputPart{}, err
	}
	for _, k := range t.Calls {
		if k.Index == c.Index {
			text := strings.TrimSpace(k.Error+"\n"+k.Result) + "\n"
			return api.OutputPart{Text: text, Size: int64(len(text))}, nil
		}
	}
	return api.OutputPart{}, &api.Error{
		Code: api.NotFound, Message: fmt.Sprintf("the turn has no call %d", c.Index), Next: "anima turn show " + c.Turn + " lists its calls, from 0",
	}
}

type turnListCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

func (c turnListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListTurns{Agent: c.Agent, Before: c.After, Limit: c.Limit}, func(w io.Writer, v api.Turns) {
		fmt.Fprintln(w, "TURN\tAGENT\tTIME\tCALLS\tCOST\tTHOUGHT")
		for _, t := range v.Turns {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", t.ID, t.Agent, when(t.StartedAt), len(t.Calls), t.Cost, line(t.Thinking, 50))
		}
		more(w, v.Page)
	})
}

type ledgerCmd struct {
	Balance  ledgerBalanceCmd  `cmd:"" help:"Show the balances of agents."`
	Entries  ledgerEntriesCmd  `cmd:"" help:"List transactions."`
	Transfer ledgerTransferCmd `cmd:"" help:"Move money from one agent to another."`
	Verify   ledgerVerifyCmd   `cmd:"" help:"Verify the whole ledger: sums, chain, holds."`
}

type ledgerBalanceCmd struct {
	Agent string `arg:"" optional:"" help:"Only this agent." predictor:"agent"`
}

func (c ledgerBalanceCmd) Run(ctx context.Context, a *app) error {
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	names := []string{strings.ToLower(c.Agent)}
	if c.Agent == "" {
		all, err := bus.Call[api.Agents](ctx, b, api.ListAgents{})
		if err != nil {
			return err
		}
		names = nil
		for _, g := range all.Agents {
			names = append(names, g.ID)
		}
	}
	balances := []api.Balance{}
	for _, n := range names {
		v, err := bus.Call[api.Balance](ctx, b, api.GetBalance{Agent: n})
		if err != nil {
			return err
		}
		balances = append(balances, v)
	}
	return a.print(balances, func(w io.Writer) {
		fmt.Fprintln(w, "AGENT\tAVAILABLE\tHELD\tTIER")
		for _, b := range balances {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", b.Agent, b.Available, b.Held, b.Tier)
		}
	})
}

type ledgerEntriesCmd struct {
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	After int64  `help:"Only transactions after this sequence number."`
	Limit int    `help:"How many." default:"50"`
}

func (c ledgerEntriesCmd) Run(ctx context.Context, a *app) error {
	req := api.ListEntries{Agent: strings.ToLower(c.Agent), After: c.After, Limit: c.Limit}
	return show(ctx, a, req, func(w io.Writer, v api.Entries) {
		fmt.Fprintln(w, "SEQ\tTIME\tKIND\tPOSTINGS\tID")
		for _, e := range v.Entries {
			var sides []string
			for _, p := range e.Postings {
				sides = append(sides, p.Account+" "+p.Amount.String())
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", e.Seq, when(e.At), e.Kind, strings.Join(sides, ", "), e.ID)
		}
		if v.More && len(v.Entries) > 0 {
			more(w, api.Page{More: true, Next: strconv.FormatInt(v.Entries[len(v.Entries)-1].Seq, 10)})
		}
	})
}

type ledgerVerifyCmd struct{}

func (ledgerVerifyCmd) Run(ctx context.Context, a *app) error {
	v, err := ask[api.LedgerReport](ctx, a, api.VerifyLedger{})
	if err != nil {
		return err
	}
	if err := a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%d transactions on %d accounts, %d active holds\nhead %s\n", v.Transactions, v.Accounts, v.ActiveHolds, v.Head)
		for _, f := range v.Faults {
			fmt.Fprintln(w, "fault:", f)
		}
	}); err != nil {
		return err
	}
	if !v.OK {
		return &api.Error{Code: api.Internal, Message: "the ledger is inconsistent", Next: "stop treasury and restore the last backup that verifies"}
	}
	return nil
}

type policyCmd struct {
	Rules     policyRulesCmd     `cmd:"" help:"List the rules in the order they are evaluated."`
	Decisions policyDecisionsCmd `cmd:"" help:"List decisions, the latest first."`
	Check     policyCheckCmd     `cmd:"" help:"Check whether a call would be allowed, and why."`
}

type policyRulesCmd struct{}

func (policyRulesCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListRules{}, func(w io.Writer, v api.Rules) {
		fmt.Fprintf(w, "version %s\n\nPRIORITY\tRULE\tTOOLS\tDOES\n", v.Version)
		for _, r := range v.Rules {
			tools := strings.Join(r.Tools, " ")
			if tools == "" {
				tools = "all"
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", r.Priority, r.ID, line(tools, 40), r.Does)
		}
	})
}

type policyDecisionsCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
	Turn  string `help:"Only this turn's."`
}

func (c policyDecisionsCmd) Run(ctx context.Context, a *app) error {
	req := api.ListDecisions{Agent: strings.ToLower(c.Agent), Turn: c.Turn, After: c.After, Limit: c.Limit}
	return show(ctx, a, req, func(w io.Writer, v api.Decisions) {
		fmt.Fprintln(w, "TIME\tAGENT\tTOOL\tBY\tACTION\tCODE\tWHY")
		for _, d := range v.Decisions {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", when(d.At), d.Agent, d.Tool, d.By.Kind, d.Action, d.Code, line(d.Message, 60))
		}
		more(w, v.Page)
	})
}

type modelCmd struct {
	List modelListCmd `cmd:"" help:"List the models and their prices."`
}

type modelListCmd struct{}

func (modelListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListModels{}, func(w io.Writer, v api.Models) {
		fmt.Fprintln(w, "MODEL\tPROVIDER\tIN/M\tOUT/M\tCONTEXT\tUSABLE")
		for _, m := range v.Models {
			usable := "yes"
			if !m.Usable {
				usable = "no: " + m.Why
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", m.ID, m.Provider, m.InputPrice, m.OutputPrice, m.ContextWindow, usable)
		}
		for _, f := range v.Faults {
			fmt.Fprintf(w, "\nno list of models from %s\n", f)
		}
	})
}

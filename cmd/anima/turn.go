package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
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
		fields(w, "input", indent(t.Input))
		row(w, "thought", indent(t.Thinking))
		for _, k := range t.Calls {
			fmt.Fprintf(w, "call %d\t%s %s\n\t%s in %d ms: %s%s\n", k.Index, k.Tool, plain(string(k.Arguments)), k.Outcome, k.DurationMS, line(k.Result, 200), line(k.Error, 200))
		}
	})
}

type turnOutputCmd struct {
	Turn  string `arg:"" help:"The turn's id."`
	Index int    `arg:"" help:"The index of the call, from 0."`
}

func (c turnOutputCmd) Run(ctx context.Context, a *app) error {
	for offset, more := int64(0), true; more; {
		part, err := ask[api.OutputPart](ctx, a, api.GetOutput{Turn: c.Turn, Index: c.Index, Offset: offset})
		if api.CodeOf(err) == api.NotFound && offset == 0 {
			part, err = c.short(ctx, a) // the turn has the complete output
		}
		switch {
		case err != nil:
		case a.json():
			err = writeLine(a.Out, part)
		default:
			_, err = io.WriteString(a.Out, plain(part.Text))
		}
		if err != nil {
			return err
		}
		more = part.Next > offset
		offset = part.Next
	}
	return nil
}

// short returns the output of the call that is stored in the turn itself.
func (c turnOutputCmd) short(ctx context.Context, a *app) (api.OutputPart, error) {
	t, err := ask[api.Turn](ctx, a, api.GetTurn{Turn: c.Turn})
	if err != nil {
		return api.OutputPart{}, err
	}
	i := slices.IndexFunc(t.Calls, func(k api.CallState) bool { return k.Index == c.Index })
	if i < 0 {
		return api.OutputPart{}, failure(api.NotFound, fmt.Sprintf("the turn has no call %d", c.Index), "anima turn show "+c.Turn+" lists its calls, from 0")
	}
	text := strings.TrimSpace(t.Calls[i].Error+"\n"+t.Calls[i].Result) + "\n"
	return api.OutputPart{Text: text, Size: int64(len(text))}, nil
}

type turnListCmd struct {
	paging
	Agent string `arg:"" optional:"" help:"Only this agent's." predictor:"agent"`
}

func (c turnListCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ListTurns{Agent: c.Agent, Before: c.After, Limit: c.Limit}, func(w io.Writer, v api.Turns) {
		table(w, "TURN\tAGENT\tTIME\tCALLS\tCOST\tTHOUGHT", v.Turns, v.Page, func(t api.Turn) []any {
			return []any{t.ID, t.Agent, when(t.StartedAt), len(t.Calls), t.Cost, line(t.Thinking, 50)}
		})
	})
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

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
			fmt.Fprintf(w, "call %d\t%s %s\n\t%s in %d ms: %s%s\n", k.Index, line(k.Tool, 100), plain(string(k.Arguments)), k.Outcome, k.DurationMS, line(k.Result, 200), line(k.Error, 200))
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
	req := api.ListTurns{Agent: c.Agent, Before: c.After, Limit: c.Limit}
	return listOf(ctx, a, c.Agent, req, func(v api.Turns) int { return len(v.Turns) }, func(w io.Writer, v api.Turns) {
		table(w, "TURN\tAGENT\tTIME\tCALLS\tCOST\tTHOUGHT", v.Turns, v.Page, func(t api.Turn) []any {
			return []any{t.ID, t.Agent, when(t.StartedAt), len(t.Calls), t.Cost, line(t.Thinking, 50)}
		})
	})
}

type turnReplayCmd struct {
	Turn  string `arg:"" optional:"" help:"The turn's id."`
	Agent string `help:"Replay the latest turns of this agent instead of one turn." placeholder:"NAME" predictor:"agent"`
	RunID string `name:"run" help:"Replay the turns of this run instead of one turn." placeholder:"ID"`
	Limit int    `help:"Maximum number of turns." default:"1000"`

	Fork   bool   `help:"Compute the turn with a change: no tool is called, and the stored turn does not change."`
	Model  string `help:"With --fork: use this model; the agent pays for the call." placeholder:"ID"`
	Prompt string `help:"With --fork: a file with another genesis prompt; the agent pays for the call." type:"existingfile" placeholder:"FILE"`
	Policy bool   `help:"With --fork: check the turn's calls against the current rules, at no cost."`
}

// turnsAtOnce is the page size for listing turns.
const turnsAtOnce = 200

// replays is the result of a replay with --agent or --run.
type replays struct {
	Turns       int            `json:"turns"` // replayed turns
	Steps       int            `json:"steps"`
	Skipped     int            `json:"skipped"` // turns without recorded data, or whose data has expired
	Differences []api.Replayed `json:"differences"`
}

func (c turnReplayCmd) Run(ctx context.Context, a *app) error {
	switch {
	case (c.Turn == "") == (c.Agent == "" && c.RunID == ""):
		return failure(api.Invalid, "no turn is named", "name one turn, or give --agent or --run")
	case c.Fork && c.Turn == "":
		return failure(api.Invalid, "only one turn can be forked at a time", "name it; anima turn list lists the turns")
	case !c.Fork && (c.Model != "" || c.Prompt != "" || c.Policy):
		return failure(api.Invalid, "--model, --prompt and --policy are for forks", "add --fork, or omit them")
	case c.Fork:
		return c.fork(ctx, a)
	}
	var same bool
	if c.Turn == "" {
		v, err := c.many(ctx, a)
		if err != nil {
			return err
		}
		same = len(v.Differences) == 0
	} else {
		v, err := showAnswer(ctx, a, api.ReplayTurn{Turn: c.Turn}, c.text)
		if err != nil {
			return err
		}
		same = v.Same
	}
	if !same {
		return failure(api.Internal, "the replay differs from the recorded turn",
			"a turn of an older release may differ because the engine has changed; for a turn of this release it is a fault")
	}
	return nil
}

func (turnReplayCmd) text(w io.Writer, v api.Replayed) {
	owners := ""
	if v.Owners > 1 {
		owners = fmt.Sprintf(", taken over %d times", v.Owners-1)
	}
	if v.Same {
		fmt.Fprintf(w, "turn\t%s\nthe same\t%d steps%s\n", v.Turn, v.Steps, owners)
		return
	}
	d := v.Difference
	fmt.Fprintf(w, "turn\t%s\ndifferent\tafter %d steps%s, in %s %s\nrecorded\t%s\nreplayed\t%s\n",
		v.Turn, v.Steps, owners, d.Step, d.Field, indent(d.Recorded), indent(d.Replayed))
}

// many replays the turns of an agent or a run and prints the result.
func (c turnReplayCmd) many(ctx context.Context, a *app) (replays, error) {
	v := replays{Differences: []api.Replayed{}}
	p := newProgress(a)
	defer p.clear()
	for last, left := "", c.Limit; left > 0; {
		page, err := ask[api.Turns](ctx, a, api.ListTurns{Agent: strings.ToLower(c.Agent), Run: c.RunID, Before: last, Limit: min(left, turnsAtOnce)})
		if err != nil {
			return v, err
		}
		if len(page.Turns) == 0 {
			break
		}
		for _, t := range page.Turns {
			p.waiting(fmt.Sprintf("%d turns", v.Turns+v.Skipped))
			one, err := ask[api.Replayed](ctx, a, api.ReplayTurn{Turn: t.ID})
			switch {
			case api.CodeOf(err) == api.NotFound:
				v.Skipped++
			case err != nil:
				return v, err
			default:
				v.Turns++
				v.Steps += one.Steps
				if !one.Same {
					v.Differences = append(v.Differences, one)
				}
			}
			last = t.ID
			left--
		}
	}
	p.clear()
	if v.Turns+v.Skipped == 0 { // a wrong name must not look like turns without a difference
		return v, failure(api.NotFound, "there is no turn to replay", "anima turn list lists the turns; check the name of the agent, or the run")
	}
	return v, a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%d turns, %d steps, %d different, %d not recorded\n", v.Turns, v.Steps, len(v.Differences), v.Skipped)
		for _, d := range v.Differences {
			fmt.Fprintln(w)
			c.text(w, d)
		}
	})
}

// forkLimit is how long a fork may take: the router's timeout for a model call, 120 s, and
// time for what is before and after it.
const forkLimit = 3 * time.Minute

func (c turnReplayCmd) fork(ctx context.Context, a *app) error {
	req := api.ForkTurn{Turn: c.Turn, Model: c.Model, Policy: c.Policy}
	if c.Prompt != "" {
		text, err := os.ReadFile(c.Prompt)
		if err != nil {
			return err
		}
		req.Prompt = string(text)
	}
	b, err := a.connect()
	if err != nil {
		return err
	}
	p := newProgress(a)
	p.waiting("the fork; a model call may take two minutes")
	v, err := streamed[api.Delta, api.Forked](ctx, b, req, forkLimit, func(api.Delta) {})
	p.clear()
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) {
		r, f := v.Recorded, v.Forked
		tokens := func(v api.ForkedAnswer) string { return fmt.Sprintf("%d in, %d out", v.InputTokens, v.OutputTokens) }
		row(w, "", "RECORDED", "FORKED")
		row(w, "model", r.Model, f.Model)
		row(w, "tokens", tokens(r), tokens(f))
		row(w, "cost", r.Cost, f.Cost)
		row(w, "finish", r.Finish, f.Finish)
		row(w, "said", line(r.Text, 60), line(f.Text, 60))
		for i := range max(len(r.Calls), len(f.Calls)) {
			row(w, fmt.Sprintf("call %d", i), forkedCall(r.Calls, i), forkedCall(f.Calls, i))
		}
	})
}

func forkedCall(all []api.ForkedCall, i int) string {
	if i >= len(all) {
		return "-"
	}
	c := all[i]
	return line(strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", c.Tool, c.Arguments, c.Action, c.Code, c.Message)), 80)
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type turnReplayCmd struct {
	Turn  string `arg:"" optional:"" help:"The turn's id."`
	Agent string `help:"Replay the latest turns of this agent instead of one turn." placeholder:"NAME"`
	RunID string `name:"run" help:"Replay the turns of this run instead of one turn." placeholder:"ID"`
	Limit int    `help:"Maximum number of turns." default:"1000"`

	Fork   bool   `help:"Compute the turn with a change: no tool is called, and the stored turn does not change."`
	Model  string `help:"With --fork: use this model; the agent pays for the call." placeholder:"ID"`
	Prompt string `help:"With --fork: a file with another genesis prompt; the agent pays for the call." type:"existingfile" placeholder:"FILE"`
	Policy bool   `help:"With --fork: check the turn's calls against the current rules, at no cost."`
}

// Help returns the text that --help prints below the usage.
func (turnReplayCmd) Help() string {
	return `The engine executes the turn again. The answers of the model, of policy, of the tools
and of the agent's files come from the journal, which is kept for 7 days, and from the
store: no service is called, nothing is paid, and no tool is executed. A takeover
during the turn is repeated. Any difference in the prompt, the steps, the stored turn
or the end of the run is a fault or a change of the engine: the first one is shown,
and the exit code is 1.

Examples:
  anima turn replay 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1
  anima turn replay --agent lucky --limit 10000
  anima turn replay 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 --fork --model gpt-5
  anima turn replay 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.1 --fork --policy`
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
		return &api.Error{Code: api.Invalid, Message: "no turn is named", Next: "name one turn, or give --agent or --run"}
	case c.Fork && c.Turn == "":
		return &api.Error{Code: api.Invalid, Message: "only one turn can be forked at a time", Next: "name it; anima turn list lists the turns"}
	case !c.Fork && (c.Model != "" || c.Prompt != "" || c.Policy):
		return &api.Error{Code: api.Invalid, Message: "--model, --prompt and --policy are for forks", Next: "add --fork, or omit them"}
	}
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	if c.Fork {
		return c.fork(ctx, a, b)
	}
	if c.Turn == "" {
		return c.many(ctx, a, b)
	}
	v, err := callFor[api.Replayed](ctx, b, api.ReplayTurn{Turn: c.Turn})
	if err != nil {
		return err
	}
	if err := a.print(v, func(w io.Writer) { c.text(w, v) }); err != nil {
		return err
	}
	return differ(!v.Same)
}

// differ returns the error of a replay that found a difference, or nil.
func differ(found bool) error {
	if !found {
		return nil
	}
	return &api.Error{
		Code: api.Internal, Message: "the replay differs from the recorded turn",
		Next: "a turn of an older release may differ because the engine has changed; for a turn of this release it is a fault",
	}
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

func (c turnReplayCmd) many(ctx context.Context, a *app, b *bus.Bus) error {
	v := replays{Differences: []api.Replayed{}}
	p := newProgress(a)
	defer p.clear()
	for last, left := "", c.Limit; left > 0; {
		page, err := callFor[api.Turns](ctx, b, api.ListTurns{Agent: strings.ToLower(c.Agent), Run: c.RunID, Before: last, Limit: min(left, turnsAtOnce)})
		if err != nil {
			return err
		}
		if len(page.Turns) == 0 {
			break
		}
		for _, t := range page.Turns {
			p.waiting(fmt.Sprintf("%d turns", v.Turns+v.Skipped))
			one, err := callFor[api.Replayed](ctx, b, api.ReplayTurn{Turn: t.ID})
			switch {
			case api.CodeOf(err) == api.NotFound:
				v.Skipped++
			case err != nil:
				return err
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
	if err := a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%d turns, %d steps, %d different, %d not recorded\n", v.Turns, v.Steps, len(v.Differences), v.Skipped)
		for _, d := range v.Differences {
			fmt.Fprintln(w)
			c.text(w, d)
		}
	}); err != nil {
		return err
	}
	return differ(len(v.Differences) > 0)
}

func (c turnReplayCmd) fork(ctx context.Context, a *app, b *bus.Bus) error {
	req := api.ForkTurn{Turn: c.Turn, Model: c.Model, Policy: c.Policy}
	if c.Prompt != "" {
		text, err := os.ReadFile(c.Prompt)
		if err != nil {
			return err
		}
		req.Prompt = string(text)
	}
	v, err := bus.CallStream[api.Delta, api.Forked](ctx, b, req, func(api.Delta) error { return nil })
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "\tRECORDED\tFORKED\n")
		row := func(name, recorded, forked string) { fmt.Fprintf(w, "%s\t%s\t%s\n", name, recorded, forked) }
		r, f := v.Recorded, v.Forked
		row("model", r.Model, f.Model)
		row("tokens", fmt.Sprintf("%d in, %d out", r.InputTokens, r.OutputTokens), fmt.Sprintf("%d in, %d out", f.InputTokens, f.OutputTokens))
		row("cost", r.Cost.String(), f.Cost.String())
		row("finish", r.Finish, f.Finish)
		row("said", line(r.Text, 60), line(f.Text, 60))
		for i := range max(len(r.Calls), len(f.Calls)) {
			row(fmt.Sprintf("call %d", i), forkedCall(r.Calls, i), forkedCall(f.Calls, i))
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

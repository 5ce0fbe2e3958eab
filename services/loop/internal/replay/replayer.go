package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// replayer implements every port of the engine from the recording of a turn. See
// [Replay].
type replayer struct {
	engine.Recording

	given      engine.Surroundings
	tools      map[string]engine.Tool
	completion *engine.Completion
	results    map[int]engine.Result
	intents    map[int]engine.Intent

	mu         sync.Mutex // protects at, owner and crashed in act
	at         int        // index of the next step of the recording
	thinker    int        // number of the owner that appended the completion
	owner      int
	difference *api.Difference
	persisted  bool

	// Reset for each owner: crashed is set where the recorded owner crashed, begun after
	// its begin.
	crashed, begun bool
	tooLong        bool // the router has refused the first prompt
	refused        bool // the provider has refused a prompt
	cancelled      string
	cancel         context.CancelCauseFunc
	grants         map[string]api.Grant
}

func newReplayer(ctx context.Context, texts engine.ContextStore, rec engine.Recording, tools map[string]engine.Tool) (*replayer, error) {
	rec.Steps = slices.DeleteFunc(slices.Clone(rec.Steps), func(s engine.Step) bool { return s.Release || s.End != nil })
	p := &replayer{Recording: rec, tools: map[string]engine.Tool{}, results: map[int]engine.Result{}, intents: map[int]engine.Intent{}}
	if rec.Reference.Agent == "" {
		return nil, &api.Error{
			Code: api.NotFound, Message: "turn " + rec.Turn.ID + " was not recorded",
			Next: "turns of older releases, imported ones and those that failed before the model was asked cannot be replayed",
		}
	}
	for _, s := range rec.Steps {
		switch {
		case s.Completion != nil:
			p.completion = s.Completion
		case s.Result != nil:
			p.results[s.Result.Index] = *s.Result
		case s.Intent != nil:
			p.intents[s.Intent.Index] = *s.Intent
		}
	}
	if p.completion == nil {
		return nil, &api.Error{Code: api.NotFound, Message: "the journal of turn " + rec.Turn.ID + " is gone", Next: "it is kept for 7 days"}
	}
	var err error
	if p.given, err = rec.Reference.Surroundings(ctx, texts, rec.Turn.ID); err != nil {
		return nil, err
	}
	for name, t := range tools {
		t.Offered = func(engine.Agent) bool { return false }
		p.tools[name] = t
	}
	for _, k := range p.given.Tools {
		t := p.tools[k.Name]
		t.Name, t.Description, t.Schema, t.Effect, t.Mutating, t.Status, t.Offered = k.Name, k.Description, k.Schema, k.Effect, k.Mutating, k.Status, nil
		if t.Check == nil { // of an MCP server that is not connected
			t.Check = p.checked(k.Name)
		}
		p.tools[k.Name] = t
	}
	return p, nil
}

// checked returns a check that refuses the arguments that were refused in the
// recording.
func (p *replayer) checked(name string) func(json.RawMessage) error {
	return func(args json.RawMessage) error {
		for i, call := range p.completion.Answer.ToolCalls {
			r, there := p.results[i]
			if why, refused := strings.CutPrefix(r.Error, engine.NotRun); there && refused && r.Decision == "" && call.Name == name && string(engine.Arguments(call)) == string(args) {
				return errors.New(why)
			}
		}
		return nil
	}
}

// attempts returns the maximum number of attempts for the replay: the recorded maximum
// if the run was given up after it, otherwise more than the recording has.
func (p *replayer) attempts() int {
	var n int
	if p.End != nil {
		if _, err := fmt.Sscanf(p.End.Error, engine.GivenUp, &n); err == nil {
			return n
		}
	}
	return len(p.Steps) + 1
}

// again resets the replayer for the next owner.
func (p *replayer) again() {
	p.owner++
	p.crashed, p.begun, p.tooLong, p.refused, p.cancelled, p.grants = false, false, false, false, "", map[string]api.Grant{}
}

// next returns the next step of the recording, nil after the last.
func (p *replayer) next() *engine.Step {
	if p.at < len(p.Steps) {
		return &p.Steps[p.at]
	}
	return nil
}

// takesOver reports whether a step is the begin of another owner. The begin that giveUp
// writes has no Since and is not.
func takesOver(s *engine.Step) bool { return s.Begin != nil && s.Begin.Since != 0 }

// Tail implements [engine.Journal]. It returns the steps that were replayed so far.
func (p *replayer) Tail(context.Context, api.Run, uint64) ([]engine.Step, uint64, error) {
	return p.Steps[:p.at], uint64(p.at), nil
}

// Append implements [engine.Journal]. The step must equal the next step of the recording. If
// that is the begin of another owner, the current owner crashes with errDied.
func (p *replayer) Append(_ context.Context, _ api.Run, step engine.Step, _ uint64) (uint64, error) {
	if step.End != nil {
		return 0, errReplayed // the end follows from the persisted turn
	}
	want := p.next()
	mine := step.Begin != nil && !p.begun
	switch {
	case mine && p.at == 0 && p.Turn.Number > 1 && (want == nil || want.Begin == nil):
		// The owner of the previous turn continued without a begin.
		p.begun = true
		return 0, nil
	case want == nil:
		p.differ(step.Kind(), "", "no step", "a step")
		return 0, errReplayed
	case !mine && takesOver(want):
		p.crashed = true
		return 0, errCrashed
	case step.Begin == nil && want.Begin != nil: // the recorded run was given up here
		return 0, p.stop()
	case want.Kind() != step.Kind():
		p.differ(step.Kind(), "", want.Kind(), step.Kind())
		return 0, errReplayed
	}
	recorded, replayed := timeless(*want), timeless(step)
	p.begun = p.begun || mine
	if step.Completion != nil {
		p.thinker = p.owner
		if want.Completion.Prompt != nil && step.Completion.Prompt.Hash != want.Completion.Prompt.Hash {
			p.prompts(*step.Completion)
		}
	}
	if !p.compare(step.Kind(), recorded, replayed) {
		return 0, errReplayed
	}
	p.at++
	return uint64(p.at), nil
}

// prompts records the first difference between two prompts.
func (p *replayer) prompts(now engine.Completion) {
	was, is := *p.completion.Prompt, *now.Prompt
	was.Hash, is.Hash = "", ""
	if p.compare("prompt", was, is) {
		p.differ("prompt", "text", "SHA-256 "+p.completion.Prompt.Hash, "SHA-256 "+now.Prompt.Hash)
	}
}

// timeless returns a step without times, ids and traces, which a replay creates anew,
// and without announcements.
func timeless(s engine.Step) engine.Step {
	s.Persisted, s.Changed = 0, nil
	switch {
	case s.Begin != nil:
		b := *s.Begin
		b.At, b.Since, b.Kind = 0, 0, ""
		s.Begin = &b
	case s.Completion != nil:
		t := *s.Completion
		t.StartedAt, t.At, t.Trace, t.Call = 0, 0, "", ""
		s.Completion = &t
	case s.Intent != nil:
		s.Intent = &engine.Intent{Index: s.Intent.Index, Decision: s.Intent.Decision}
	case s.Result != nil:
		r := *s.Result
		r.At, r.Tool, r.CallID = 0, "", ""
		s.Result = &r
	}
	return s
}

// Known implements [engine.Store].
func (p *replayer) Known(context.Context, api.Run) (engine.Known, error) {
	k := engine.Known{
		Agent: p.given.Agent, Begun: true, Turns: p.Turn.Number - 1, Cost: p.Cost, Counters: p.Reference.Counters, Notice: p.Reference.Notice,
		Journal: p.Reference.Since, Cancelled: p.cancelled,
	}
	if p.Turn.Number > 1 {
		k.Input = p.Input
	}
	return k, nil
}

// Changes implements [engine.Store]. The recording has the agent's state, so it returns none.
func (p *replayer) Changes(context.Context, api.Run) ([]api.AgentChanged, error) { return nil, nil }

// Persist implements [engine.Store]. It compares the turn and the end and finishes the replay.
func (p *replayer) Persist(_ context.Context, rec *engine.Record, _ engine.Input, end *engine.End) error {
	if next := p.next(); next != nil {
		if takesOver(next) {
			p.crashed = true
			return errCrashed
		}
		if next.Begin != nil && p.End != nil && !p.End.Success { // the recorded run was given up before this turn was persisted
			return p.ending()
		}
		p.differ("turn", "", next.Kind(), "the turn ends")
		return errReplayed
	}
	was, is := p.Turn, rec.Turn
	was.StartedAt, is.StartedAt, was.Trace, is.Trace = 0, 0, "", ""
	if p.thinker != p.owner { // the agent's state may have changed while the run had no owner
		is.State = was.State
	}
	same := p.compare("turn", was, is)
	switch {
	case !same:
	case p.End == nil && end != nil:
		p.differ("end", "", "the run continues", "the run ends: "+end.Why)
	case p.End != nil && end == nil:
		p.differ("end", "", "the run ends: "+p.End.Why, "the run continues")
	case end != nil:
		a, b := *p.End, *end
		if a.Changed == nil && a.Sleep == 0 { // the store drops the sleep if the agent was told to sleep during the run
			b.Sleep, b.Alarm = 0, false
		}
		a.Changed, b.Changed, a.Earlier, b.Earlier = nil, nil, nil, nil
		same = p.compare("end", a, b)
	}
	if after := p.After; same && after != nil && after.Agent != "" {
		p.compare("counters", after.Counters, rec.Counters)
		p.compare("notice", after.Notice, engine.Clean(rec.Notice))
	}
	p.persisted = true
	if end == nil {
		return errReplayed
	}
	return nil
}

// stop returns the error that ended the recorded run, at the point where the recording
// has no more steps.
func (p *replayer) stop() error {
	if next := p.next(); next != nil && takesOver(next) {
		p.crashed = true
		return errCrashed
	}
	if p.End == nil || p.End.Success {
		p.differ("call", "", "the journal has no step of it", "the call is made")
		return errReplayed
	}
	return p.ending()
}

// ending returns the error that ended the recorded run, and cancels the context if the
// run was cancelled or timed out.
func (p *replayer) ending() error {
	if p.End.Reason == api.ReasonCancelled {
		p.cancelled = p.End.Error
		err := engine.Cancelled(p.End.Error)
		p.cancel(err)
		return err
	}
	if strings.HasPrefix(p.End.Error, engine.TookLonger) {
		p.cancel(context.DeadlineExceeded)
		return context.DeadlineExceeded
	}
	err := &api.Error{Code: p.End.Code, Reason: p.End.Reason, Message: p.End.Error, Next: p.End.Next}
	if !api.OverLimit(err.Reason) && err.Reason != api.ReasonLimit { // the sleep after a limit depends on RetryAfter
		err.RetryAfter = afterEveryDeadline.Milliseconds()
	}
	return err
}

// afterEveryDeadline is longer than any run. An error that is usually retried has ended the
// recorded run, so it was to be retried after the run's deadline.
const afterEveryDeadline = 24 * time.Hour

package engine

import (
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// state holds a run as rebuilt from the store and the tail of the journal.
type state struct {
	cmd      api.Run
	agent    Agent
	input    Input
	number   int // turn in progress, from 1
	attempts int
	last     uint64   // sequence of the journal's last entry for this session
	since    uint64   // the same, before the turn in progress
	owned    bool     // this owner has appended its begin to the journal
	begun    int64    // time of the run's first begin, in Unix µs; 0: the store has it
	after    position // version of the session before the run
	fresh    bool     // no step other than an end or a release follows after

	// Announced with the next entry, see [Step].
	persisted int64
	changed   []api.AgentChanged
	old       []Step // entries of the turn in progress written by an older release
	recorded  func() // called once the store has the run's begin; nil: the store has it, or the run has not begun

	before int64 // end of the session's previous turn, in Unix µs
	root   trace.SpanContext
	began  time.Time // start of the root span

	tools        map[string]Tool // available in this turn
	tier         api.Tier
	funds        *api.Balance // nil: unknown
	settledFunds *api.Funds   // funds after the previous turn was settled; nil: the balance must be requested
	counters     api.Counters
	notice       string      // produced by the previous turn for this one
	limit        *time.Timer // calls expire at the end of the run's time
	expire       func()      // cancels the run because its time is over
	joined       Input       // input that joined this turn after the first turn
	steered      func() bool // see [Queue]
	joins        bool        // a message joins the next turn, and its notice is read

	steppedAt int64 // time of the last entry of the turn, in Unix µs
	waitedAt  int64 // time from which the turn waits for policy, see [policyPatience], in Unix µs

	completion *Completion
	settling   Settling // pending settlement of the completion's cost; nil: started by another owner, or already waited for
	settled    bool     // the completion's cost is settled
	results    map[int]Result
	intents    map[int]Intent
	ahead      *execution // first call, evaluated while the completion was stored; nil: not evaluated early, or already executed

	conversation *Conversation // for the next prompt; nil: must be read from the store
	recalled     *recalled     // for this run; nil: not recalled yet

	cost  api.Micros
	total int // turns of this run that are persisted
}

// apply folds a journal step into the state. It ignores the steps of other runs and
// turns.
func (s *state) apply(step Step) {
	if step.Run != s.cmd.Run || step.Turn != s.number {
		return // the store already has an older turn
	}
	if step.Persisted != 0 {
		s.persisted = 0 // this step announced it
	}
	if step.Old {
		s.old = append(s.old, step)
	}
	if b := step.Begin; b != nil {
		s.attempts = b.Attempt
		s.resumed(b.At)
		if b.Input != nil {
			s.input, s.begun = *b.Input, b.At
		}
	}
	if step.Joined != nil {
		s.join(*step.Joined)
	}
	if step.Completion != nil {
		s.completion = step.Completion
		s.advanced(step.Completion.At)
	}
	if step.Result != nil {
		s.results[step.Result.Index] = *step.Result
		s.advanced(step.Result.At)
	}
	if step.Intent != nil {
		s.intents[step.Intent.Index] = *step.Intent
		s.advanced(step.Intent.At)
	}
}

// advanced records the time of a step of the turn, from which it waits for policy.
func (s *state) advanced(at int64) { s.steppedAt, s.waitedAt = at, at }

// resumed records the time of a begin. Owners that retry the turn continue the wait of the
// previous one; after a longer pause, in which no owner asked policy, it begins again.
func (s *state) resumed(at int64) {
	if at-s.steppedAt > policyPatience.Microseconds() {
		s.waitedAt = at
	}
	s.steppedAt = at
}

// join adds input that joined the turn that begins. The principal of the run is lowered
// to that of the input and stays so until the run ends (docs/reference/loop.md,
// Principals).
func (s *state) join(in Input) {
	s.joined.Text = strings.TrimSpace(s.joined.Text + "\n\n" + in.Text)
	s.joined.Merged = append(s.joined.Merged, in.Merged...)
	s.input.By = api.Lowest(s.input.By, in.By)
}

// words returns the new input of the turn in progress: the run's input in the first
// turn, the input that joined in later turns, and the notice of the previous turn.
func (s *state) words() string {
	text := s.joined.Text
	if s.number == 1 {
		text = s.input.Text
	}
	if s.notice != "" {
		text = strings.TrimSpace(text + "\n\n[system] " + s.notice)
	}
	return text
}

// capped reports whether the cost of the run, with the turn in progress, has reached
// the run's cost cap.
func (s *state) capped() bool {
	return s.cmd.CostCap > 0 && s.cost+s.completion.Answer.Cost >= s.cmd.CostCap
}

// asked reports whether the turn has input from outside the agent.
func (s *state) asked() bool {
	return s.number == 1 && (s.cmd.Kind != api.RunWake || s.input.Inbox > 0) || s.joined.Text != ""
}

func (s *state) next(rec Record) {
	s.cost += s.completion.Answer.Cost
	s.number++
	s.total++
	s.attempts, s.since = 1, rec.Journal
	s.persisted, s.changed, s.begun = rec.Turn.EndedAt, rec.Changed, 0
	if s.spends() {
		s.settledFunds = nil
	}
	s.completion, s.settling, s.settled, s.results, s.intents, s.old = nil, nil, false, map[int]Result{}, map[int]Intent{}, nil
	s.counters, s.notice, s.joined = rec.Counters, rec.Notice, Input{}
	if c := s.conversation; c != nil {
		s.conversation = c.with(rec)
	}
}

// spends reports whether a call of the turn may have changed the agent's funds.
func (s *state) spends() bool {
	return slices.ContainsFunc(s.completion.Answer.ToolCalls, func(c api.ToolCall) bool { return s.tools[c.Name].Spends })
}

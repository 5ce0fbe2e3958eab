// Package turn is an agent's run as a state machine: CONTEXT, EXECUTE and
// PERSIST of seed 004 with the crash rules of design §4. It knows no NATS and no
// SQL; what it needs from outside are the interfaces of ports.go.
//
// The journal is its memory across crashes. Every step is appended before what
// it announces is acted on, so a run that is taken up again repeats nothing that
// has a result:
//
//	begin ─▶ thought ─▶ intent ─▶ result ─▶ intent ─▶ … ─▶ result ─▶ PERSIST ─▶ next turn, or end
//	        │                  │
//	        │                  └ crash here: the call has an intent and no result.
//	        │                    pure, idempotent, keyed: run again, same key.
//	        │                    irreversible: outcome_unknown, and the model is told.
//	        └ crash here: asked again under the same id; the router answers from
//	          its store and charges nothing.
//
// Durable writes of a run with one tool call, then words: begin, thought, intent,
// result, thought, end, and two PERSISTs. Events are views of the entries (see
// [api.Journal]): what a PERSIST has made true is announced by the entry after it.
package turn

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// Step is one entry of a session's journal; one of the parts from Begin on is set.
// [api.Journal.Events] reads it, too.
type Step struct {
	Run  string `json:"-"`
	Turn int    `json:"-"`
	Old  bool   `json:"-"` // of a release that announced its events by messages of their own

	// What the entry announces beside itself: when the turn before was persisted, in
	// Unix µs, and how the agent has changed.
	Persisted int64              `json:"persisted,omitempty"`
	Changed   []api.AgentChanged `json:"changed,omitempty"`

	Begin   *Begin       `json:"begin,omitempty"`
	Joined  *Input       `json:"joined,omitempty"` // came into a run under way
	Thought *Thought     `json:"thought,omitempty"`
	Result  *Result      `json:"result,omitempty"`
	Intent  *Intent      `json:"intent,omitempty"`
	End     *api.LoopEnd `json:"end,omitempty"`
	Release bool         `json:"release,omitempty"` // the owner hands the run back
}

// Kind names a step for people who read the journal.
func (s Step) Kind() string {
	switch {
	case s.Begin != nil:
		return api.EntryBegin
	case s.Joined != nil:
		return api.EntryJoined
	case s.Thought != nil:
		return api.EntryThought
	case s.Intent != nil:
		return api.EntryIntent
	case s.End != nil:
		return api.EntryEnd
	case s.Release:
		return api.EntryRelease
	}
	return api.EntryResult
}

// Begin says that an owner took the run up. The first one fixes the run's input;
// later ones fence the owner before.
type Begin struct {
	Kind    api.RunKind `json:"kind,omitempty"`  // of the run, where Input is
	Input   *Input      `json:"input,omitempty"` // nil when an earlier begin or the store has it
	At      int64       `json:"at"`
	Since   int64       `json:"since,omitempty"` // when the turn's trace began: before At if an owner left no begin
	Attempt int         `json:"attempt"`         // from 1, since the last persisted turn
}

// Input is what a run starts from.
type Input struct {
	Text  string        `json:"text"` // as the model sees it
	By    api.Principal `json:"by"`   // the lowest of all that went into Text
	Inbox int           `json:"inbox,omitempty"`
	// Deadline ends the run, in Unix µs: the first owner sets it, all keep it. 0: a
	// release before began the run, and each owner gives it the whole limit.
	Deadline int64 `json:"deadline,omitempty"`
	// Merged are messages that came in with others; their fate is decided here.
	Merged []api.Run `json:"merged,omitempty"`
}

// Thought is the model's answer, paid for.
type Thought struct {
	Completion api.Completion `json:"completion"`
	Tokens     int64          `json:"tokens"`  // of the prompt, by estimate
	Offered    int            `json:"offered"` // tools
	StartedAt  int64          `json:"startedAt"`
	At         int64          `json:"at"`
	Trace      string         `json:"trace"`
	Prompt     *Reference     `json:"prompt,omitempty"` // what it was asked
	Call       string         `json:"call,omitempty"`   // id of the router's call; "": it is settled, as by a release before
}

// Intent says that a call was allowed and will be made now. Token is the signed
// decision.
type Intent struct {
	Index     int             `json:"index"`
	Decision  string          `json:"decision"`
	Token     string          `json:"token,omitempty"`
	Tool      string          `json:"tool,omitempty"`
	CallID    string          `json:"callId,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	At        int64           `json:"at"`
}

// Result says how a call ended.
type Result struct {
	Index      int         `json:"index"`
	Tool       string      `json:"tool,omitempty"`
	CallID     string      `json:"callId,omitempty"`
	Decision   string      `json:"decision,omitempty"`
	Action     api.Action  `json:"action,omitempty"`
	Outcome    api.Outcome `json:"outcome"`
	Text       string      `json:"text,omitempty"`
	Error      string      `json:"error,omitempty"`
	DurationMS int64       `json:"durationMs"`
	Sleep      *Sleep      `json:"sleep,omitempty"`
	Blocked    bool        `json:"blocked,omitempty"`
	Ends       bool        `json:"ends,omitempty"` // the run has done what it was for
	At         int64       `json:"at"`
}

// Sleep is what a sleep call asked for.
type Sleep struct {
	Until  int64  `json:"until"`
	Reason string `json:"reason,omitempty"`
}

// ID is the id of a run's turn.
func ID(run string, number int) string { return run + "." + strconv.Itoa(number) }

// Key is the idempotency key of a call: it survives crashes and replicas.
func Key(run string, number, index int) string { return ID(run, number) + "." + strconv.Itoa(index) }

// state is a run as rebuilt from the store and the journal's tail.
type state struct {
	cmd      api.Run
	agent    Agent
	input    Input
	number   int // of the turn under way, from 1
	attempts int
	last     uint64   // sequence of the journal's last entry for this session
	since    uint64   // the same, before the turn
	owned    bool     // this owner has written itself into the journal
	begun    int64    // when the first owner took the run up, in Unix µs; 0: that is in the store
	after    standing // where the session stood before the run
	fresh    bool     // and it has no step since

	// What the next entry announces, see [Step].
	persisted int64
	changed   []api.AgentChanged
	old       []Step // of the turn under way, by a release before
	recorded  func() // to be called once the store has the run's beginning; nil: it has, or the run has not begun

	before int64 // when the session's turn before ended
	root   trace.SpanContext
	began  time.Time // the root span did

	tools    map[string]Tool // of this turn
	tier     api.Tier
	funds    *api.Balance // nil: unknown
	owns     *api.Funds   // after the turn before was settled; nil: treasury must be asked
	counters api.Counters
	notice   string      // of the turn before, for this one
	bound    *bound      // ends the run at its deadline
	joined   Input       // what came into this turn from outside, after the first
	steered  func() bool // see [Queue]

	thought  *Thought
	settling Settling // of the thought, if this owner asked for it and has not waited yet
	settled  bool     // the thought's cost
	results  map[int]Result
	intents  map[int]Intent
	ahead    *underway // the first call, judged while the thought was stored; nil: it was not, or it is made

	conversation *Conversation // as the next prompt needs it; nil: the store knows
	recalled     *recalled     // for this run; nil: not yet

	cost  api.Micros
	total int // turns persisted in this run
}

// apply folds a journal step into the state.
func (s *state) apply(step Step) {
	if step.Run != s.cmd.Run || step.Turn != s.number {
		return // an older turn, already in the store
	}
	if step.Persisted != 0 {
		s.persisted = 0 // it is announced
	}
	if step.Old {
		s.old = append(s.old, step)
	}
	if b := step.Begin; b != nil {
		s.attempts = b.Attempt
		if b.Input != nil {
			s.input, s.begun = *b.Input, b.At
		}
	}
	if step.Joined != nil {
		s.join(*step.Joined)
	}
	if step.Thought != nil {
		s.thought = step.Thought
	}
	if step.Result != nil {
		s.results[step.Result.Index] = *step.Result
	}
	if step.Intent != nil {
		s.intents[step.Intent.Index] = *step.Intent
	}
}

// join adds what came into the turn that begins. Its authority lowers the run's,
// to the end (design §6).
func (s *state) join(in Input) {
	s.joined.Text = strings.TrimSpace(s.joined.Text + "\n\n" + in.Text)
	s.joined.Merged = append(s.joined.Merged, in.Merged...)
	s.input.By = api.Lowest(s.input.By, in.By)
}

// words are what the turn under way is told beside the history: the run's input,
// or what came since.
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

// capped says whether the run, with the turn under way, has cost all that it may.
func (s *state) capped() bool {
	return s.cmd.CostCap > 0 && s.cost+s.thought.Completion.Cost >= s.cmd.CostCap
}

// asked says whether words of others came into the turn.
func (s *state) asked() bool {
	return s.number == 1 && (s.cmd.Kind != api.RunWake || s.input.Inbox > 0) || s.joined.Text != ""
}

func (s *state) next(rec Record) {
	s.cost += s.thought.Completion.Cost
	s.number++
	s.total++
	s.attempts, s.since = 1, rec.Journal
	s.persisted, s.changed, s.begun = rec.Turn.EndedAt, rec.Changed, 0
	if s.spends() {
		s.owns = nil
	}
	s.thought, s.settling, s.settled, s.results, s.intents, s.old = nil, nil, false, map[int]Result{}, map[int]Intent{}, nil
	s.counters, s.notice, s.joined = rec.Counters, rec.Notice, Input{}
	if c := s.conversation; c != nil {
		s.conversation = c.with(rec)
	}
}

// spends says whether a call of the turn may have moved the agent's money.
func (s *state) spends() bool {
	return slices.ContainsFunc(s.thought.Completion.ToolCalls, func(c api.ToolCall) bool { return s.tools[c.Name].Spends })
}

// calls of the turn's thought that will be made: at most limit, and none of an answer
// that was withheld.
func (s *state) calls(limit int) []api.ToolCall {
	all := s.thought.Completion.ToolCalls
	if withheld(s.thought.Completion.Finish) {
		return nil
	}
	return all[:min(len(all), limit)]
}

// record is the turn as it is stored, and as it is read back: without what a
// database cannot keep.
func (s *state) record(limit int, agentState api.AgentState, now int64) Record {
	c := s.thought.Completion
	t := api.Turn{
		ID: ID(s.cmd.Run, s.number), Agent: s.agent.ID, Session: s.cmd.Session, Run: s.cmd.Run, Number: s.number,
		State: agentState, By: s.input.By, Thinking: clean(c.Text), Calls: []api.CallState{}, Model: c.Model, Provider: c.Provider,
		Finish: c.Finish, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens, Cost: c.Cost,
		Trace: s.thought.Trace, StartedAt: s.thought.StartedAt, EndedAt: now,
	}
	t.Input = clean(s.words())
	for i, call := range c.ToolCalls {
		cs := api.CallState{Index: i, ID: clean(call.ID), Tool: clean(call.Name), Arguments: arguments(call)}
		if i >= limit {
			cs.Outcome, cs.Error = api.OutcomeError, "not run: only the first "+strconv.Itoa(limit)+" calls of a turn are made; ask again if you still need it"
		} else {
			r, there := s.results[i]
			if intent, began := s.intents[i]; !there && began {
				r = Result{Decision: intent.Decision, Action: api.Allow, Outcome: api.OutcomeUnknown, Error: "outcome unknown: the run ended during the call"}
			} else if !there {
				r = Result{Outcome: api.OutcomeError, Error: "not run: the run ended before"}
			}
			cs.Decision, cs.Action, cs.Outcome = r.Decision, r.Action, r.Outcome
			cs.Result, cs.Error, cs.DurationMS = clean(r.Text), clean(r.Error), r.DurationMS
		}
		t.Calls = append(t.Calls, cs)
	}
	return Record{Turn: t, Run: s.cmd, Journal: s.last, Counters: s.counters, Prompt: s.thought.Prompt, Begun: s.begun, Tier: s.tier}
}

// arguments keeps what the model wrote; text that is not JSON becomes a JSON
// string, so that every reader can still decode the row.
func arguments(c api.ToolCall) json.RawMessage {
	if json.Valid([]byte(c.Arguments)) {
		return json.RawMessage(clean(c.Arguments))
	}
	quoted, err := api.Encode(c.Arguments)
	if err != nil {
		return json.RawMessage(`null`)
	}
	return quoted
}

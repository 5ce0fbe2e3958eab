// Package engine executes an agent's runs as a state machine: the phases CONTEXT, EXECUTE
// and PERSIST with their crash rules (docs/reference/loop.md, Phases). It must not use
// NATS or SQL; it reaches the other components through the interfaces of ports.go.
//
// The journal makes a run resumable. Every step is appended before the engine acts on
// it, so an owner that resumes a run repeats no call that has a result:
//
//	begin ─▶ thought ─▶ intent ─▶ result ─▶ intent ─▶ … ─▶ result ─▶ PERSIST ─▶ next turn, or end
//	        │                  │
//	        │                  └ crash here: the call has an intent and no result.
//	        │                    pure, idempotent, keyed: executed again, same key.
//	        │                    irreversible: outcome_unknown, reported to the model.
//	        └ crash here: the model call is repeated under the same id; the router
//	          returns the stored answer and charges nothing.
//
// A run with one tool call and a closing text makes these durable writes: begin,
// thought, intent, result, thought, end, and two PERSISTs. Events are views of the
// entries (see [api.Journal]): the entry after a PERSIST announces the changes of that
// PERSIST.
//
// Besides the vocabulary of pkg/api and what the journal and the store hold of it, the
// engine uses these requests and answers as they are, because an own type would copy
// each field: [api.Complete] with [api.Delta] and [api.Completion], [api.Evaluate] with
// [api.Decision] and [api.Grant], [api.SetAlarm], [api.Balance], [api.Spent] and
// [api.InboxMessage]. The root package selects the form in which they are sent.
package engine

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Step is one entry of a session's journal. Exactly one of the fields from Begin on is
// set. [api.Journal.Events] decodes the same JSON.
type Step struct {
	Run  string `json:"-"`
	Turn int    `json:"-"`
	Old  bool   `json:"-"` // written by an older release, which published its events as separate messages

	// Announced with the entry: the time at which the previous turn was persisted, in
	// Unix µs, and the changes of the agent.
	Persisted int64              `json:"persisted,omitempty"`
	Changed   []api.AgentChanged `json:"changed,omitempty"`

	Begin      *Begin       `json:"begin,omitempty"`
	Joined     *Input       `json:"joined,omitempty"` // messages that joined a run in progress
	Completion *Completion  `json:"thought,omitempty"`
	Result     *Result      `json:"result,omitempty"`
	Intent     *Intent      `json:"intent,omitempty"`
	End        *api.LoopEnd `json:"end,omitempty"`
	Release    bool         `json:"release,omitempty"` // the owner returns the run unfinished
}

// Kind returns the name of the step's kind, for display.
func (s Step) Kind() string {
	switch {
	case s.Begin != nil:
		return api.EntryBegin
	case s.Joined != nil:
		return api.EntryJoined
	case s.Completion != nil:
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

// Events returns the events that the step announces in the journal of a run.
func (s Step) Events(cmd api.Run) ([]api.Message, error) {
	data, err := api.Encode(s)
	if err != nil {
		return nil, err
	}
	return api.Journal{Session: cmd.Session, Run: s.Run, Agent: cmd.Agent, Turn: s.Turn, Kind: s.Kind(), Form: api.JournalForm, Entry: data}.Events()
}

// Begin records that an owner started or resumed the run. The first one fixes the run's
// input; each later one fences the previous owner.
type Begin struct {
	Kind    api.RunKind `json:"kind,omitempty"`  // of the run; set together with Input
	Input   *Input      `json:"input,omitempty"` // nil if an earlier begin or the store has it
	At      int64       `json:"at"`
	Since   int64       `json:"since,omitempty"` // start of the turn's trace; before At if a previous owner crashed before its begin
	Attempt int         `json:"attempt"`         // counts from 1, since the last persisted turn
}

// Input is the input of a run, or of messages that joined it.
type Input struct {
	Text  string        `json:"text"` // in the form that the model receives
	By    api.Principal `json:"by"`   // the lowest principal of all parts of Text
	Inbox int           `json:"inbox,omitempty"`
	// Deadline is the time at which the run ends, in Unix µs. The first owner sets it
	// and all later owners use it. 0: an older release began the run, and each owner
	// applies the whole time limit.
	Deadline int64 `json:"deadline,omitempty"`
	// Merged are the messages that were merged into this input. Their outcome is
	// recorded when the input is.
	Merged []api.Run `json:"merged,omitempty"`
}

// Completion records the completion of a model call.
type Completion struct {
	Answer    api.Completion `json:"completion"`
	Tokens    int64          `json:"tokens"`  // estimated size of the prompt
	Offered   int            `json:"offered"` // number of tools offered to the model
	StartedAt int64          `json:"startedAt"`
	At        int64          `json:"at"`
	Trace     string         `json:"trace"`
	Prompt    *Reference     `json:"prompt,omitempty"` // nil for a turn without a model call
	Call      string         `json:"call,omitempty"`   // id of the router's call; "": no settlement is pending, as in entries of older releases
}

// Intent records that a call was allowed and is about to be executed. Token is the
// signed decision.
type Intent struct {
	Index     int             `json:"index"`
	Decision  string          `json:"decision"`
	Token     string          `json:"token,omitempty"`
	Tool      string          `json:"tool,omitempty"`
	CallID    string          `json:"callId,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	At        int64           `json:"at"`
}

// Result records the outcome of a tool call.
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
	Ends       bool        `json:"ends,omitempty"` // the call completed the task of the run
	At         int64       `json:"at"`
}

// Sleep holds the arguments of a sleep call. Until is in Unix µs.
type Sleep struct {
	Until  int64  `json:"until"`
	Reason string `json:"reason,omitempty"`
}

// ID returns the id of a run's turn.
func ID(run string, number int) string { return run + "." + strconv.Itoa(number) }

// runOf returns the run of a turn.
func runOf(turn string) string { return turn[:max(0, strings.LastIndexByte(turn, '.'))] }

// Key returns the idempotency key of a call. Every owner of the run derives the same
// key.
func Key(run string, number, index int) string { return api.CallKey(ID(run, number), index) }

package turn

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// Agent is what a run must know of its agent.
type Agent struct {
	ID, Name, Address, Creator string
	Description                string
	Message                    string // of its creator, said before its first turn
	Genesis                    string // body of the AGENT.md
	Model                      string
	Tools                      []string
	MaxTurns, MaxCalls         int // per run, per turn
	Network                    bool
	ExecTimeoutS, RunTimeoutS  int
	Workspace                  string // absolute folder
	State                      api.AgentState
	Turns                      int64 // it ever had, in all its sessions
	Autonomous                 bool  // wakes by itself again after every sleep
	Window, Reserve, Flush     int64 // of the context, in tokens; 0: 128,000, 4,000 and 8,000 (seed 004)
	Revisions                  Revisions
}

// Revisions tell whether what an agent's sources read of the store has changed. What was
// committed before they were read is in them. Two that are equal are of the same contents.
type Revisions struct {
	Known bool
	Soul  string // hash of its latest version; "" if it has none
	Goal  string // its active goal and the number of the goal's last change; "" if none is active
}

// Record is a turn with the command of its run and the journal entry it was made
// from.
type Record struct {
	Turn     api.Turn
	Run      api.Run
	Journal  uint64
	Counters api.Counters // of the session, from now on
	Notice   string       // for the session's next turn
	Prompt   *Reference   // nil: the model was not asked
	Begun    int64        // with a run's first turn: when its first owner took it up, in Unix µs
	Tier     api.Tier     // of the agent

	// Set by [Store.Persist].
	Changed  []api.AgentChanged // by the run's beginning and, if the run goes on, by the turn
	Position int64              // of the turn in its session; 0: another owner wrote it
}

// End is how a run ended.
type End struct {
	Run      api.Run           `json:"run"`
	Input    Input             `json:"input"`
	Success  bool              `json:"success"`
	Code     api.Code          `json:"code,omitempty"` // of the error, "" on success
	Reason   string            `json:"reason,omitempty"`
	Error    string            `json:"error,omitempty"`
	Next     string            `json:"next,omitempty"` // what to do about it
	Response string            `json:"response,omitempty"`
	Turns    int               `json:"turns"`
	Cost     api.Micros        `json:"cost"`
	At       int64             `json:"at"`
	State    api.AgentState    `json:"state"` // of the agent from now on
	Why      string            `json:"why"`
	Sleep    int64             `json:"sleep,omitempty"` // until, 0: until something happens
	Alarm    bool              `json:"alarm,omitempty"` // Sleep needs an alarm that is not set yet
	Fate     api.Fate          `json:"fate,omitempty"`  // "" in what older releases wrote: consumed
	Into     string            `json:"into,omitempty"`  // the run that it was merged into
	Changed  *api.AgentChanged `json:"changed,omitempty"`
	// Earlier are the changes that the store made with the run's only turn, before Changed.
	Earlier []api.AgentChanged `json:"earlier,omitempty"`
}

// Known is what the store has of a run and its session.
type Known struct {
	Agent   Agent
	Begun   bool  // the run is recorded: [Store.Started], or its first turn
	Turns   int   // persisted turns of this run
	Input   Input // of the run, if a turn is persisted
	Cost    api.Micros
	Journal uint64 // last journal entry that is in the store, for this session
	Last    int64  // position of the session's last turn; 0: it has none
	Reset   int64  // position of the last turn that is no longer sent to a model
	Ended   *End   // the run is over
	Latest  bool   // the session's last turn is the run's last
	Before  int64  // when the session's last turn ended; 0: there is none

	Counters   api.Counters // of the session
	Notice     string       // for the session's next turn
	Cancelled  string       // why the run was cancelled; "" when it was not
	Terminated string       // why the session takes no messages; "" when it does
}

// Past is what is known of a turn that an owner before may have begun.
type Past struct {
	Began  time.Time // when it did; zero when the journal does not say
	Before time.Time // when the session's turn before ended; zero: there is none
}

// Store persists turns. Errors: NotFound for an agent or session that does not
// exist.
type Store interface {
	// Known reads what there is of a run.
	Known(ctx context.Context, cmd api.Run) (Known, error)
	// Changes are those that a run has made of its agent, in order.
	Changes(ctx context.Context, cmd api.Run) ([]api.AgentChanged, error)
	// Persist writes a turn, its calls, the session's sums and, with end, the run's
	// end and the agent's state, in one transaction; unique on run and number, so
	// that writing twice is writing once. With a run's first turn it records the run, and
	// wakes the agent: to waking, and from there to the state that its tier gives it. It
	// sets end to what is stored, with the agent's changes. A run that goes on leaves its
	// agent in the turn's state; rec is told of the changes. Errors: Conflict when another
	// owner's turn is there and the run goes on otherwise; Denied with ReasonCancelled when
	// the run was cancelled and end does not say so: nothing is written then.
	Persist(ctx context.Context, rec *Record, input Input, end *End) error
	// Drop ends a run without a turn, and returns the end that is stored: another
	// one if the run was over before. Errors: Conflict for one that has begun and
	// would expire.
	Drop(ctx context.Context, end End) (End, error)
	// Merge gives runs that wait their fate: taken in by another. Those that have one
	// keep it.
	Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error
	// Over says whether a run has a fate or an end.
	Over(ctx context.Context, run string) (bool, error)
}

// Journal is the session's journal. Errors: Conflict when another owner wrote
// since last: the run has another owner now.
type Journal interface {
	Append(ctx context.Context, cmd api.Run, step Step, last uint64) (uint64, error)
	// Tail reads what follows an entry and the sequence of the last one. Errors: Conflict
	// while the session is another owner's.
	Tail(ctx context.Context, cmd api.Run, after uint64) ([]Step, uint64, error)
}

// Router is the inference-router.
type Router interface {
	// Complete asks a model. It returns as soon as the answer is stored; the settlement
	// of its cost may be under way then, and what it has for that is freed when ctx ends.
	// An error is one of the call: there is no answer.
	Complete(ctx context.Context, q Question, delta func(api.Delta)) (api.Completion, Settling, error)
	// Confirm settles an answer whose [Settling] was lost, because it was another
	// owner's. Funds as [Settling.Wait] returns them. Errors: NotFound for a call
	// without a stored answer, Unavailable.
	Confirm(ctx context.Context, agent, call string) (*api.Funds, error)
}

// Question is a call of a model. Its prompt is there twice for a router that takes
// it in one form only.
type Question struct {
	api.Complete

	// Encoded are the messages as package chat encodes them, Kit the tools. nil: they are
	// encoded when they are sent.
	Encoded, Kit []byte
}

// V2 is the question with its prompt encoded.
func (q Question) V2() (api.CompleteV2, error) {
	m := api.CompleteV2{Messages: q.Encoded, Tools: q.Kit, Call: q.Complete}
	if m.Messages == nil {
		m.Messages = encode(q.Messages)
	}
	var err error
	if m.Tools == nil {
		m.Tools, err = chat.EncodeTools(q.Tools)
	}
	return m, err
}

// Settling is the settlement of an answer.
type Settling interface {
	// Wait returns when treasury has settled the answer's cost, with the agent's funds
	// after it, nil if they are not known. It must be called once at most. Errors:
	// Unavailable; [Router.Confirm] may be asked then.
	Wait(ctx context.Context) (*api.Funds, error)
}

// Settled is the [Settling] of an answer whose cost is settled, with the agent's funds
// after it; nil: they are not known.
type Settled struct{ Funds *api.Funds }

// Wait implements [Settling].
func (s Settled) Wait(context.Context) (*api.Funds, error) { return s.Funds, nil }

// Ask asks a model and returns its answer when that is settled.
func Ask(ctx context.Context, r Router, q Question, delta func(api.Delta)) (api.Completion, error) {
	answer, settling, err := r.Complete(ctx, q, delta)
	if err == nil {
		_, err = settling.Wait(ctx)
	}
	return answer, err
}

// Policy judges calls and Verify checks the token of a decision.
type Policy interface {
	Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error)
	Verify(ctx context.Context, token string) (api.Grant, error)
}

// Inbox is the agent's inbox in social.
type Inbox interface {
	// Claim hands a run messages of one sender, "" for all.
	Claim(ctx context.Context, agent, run, from string) ([]api.InboxMessage, error)
	Settle(ctx context.Context, agent, run string) error
}

// Queue is what waits on a session behind the run under way.
type Queue interface {
	// Waiting returns the messages that wait behind cmd, in order.
	Waiting(ctx context.Context, cmd api.Run) ([]api.Run, error)
	// Watch calls cancel with [Cancelled] when the run is cancelled, until stop is
	// called. steered says whether a message has come that wants to join the run since
	// it was asked last; it may be wrong in both directions.
	Watch(cmd api.Run, cancel context.CancelCauseFunc) (steered func() bool, stop func())
}

// Alarms wake agents by time.
type Alarms interface {
	SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error)
}

// Treasury tells the tier.
type Treasury interface {
	Balance(ctx context.Context, agent string) (api.Balance, error)
	// Spent is what thoughts of a turn have cost, and what is held for them yet.
	Spent(ctx context.Context, agent, turn string) (api.Spent, error)
}

// Events announces what happens and is in no entry of a journal. Post returns at once;
// Wait returns when all are stored. Ids make repeated posts one event.
type Events interface {
	Post(ctx context.Context, id string, m api.Message) error
	Wait(ctx context.Context) error
	// Thinking and Delta are best effort.
	Thinking(ctx context.Context, t api.Thinking)
	Delta(ctx context.Context, d api.StreamDelta)
	// Progress is best effort, and called by several calls of a turn at once.
	Progress(ctx context.Context, p api.ToolProgress)
}

// Outputs keeps the whole of what a tool said where only a part goes into the
// turn. Keeping the same again changes nothing.
type Outputs interface {
	Keep(ctx context.Context, turn string, index int, text string) error
}

// Layer is a part of the system prompt that comes from outside the engine: the
// soul, MEMORY.md, the skills, the list of what is to be done.
type Layer struct {
	Name   string // for people and for the replay, as "soul"
	Text   string // "" leaves the layer out
	Budget int64  // tokens; 0: the context manager's default. What is over is cut
	Last   bool   // comes after everything else in the prompt, as the todo list does
}

// Source gives a layer for an agent's next turn. An error leaves the layer out: a
// prompt without memories is better than no prompt.
type Source interface {
	Layer(ctx context.Context, a Agent) (Layer, error)
}

// Memory recalls what helps with a query, rendered for a prompt in at most budget
// tokens; "" when there is nothing.
type Memory interface {
	Recall(ctx context.Context, agent, session, query string, budget int64) (string, error)
}

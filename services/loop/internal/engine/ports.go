package engine

import (
	"cmp"
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Agent describes the agent of a run.
type Agent struct {
	ID, Name, Address, Creator string
	Description                string
	Message                    string // from the creator, shown to the model in the agent's first turn
	Genesis                    string // body of the AGENT.md
	Model                      string // preferred by the agent's choice, or else Defined
	Defined                    string `json:",omitempty"` // preferred by its definition
	Choice                     Choice `json:",omitzero"`
	Tools                      []string
	MaxTurns, MaxCalls         int // per run and per turn
	Network                    bool
	ExecTimeoutS, RunTimeoutS  int
	Workspace                  string // absolute folder
	State                      api.AgentState
	Turns                      int64 // in all sessions of the agent
	Autonomous                 bool  // the end of each of its own runs sets an alarm
	Window, Reserve, Flush     int64 // of the context, in tokens; 0: the model's window, 4,000 and 8,000 (docs/reference/context.md, Window)
	Revisions                  Revisions
}

// Revisions identify the contents of the store that an agent's sources depend on. They
// cover all transactions that were committed before the revisions were read. Equal
// revisions have equal contents.
type Revisions struct {
	Known bool
	Soul  string // hash of the latest version; "" if there is none
	Goal  string // active goal and the number of its last change; "" if no goal is active
	// Choice is not a revision: it is read with them, so that it applies to the next model
	// call.
	Choice Choice `json:",omitzero"`
}

// Choice is how an agent has chosen to think, see [api.ChooseModel].
type Choice struct {
	Model      string // "": that of the definition
	LowCompute bool
}

// Choose applies a choice to the agent.
func (a *Agent) Choose(c Choice) { a.Choice, a.Model = c, cmp.Or(c.Model, a.Defined) }

// Record holds a turn with its run and the sequence of the journal entry that it
// includes.
type Record struct {
	Turn     api.Turn
	Run      api.Run
	Journal  uint64
	Counters api.Counters // of the session, after this turn
	Notice   string       // for the session's next turn
	Prompt   *Reference   // nil: no model was called
	Begun    int64        // set with the run's first turn: time of its first begin, in Unix µs
	Tier     api.Tier     // of the agent

	// Set by [Store.Persist].
	Changed  []api.AgentChanged // by the begin of the run and, if the run continues, by the turn
	Position int64              // of the turn in its session; 0: another owner persisted the turn
}

// End holds the outcome of a run.
type End struct {
	Run      api.Run           `json:"run"`
	Input    Input             `json:"input"`
	Success  bool              `json:"success"`
	Code     api.Code          `json:"code,omitempty"` // of the error, "" on success
	Reason   string            `json:"reason,omitempty"`
	Error    string            `json:"error,omitempty"`
	Next     string            `json:"next,omitempty"` // suggested action after the error
	Response string            `json:"response,omitempty"`
	Turns    int               `json:"turns"`
	Cost     api.Micros        `json:"cost"`
	At       int64             `json:"at"`
	State    api.AgentState    `json:"state"` // of the agent after the run
	Why      string            `json:"why"`
	Sleep    int64             `json:"sleep,omitempty"` // wake time in Unix µs; 0: until the next message or wake
	Alarm    bool              `json:"alarm,omitempty"` // an alarm for Sleep must still be set
	Outcome  api.RunOutcome    `json:"fate,omitempty"`  // "" in rows of older releases: consumed
	Into     string            `json:"into,omitempty"`  // run that this one was merged into
	Changed  *api.AgentChanged `json:"changed,omitempty"`
	// Unanswered is set if the run ended before a model had answered its mail, so that
	// another run answers it.
	Unanswered bool `json:"unanswered,omitempty"`
	// Earlier are the changes of the agent before Changed that the store made with the
	// run's only turn.
	Earlier []api.AgentChanged `json:"earlier,omitempty"`
}

// Known holds the store's data about a run and its session.
type Known struct {
	Agent   Agent
	Begun   bool  // the store has a row of the run: written at its begin, or with its first turn
	Turns   int   // persisted turns of this run
	Input   Input // of the run, if a turn is persisted
	Cost    api.Micros
	Journal uint64 // last journal entry of the session that is included in the store
	Last    int64  // position of the session's last turn; 0: there is none
	Reset   int64  // position of the last turn that is excluded from prompts
	Ended   *End   // nil: the run has not ended
	Latest  bool   // the session's last turn is the last turn of this run
	Before  int64  // end of the session's last turn, in Unix µs; 0: there is none

	Counters   api.Counters // of the session
	Notice     string       // for the session's next turn
	Cancelled  string       // reason of the run's cancellation; "": not cancelled
	Terminated string       // reason of the session's termination; "": not terminated
}

// Past describes a turn that a previous owner may have started.
type Past struct {
	Began  time.Time // start of the turn; zero if the journal has none
	Before time.Time // end of the session's previous turn; zero if there is none
}

// Store persists turns. Errors: NotFound for an agent or session that does not exist.
type Store interface {
	// Known reads the stored state of a run, its session and its agent.
	Known(ctx context.Context, cmd api.Run) (Known, error)
	// Changes returns the changes that a run has made to its agent, in order.
	Changes(ctx context.Context, cmd api.Run) ([]api.AgentChanged, error)
	// Persist writes a turn, its calls, the session's sums and, with end, the run's end
	// and the agent's state, in one transaction. It is idempotent: a turn is unique by
	// run and number. With a run's first turn it records the run and wakes the agent:
	// first to waking, then to the state of its tier. It sets end to the stored end,
	// with the agent's changes. If the run continues, the agent's state becomes that of
	// the turn, and Persist sets the changes in rec. Errors: Conflict if another owner
	// has stored the turn and the run continues differently; Denied with
	// ReasonCancelled if the run was cancelled and end does not record that; then it
	// writes no row.
	Persist(ctx context.Context, rec *Record, input Input, end *End) error
	// Drop ends a run without a turn and returns the stored end, which is a different
	// one if the run had already ended. Errors: Conflict for a run that has begun and
	// would expire.
	Drop(ctx context.Context, end End) (End, error)
	// Merge records the outcome merged for queued runs that were merged into another
	// run. Runs that already have an outcome keep it.
	Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error
	// Waits reports whether a queued run may become part of another one: it has no
	// outcome and was not cancelled.
	Waits(ctx context.Context, run string) (bool, error)
}

// Journal is the session's journal. Errors: Conflict if another owner has appended an
// entry after last, so that the caller no longer owns the run.
type Journal interface {
	Append(ctx context.Context, cmd api.Run, step Step, last uint64) (uint64, error)
	// Tail reads the entries after a sequence and returns the sequence of the last one.
	// Errors: Conflict while another owner holds the session.
	Tail(ctx context.Context, cmd api.Run, after uint64) ([]Step, uint64, error)
}

// Router is the inference-router.
type Router interface {
	// Complete calls a model. It returns as soon as the router has stored the answer;
	// the settlement of its cost may still be in progress then, and its resources are
	// released when ctx ends. If it returns an error, there is no answer.
	Complete(ctx context.Context, q Question, delta func(api.Delta)) (api.Completion, Settling, error)
	// Confirm settles an answer without a [Settling], because a previous owner made the
	// call. It returns the funds as [Settling.Wait] does. Errors: NotFound for a call
	// without a stored answer, Unavailable.
	Confirm(ctx context.Context, agent, call string) (*api.Funds, error)
}

// Question is a call of a model.
type Question struct {
	api.Complete

	// Encoded are the messages in the encoding of package chat, EncodedTools the tools.
	// nil: the router's client encodes them.
	Encoded, EncodedTools []byte
}

// Settling is the settlement of a model call's cost.
type Settling interface {
	// Wait waits until treasury has settled the cost and returns the agent's funds
	// after it, nil if they are not known. It must be called at most once. Errors:
	// Unavailable; the caller may use [Router.Confirm] then.
	Wait(ctx context.Context) (*api.Funds, error)
}

// Settled is the [Settling] of an answer whose cost is already settled. Funds are the
// agent's funds after it; nil: they are not known.
type Settled struct{ Funds *api.Funds }

// Wait implements [Settling].
func (s Settled) Wait(context.Context) (*api.Funds, error) { return s.Funds, nil }

// Ask calls a model and returns the answer after its cost is settled.
func Ask(ctx context.Context, r Router, q Question, delta func(api.Delta)) (api.Completion, error) {
	answer, settling, err := r.Complete(ctx, q, delta)
	if err == nil {
		_, err = settling.Wait(ctx)
	}
	return answer, err
}

// Policy evaluates calls. Verify checks the token of a decision.
type Policy interface {
	Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error)
	Verify(ctx context.Context, token string) (api.Grant, error)
}

// Inbox is the agent's inbox in social.
type Inbox interface {
	// Claim assigns messages of one sender, or of all senders if from is "", to a run.
	Claim(ctx context.Context, agent, run, from string) ([]api.InboxMessage, error)
	// Settle ends the claim of a run. If it has not answered its messages, others may claim
	// them; social bounds the number of runs that may claim a message.
	Settle(ctx context.Context, agent, run string, unanswered bool) error
}

// Queue gives access to the runs that are queued on a session behind the current run.
type Queue interface {
	// Waiting returns the messages queued behind cmd, in order.
	Waiting(ctx context.Context, cmd api.Run) ([]api.Run, error)
	// Watch calls cancel with [Cancelled] when the run is cancelled, until stop is
	// called. steered reports whether a message in mode steer may have arrived since
	// the last call of Waiting; both false positives and false negatives are possible.
	Watch(cmd api.Run, cancel context.CancelCauseFunc) (steered func() bool, stop func())
}

// Alarms sets alarms, which wake agents at a time.
type Alarms interface {
	SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error)
}

// Treasury reads balances and costs.
type Treasury interface {
	Balance(ctx context.Context, agent string) (api.Balance, error)
	// Spent returns the cost of a turn's model calls and the amount that is still held
	// for them.
	Spent(ctx context.Context, agent, turn string) (api.Spent, error)
}

// Topups has credits bought for an agent whose model call was refused for lack of credits.
type Topups interface {
	// TopUp reports whether credits were bought, now or a moment ago, so that the call may
	// be made again. A failure is not an error of the run: it ends as it does without
	// credits.
	TopUp(ctx context.Context, agent string) bool
}

// Events publishes events that are not in a journal. Post returns at once; Wait returns
// when all posted events are stored. Repeated posts with the same id are one event.
type Events interface {
	Post(ctx context.Context, id string, m api.Message) error
	Wait(ctx context.Context) error
	// Live publishes a message that is not stored, for readers that are connected now. It
	// is best effort and may be called by concurrent calls of a turn.
	Live(ctx context.Context, m api.Message)
}

// Outputs stores the complete outputs of tools that are too long for a turn. Keep is
// idempotent.
type Outputs interface {
	Keep(ctx context.Context, turn string, index int, text string) error
}

// Layer is a part of the system prompt that comes from outside the engine: the soul,
// MEMORY.md, the skills, the to-do list.
type Layer struct {
	Name   string // shown to people and used by the replay, e.g. "soul"
	Text   string // "" leaves the layer out
	Budget int64  // tokens; 0: the context manager's default. Text over the budget is cut
	Last   bool   // placed after everything else in the prompt, as the to-do list
}

// Source returns a layer for an agent's next turn. If it fails, the prompt is built
// without the layer.
type Source interface {
	Layer(ctx context.Context, a Agent) (Layer, error)
}

// Memory recalls memories that match a query, rendered for a prompt in at most budget
// tokens; "" if there are none.
type Memory interface {
	Recall(ctx context.Context, agent, session, query string, budget int64) (string, error)
}

// Recorded supplies the values of a recorded turn that a replay does not compute again.
type Recorded interface {
	// RunInput returns the input of the run.
	RunInput() Input
	// Surround sets the parts of a prompt that come from outside the engine.
	Surround(in *prompt.Input)
	// Summary returns the summary for a plan. It reports a refusal if there is none.
	Summary(plan prompt.Plan) (text string, refused bool, err error)
	// Result returns the result of a call. It is called by concurrent calls.
	Result(ctx context.Context, index int) (Result, error)
	// Wire returns [Reference.Wire].
	Wire() bool
}

// Models lists the models that the router can call. It is called before every model
// call, so an implementation should cache the list.
type Models interface {
	Models(ctx context.Context) ([]api.Model, error)
}

// ContextStore stores the parts of prompts. Every write is idempotent, so two owners of
// a run can only write the same values.
type ContextStore interface {
	// Conversation reads the conversation for a session's next prompt: the latest
	// compaction and, of the turns after it, the latest n. turn is the id of the turn
	// that the prompt is for.
	Conversation(ctx context.Context, session, turn string, n int) (Conversation, error)
	// Compact stores a compaction with its summary in one transaction. It does nothing
	// if one is stored for the same session and position.
	Compact(ctx context.Context, c Compaction) error
	// Keep stores texts under their hashes. It does nothing for those that are stored.
	Keep(ctx context.Context, texts map[string]string) error
	// Text returns the text with a hash. Errors: NotFound.
	Text(ctx context.Context, hash string) (string, error)
	// Recorded returns the recording of a persisted turn. Errors: NotFound.
	Recorded(ctx context.Context, turn string) (Recording, error)
	// Prompt returns the reference of a persisted turn's prompt and the turns in the
	// prompt, with their positions. Errors: NotFound.
	Prompt(ctx context.Context, turn string) (Reference, []prompt.Turn, error)
}

// Observer records metrics. Every method is called on the run's goroutine.
type Observer interface {
	Turn(ctx context.Context, outcome string, d time.Duration)
	Tool(ctx context.Context, tool string, o api.Outcome, d time.Duration)
	Context(ctx context.Context, tokens int64)
}

// Unobserved is an [Observer] that records nothing.
type Unobserved struct{}

// Turn implements [Observer].
func (Unobserved) Turn(context.Context, string, time.Duration) {}

// Tool implements [Observer].
func (Unobserved) Tool(context.Context, string, api.Outcome, time.Duration) {}

// Context implements [Observer].
func (Unobserved) Context(context.Context, int64) {}

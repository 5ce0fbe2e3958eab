package api

import "encoding/json"

// Messages of loop, which owns agents, sessions, runs and turns (docs/reference/loop.md).
//
// History: v1 2026-11 first version.

// AgentState is the state of an agent (docs/reference/loop.md, Agent states).
type AgentState string

// The seven states of an agent.
const (
	StateSetup    AgentState = "setup"
	StateWaking   AgentState = "waking"
	StateRunning  AgentState = "running"
	StateSleeping AgentState = "sleeping"
	StateLow      AgentState = "low_compute"
	StateCritical AgentState = "critical"
	StateDead     AgentState = "dead"
)

// Agent describes an agent.
type Agent struct {
	ID          string     `json:"id"` // the name in lower case
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Address     string     `json:"address"` // of its wallet, EIP-55
	Creator     string     `json:"creator,omitempty"`
	Model       string     `json:"model,omitempty"`       // of its definition
	Chosen      string     `json:"chosenModel,omitempty"` // it precedes Model; see [ChooseModel]
	LowCompute  bool       `json:"lowCompute,omitempty"`
	Tools       []string   `json:"tools"`
	State       AgentState `json:"state"`
	Reason      string     `json:"reason,omitempty"`      // why it is in this state
	SleepUntil  int64      `json:"sleepUntil,omitempty"`  // 0: until the next message or wake
	Session     string     `json:"session"`               // its main session
	Mail        string     `json:"mailSession,omitempty"` // the session for messages of peers
	Turns       int64      `json:"turns"`
	Version     int64      `json:"version"` // number of its different definitions
	CreatedAt   int64      `json:"createdAt"`
	UpdatedAt   int64      `json:"updatedAt"`
	// Warnings names the tools of the definition that no service executes, one per
	// element. It is only set in the answer to [ApplyAgent].
	Warnings []string `json:"warnings,omitempty"`
}

// ApplyAgent creates the agent that an AGENT.md describes, or updates it. Applying the
// same text again changes nothing. Applying a deleted agent restores it with all its
// remaining data. The answer is the [Agent]. Errors: Invalid with every fault and its
// line in Details; Unavailable while treasury or heartbeat cannot be reached (then
// nothing is written).
type ApplyAgent struct {
	Source string `json:"source"`
}

// GetAgent requests one [Agent]. Errors: NotFound.
type GetAgent struct {
	Agent string `json:"agent"`
}

// ListAgents requests [Agents], by name. Errors: Invalid (limit).
type ListAgents struct {
	After string `json:"after,omitempty"` // Next of the previous page: the id of an agent
	Limit int    `json:"limit,omitempty"` // 0: 1000
}

// Agents is a list of agents.
type Agents struct {
	Agents []Agent `json:"agents"`
	Page
}

// ListSchedules requests [Schedules], by agent. Heartbeat needs them after its database was
// lost. Errors: Invalid (limit).
type ListSchedules struct {
	After string `json:"after,omitempty"` // Next of the previous page: the id of an agent
	Limit int    `json:"limit,omitempty"` // 0: 20
}

// Schedules is a list of what loop stores of the agents, including the deleted ones.
type Schedules struct {
	Agents []AgentSchedule `json:"agents"`
	Page
}

// AgentSchedule is the present state of an agent with the schedule of its AGENT.md, which is
// empty for a deleted agent.
type AgentSchedule struct {
	State AgentChanged `json:"state"` // At: time of its latest change of state
	Beats []Beat       `json:"beats"`
}

// Mode is the queue mode of a message: what it does when its session is busy
// (docs/reference/loop.md, Queue modes).
type Mode string

// The queue modes. The zero value means queue.
const (
	ModeQueue     Mode = "queue"     // it waits in order
	ModeDrop      Mode = "drop"      // it is refused with Conflict while the session is busy
	ModeInterrupt Mode = "interrupt" // it cancels the current run and drops the waiting messages
	ModeSteer     Mode = "steer"     // it is added to the current run at the next safe point; without a current run, it starts one
	ModeCollect   Mode = "collect"   // it waits, and one run processes all waiting messages of this mode
)

// MaxMessageBytes is the limit of a message's text, in bytes (docs/reference/platform.md,
// Message limits).
const MaxMessageBytes = 51_200

// QueueDepth is the number of accepted messages that may wait for a session
// (docs/reference/platform.md, Message limits).
const QueueDepth = 10

// SendMessage sends a message of the creator to an agent. The answer, [Accepted], means
// that the message is stored and will be processed. Errors: Invalid (empty, over
// [MaxMessageBytes], not UTF-8, unknown mode), NotFound (agent or session), Conflict
// (mode drop and a busy session; a terminated session, with ReasonTerminated;
// ReasonKeyTaken), Unavailable with ReasonLimit ([QueueDepth] messages wait).
type SendMessage struct {
	Agent   string `json:"agent"`
	Session string `json:"session,omitempty"` // "": the main session; "new": a new one
	Content string `json:"content"`
	Mode    Mode   `json:"mode,omitempty"`
	// ID is the caller's idempotency key, within the agent and the session. Sending the
	// same message again with its key changes nothing; another message with that key is
	// a Conflict with ReasonKeyTaken. "" makes every request a new message; a request that
	// is repeated within a call stays one.
	ID string `json:"id,omitempty"`
}

// Accepted is the answer to [SendMessage].
type Accepted struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Agent   string `json:"agent"`
	At      int64  `json:"at"`
}

// GetSession requests one [Session]. Errors: NotFound.
type GetSession struct {
	Session string `json:"session"`
}

// CreateSession creates a session of an agent, without a message. The same ID returns
// the same session. The answer is the [Session]. Errors: NotFound (agent), Invalid
// (ID).
type CreateSession struct {
	Agent string `json:"agent"`
	ID    string `json:"id,omitempty"` // idempotency key, at most 128 bytes; "": a new session
}

// ListSessions requests [Sessions], the latest first. Agent "" means all agents. Limit
// 0 means [MaxPage]. Errors: Invalid (limit, After).
type ListSessions struct {
	Agent string `json:"agent,omitempty"`
	After string `json:"after,omitempty"` // Next of the previous page
	Limit int    `json:"limit,omitempty"`
}

// Session is one conversation of an agent.
type Session struct {
	ID           string `json:"id"`
	Agent        string `json:"agent"`
	Messages     int64  `json:"messages"`
	Turns        int64  `json:"turns"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	Cost         Micros `json:"cost"`
	CreatedAt    int64  `json:"createdAt"`
	UpdatedAt    int64  `json:"updatedAt"`
	Terminated   int64  `json:"terminatedAt,omitempty"` // 0: it is not terminated
	Reason       string `json:"reason,omitempty"`       // why it was terminated
	Reset        int64  `json:"resetThrough,omitempty"` // turns up to this position are not sent to a model
}

// Sessions is a list of sessions.
type Sessions struct {
	Sessions []Session `json:"sessions"`
	Page
}

// GetTranscript requests a [Transcript]: the session's lines after sequence number
// After, in order, at most Limit of them (0: 500). Errors: NotFound.
type GetTranscript struct {
	Session string `json:"session"`
	After   int64  `json:"after,omitempty"`
	Limit   int    `json:"limit,omitempty"`
}

// Transcript is a part of a session's transcript.
type Transcript struct {
	Lines []TranscriptLine `json:"lines"`
	More  bool             `json:"more,omitempty"`
}

// TranscriptLine is one line of a JSONL transcript (docs/reference/context.md, Transcript
// format).
type TranscriptLine struct {
	Seq        int64      `json:"seq"`
	Role       string     `json:"role"` // user, assistant, tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"` // snake_case, by the format of transcripts
	ToolCallID string     `json:"tool_call_id,omitempty"`
	Timestamp  string     `json:"timestamp"` // ISO 8601 with milliseconds, UTC
	Turn       string     `json:"turn"`
}

// GetTurn requests one [Turn]. Errors: NotFound.
type GetTurn struct {
	Turn string `json:"turn"`
}

// ListTurns requests [Turns], the latest first. An empty filter matches all; Limit 0
// means 50. Errors: Invalid (limit, Before).
type ListTurns struct {
	Agent   string `json:"agent,omitempty"`
	Session string `json:"session,omitempty"`
	Run     string `json:"run,omitempty"`
	Before  string `json:"before,omitempty"` // id of a turn: only older turns
	Limit   int    `json:"limit,omitempty"`
}

// Turns is a list of turns.
type Turns struct {
	Turns []Turn `json:"turns"`
	Page         // Next is the Before of the next page
}

// Turn is one persisted turn: a model call and the tool calls of its completion.
type Turn struct {
	ID           string      `json:"id"` // <run>.<number>
	Agent        string      `json:"agent"`
	Session      string      `json:"session"`
	Run          string      `json:"run"`
	Number       int         `json:"number"` // from 1, within its run
	State        AgentState  `json:"state"`
	Input        string      `json:"input,omitempty"`
	By           Principal   `json:"by"`
	Thinking     string      `json:"thinking"`
	Calls        []CallState `json:"calls"`
	Model        string      `json:"model"`
	Provider     string      `json:"provider"`
	Finish       string      `json:"finish"`
	InputTokens  int64       `json:"inputTokens"`
	OutputTokens int64       `json:"outputTokens"`
	Cost         Micros      `json:"cost"`
	Trace        string      `json:"trace"` // hex trace id
	StartedAt    int64       `json:"startedAt"`
	EndedAt      int64       `json:"endedAt"`
}

// CallState is a tool call with its decision and outcome.
type CallState struct {
	Index      int             `json:"index"`
	ID         string          `json:"id"` // the provider's, for information only
	Tool       string          `json:"tool"`
	Arguments  json.RawMessage `json:"arguments"`
	Decision   string          `json:"decision,omitempty"` // id in policy
	Action     Action          `json:"action,omitempty"`
	Outcome    Outcome         `json:"outcome"`
	Result     string          `json:"result,omitempty"`
	Error      string          `json:"error,omitempty"`
	DurationMS int64           `json:"durationMs"`
}

// Outcome is how a tool call ended.
type Outcome string

// The outcomes. OutcomeUnknown is that of an irreversible call whose result was lost in
// a crash: it may or may not have been executed (docs/reference/loop.md, Tool classes).
const (
	OutcomeOK      Outcome = "ok"
	OutcomeError   Outcome = "error"
	OutcomeDenied  Outcome = "denied"
	OutcomeTimeout Outcome = "timeout"
	OutcomeUnknown Outcome = "outcome_unknown"
)

// RunKind is the cause of a run.
type RunKind string

// The kinds of runs. See also [RunImport].
const (
	RunMessage RunKind = "message"
	RunWake    RunKind = "wake"
	RunTask    RunKind = "task" // one attempt of a goal's task, in a session of its own
	RunMail    RunKind = "mail" // messages of one sender in the agent's inbox, in its mail session
)

// QueueTimeout is the time that a message waits for its session while another run is
// executed, in seconds. After that time it expires (docs/reference/platform.md, Message
// limits).
const QueueTimeout = 30

// Run is the command to execute one run on a session. Loop sends it to itself. It is
// the durable form of an accepted message or a wake.
type Run struct {
	Run        string    `json:"runId"`
	Agent      string    `json:"agent"`
	Session    string    `json:"sessionId"`
	Kind       RunKind   `json:"kind"`
	Content    string    `json:"content,omitempty"`
	By         Principal `json:"by"`
	Cause      string    `json:"cause,omitempty"` // of a wake
	Mode       Mode      `json:"mode,omitempty"`  // of a message; "" is queue
	AcceptedAt int64     `json:"acceptedAt"`
	// CostCap is the cost with which the run ends after its current turn
	// (docs/reference/platform.md, ignored task cost). 0: no limit, also in commands of
	// earlier releases.
	CostCap Micros `json:"costCap,omitempty"`
}

// The events of runs follow (docs/reference/loop.md, Events). They are views of the
// entries of a session's journal, see [Journal.Events] and [Views]. [StreamDelta] and
// [Thinking] are not among them.

// LoopStart is the event that a run has ended INTAKE.
type LoopStart struct {
	Run     string  `json:"runId"`
	Session string  `json:"sessionId"`
	Agent   string  `json:"agent"`
	Kind    RunKind `json:"kind"`
	At      int64   `json:"at"`
}

// LoopContext is the event that a turn's CONTEXT is complete.
type LoopContext struct {
	Run           string `json:"runId"`
	Session       string `json:"sessionId"`
	Turn          string `json:"turnId"`
	TokenEstimate int64  `json:"tokenEstimate"`
	At            int64  `json:"at"`
}

// LoopExecute is the event that a turn's EXECUTE has begun.
type LoopExecute struct {
	Run       string `json:"runId"`
	Session   string `json:"sessionId"`
	Turn      string `json:"turnId"`
	ToolCount int    `json:"toolCount"` // tools offered to the model
	At        int64  `json:"at"`
}

// ToolStart is the event that a tool call was allowed and begins.
type ToolStart struct {
	Run        string          `json:"runId"`
	Session    string          `json:"sessionId"`
	Turn       string          `json:"turnId"`
	Index      int             `json:"index"`
	ToolName   string          `json:"toolName"`
	ToolCallID string          `json:"toolCallId"`
	Arguments  json.RawMessage `json:"arguments"`
	At         int64           `json:"at"`
}

// ToolEnd is the event that a tool call ended. A denied call has no [ToolStart].
type ToolEnd struct {
	Run        string  `json:"runId"`
	Session    string  `json:"sessionId"`
	Turn       string  `json:"turnId"`
	Index      int     `json:"index"`
	ToolName   string  `json:"toolName"`
	ToolCallID string  `json:"toolCallId"`
	Outcome    Outcome `json:"outcome"`
	Result     string  `json:"result"`
	Duration   int64   `json:"duration"` // milliseconds
	At         int64   `json:"at"`
}

// StreamDelta is a piece of the model's answer, for the current subscribers.
//
// A model call that fails in the middle is repeated. With Discard, all earlier pieces
// of the turn are void, and Content is the first piece of the new answer and may be "".
// Note is one line for people with the reason for the repetition or for a wait. It is
// not a part of the answer.
type StreamDelta struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Turn    string `json:"turnId"`
	Content string `json:"content"`
	Discard bool   `json:"discard,omitempty"`
	Note    string `json:"note,omitempty"`
	After   uint64 `json:"after,omitempty"` // as in [Thinking]
}

// Thinking announces that a turn's prompt is complete and the model call begins. The
// events [LoopContext] and [LoopExecute], which are stored after the completion, repeat
// it.
type Thinking struct {
	Run           string `json:"runId"`
	Session       string `json:"sessionId"`
	Turn          string `json:"turnId"`
	TokenEstimate int64  `json:"tokenEstimate"`
	ToolCount     int    `json:"toolCount"` // tools offered to the model
	At            int64  `json:"at"`
	// After is the sequence of the journal entry that the message follows. A reader that
	// has read up to it has all earlier events. 0: from an earlier release.
	After uint64 `json:"after,omitempty"`
}

// LoopPersist is the event that a turn's PERSIST is committed.
type LoopPersist struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Turn    string `json:"turnId"`
	At      int64  `json:"at"`
}

// LoopEnd is the event that a run has ended. It is the last event of the run. If the
// run failed, the fields Code to Next hold the cause, as in the preceding [LoopError].
// Reason is one of the Reason constants, or the Finish of an unusable last answer:
// length, content_filter, refusal, empty, repetition, timeout. In that case Response is
// the available part of the answer.
type LoopEnd struct {
	Run      string     `json:"runId"`
	Session  string     `json:"sessionId"`
	Agent    string     `json:"agent"`
	Success  bool       `json:"success"`
	Outcome  RunOutcome `json:"fate,omitempty"`     // of the run's message; "": consumed, from an earlier release
	Into     string     `json:"into,omitempty"`     // the run that its message was added to
	Response string     `json:"response,omitempty"` // the text of the last completion
	Turns    int        `json:"turns"`
	Cost     Micros     `json:"cost"`
	Duration int64      `json:"duration"` // milliseconds since the run was accepted
	At       int64      `json:"at"`
	Code     Code       `json:"code,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Error    string     `json:"error,omitempty"`
	Next     string     `json:"next,omitempty"` // what to do about it
}

// LoopError is the event that a run failed. LoopEnd follows it.
type LoopError struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Code    Code   `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Error   string `json:"error"`
	Next    string `json:"next,omitempty"` // what to do about it
	At      int64  `json:"at"`
}

// AgentChanged is the event that an agent was applied or that its state changed.
type AgentChanged struct {
	Agent      string     `json:"agent"`
	Name       string     `json:"name"`
	Address    string     `json:"address"`
	State      AgentState `json:"state"`
	Previous   AgentState `json:"previous,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	SleepUntil int64      `json:"sleepUntil,omitempty"`
	Seq        int64      `json:"seq"` // number of the agent's changes; readers ignore a lower one
	At         int64      `json:"at"`
}

// The implementations of [Message] by the types of this file.

func (ApplyAgent) Subject() Subject     { return request(Loop, "apply_agent") }
func (GetAgent) Subject() Subject       { return request(Loop, "get_agent") }
func (ListAgents) Subject() Subject     { return request(Loop, "list_agents") }
func (ListSchedules) Subject() Subject  { return request(Loop, "list_schedules") }
func (SendMessage) Subject() Subject    { return request(Loop, "send_message") }
func (GetSession) Subject() Subject     { return request(Loop, "get_session") }
func (CreateSession) Subject() Subject  { return request(Loop, "create_session") }
func (ListSessions) Subject() Subject   { return request(Loop, "list_sessions") }
func (GetTranscript) Subject() Subject  { return request(Loop, "get_transcript") }
func (GetTurn) Subject() Subject        { return request(Loop, "get_turn") }
func (ListTurns) Subject() Subject      { return request(Loop, "list_turns") }
func (m Run) Subject() Subject          { return keyed(Loop, Command, "run", m.Session) }
func (m LoopStart) Subject() Subject    { return event(Loop, "loop_start", m.Session) }
func (m LoopContext) Subject() Subject  { return event(Loop, "loop_context", m.Session) }
func (m LoopExecute) Subject() Subject  { return event(Loop, "loop_execute", m.Session) }
func (m ToolStart) Subject() Subject    { return event(Loop, "tool_start", m.Session) }
func (m ToolEnd) Subject() Subject      { return event(Loop, "tool_end", m.Session) }
func (m StreamDelta) Subject() Subject  { return keyed(Loop, Live, "stream_delta", m.Session) }
func (m Thinking) Subject() Subject     { return keyed(Loop, Live, "thinking", m.Session) }
func (m LoopPersist) Subject() Subject  { return event(Loop, "loop_persist", m.Session) }
func (m LoopEnd) Subject() Subject      { return event(Loop, "loop_end", m.Session) }
func (m LoopError) Subject() Subject    { return event(Loop, "loop_error", m.Session) }
func (m AgentChanged) Subject() Subject { return event(Loop, "agent_state", m.Agent) }

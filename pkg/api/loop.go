package api

import "encoding/json"

// loop owns agents, sessions, runs and turns (design §3, §4).
//
// History: v1 2026-11 first version.

// AgentState is where an agent is in its life; seed 001.
type AgentState string

// The seven states.
const (
	StateSetup    AgentState = "setup"
	StateWaking   AgentState = "waking"
	StateRunning  AgentState = "running"
	StateSleeping AgentState = "sleeping"
	StateLow      AgentState = "low_compute"
	StateCritical AgentState = "critical"
	StateDead     AgentState = "dead"
)

// Agent is an agent as others see it.
type Agent struct {
	ID          string     `json:"id"` // the name in lower case
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Address     string     `json:"address"` // of its wallet, EIP-55
	Creator     string     `json:"creator,omitempty"`
	Model       string     `json:"model,omitempty"`
	Tools       []string   `json:"tools"`
	State       AgentState `json:"state"`
	Reason      string     `json:"reason,omitempty"`      // why it is in this state
	SleepUntil  int64      `json:"sleepUntil,omitempty"`  // 0: until something happens
	Session     string     `json:"session"`               // its main session
	Mail        string     `json:"mailSession,omitempty"` // where it reads mail of peers
	Turns       int64      `json:"turns"`
	Version     int64      `json:"version"` // counts applied definitions that differ
	CreatedAt   int64      `json:"createdAt"`
	UpdatedAt   int64      `json:"updatedAt"`
	// Warnings name tools of the definition that nothing executes, one a line. Only in
	// the answer to [ApplyAgent].
	Warnings []string `json:"warnings,omitempty"`
}

// ApplyAgent creates the agent that an AGENT.md describes, or changes it to
// that. Applying the same text twice changes nothing. An agent that was deleted is
// there again, with all that it had. Answers [Agent].
// Errors: Invalid with every fault and its line in Details; Unavailable while
// treasury or heartbeat cannot be reached (nothing is written then).
type ApplyAgent struct {
	Source string `json:"source"`
}

// Subject of the message.
func (ApplyAgent) Subject() Subject { return request(Loop, "apply_agent") }

// GetAgent answers [Agent]. Errors: NotFound.
type GetAgent struct {
	Agent string `json:"agent"`
}

// Subject of the message.
func (GetAgent) Subject() Subject { return request(Loop, "get_agent") }

// ListAgents answers [Agents], by name. Errors: Invalid (limit).
type ListAgents struct {
	After string `json:"after,omitempty"` // Next of the page before: the id of an agent
	Limit int    `json:"limit,omitempty"` // 0: 1000
}

// Subject of the message.
func (ListAgents) Subject() Subject { return request(Loop, "list_agents") }

// Agents is a list of agents.
type Agents struct {
	Agents []Agent `json:"agents"`
	Page
}

// Mode says what a message does when its session is busy; seed 004 and
// design §4.
type Mode string

// The modes. The zero value means queue.
const (
	ModeQueue     Mode = "queue"     // wait in order
	ModeDrop      Mode = "drop"      // refuse with Conflict while the session is busy
	ModeInterrupt Mode = "interrupt" // cancel what runs, drop what waits, then run this
	ModeSteer     Mode = "steer"     // join the running turn at the next safe point; run as usual when none runs
	ModeCollect   Mode = "collect"   // wait, and join the others that wait in this mode into one run
)

// MaxMessageBytes is the one limit on a message's text (spec-core-1 §2A #44).
const MaxMessageBytes = 51_200

// QueueDepth is how many accepted messages may wait on a session (seed 004).
const QueueDepth = 10

// SendMessage gives an agent a message from its creator. The answer,
// [Accepted], means that the message is stored and will be run.
// Errors: Invalid (empty, over [MaxMessageBytes], not UTF-8, unknown mode),
// NotFound (agent or session), Conflict (mode drop, session busy; session
// terminated, ReasonTerminated; ReasonKeyTaken), Unavailable with ReasonLimit ([QueueDepth]
// messages wait already).
type SendMessage struct {
	Agent   string `json:"agent"`
	Session string `json:"session,omitempty"` // "": the main session; "new": a new one
	Content string `json:"content"`
	Mode    Mode   `json:"mode,omitempty"`
	// ID is the caller's idempotency key, within the agent and the session. The same
	// message sent again with its key changes nothing; another message with that key
	// is a Conflict with ReasonKeyTaken. "" makes every message a new one.
	ID string `json:"id,omitempty"`
}

// Subject of the message.
func (SendMessage) Subject() Subject { return request(Loop, "send_message") }

// Accepted answers [SendMessage].
type Accepted struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Agent   string `json:"agent"`
	At      int64  `json:"at"`
}

// GetSession answers [Session]. Errors: NotFound.
type GetSession struct {
	Session string `json:"session"`
}

// Subject of the message.
func (GetSession) Subject() Subject { return request(Loop, "get_session") }

// CreateSession begins a conversation of an agent that has no message yet. The same
// ID again is the same session. Answers [Session]. Errors: NotFound (agent), Invalid
// (ID).
type CreateSession struct {
	Agent string `json:"agent"`
	ID    string `json:"id,omitempty"` // caller's id, at most 128 bytes: creating it again changes nothing
}

// Subject of the message.
func (CreateSession) Subject() Subject { return request(Loop, "create_session") }

// ListSessions answers [Sessions], the latest first; Agent "" means everyone's.
// Limit 0 means 50. Errors: Invalid (limit, After).
type ListSessions struct {
	Agent string `json:"agent,omitempty"`
	After string `json:"after,omitempty"` // Next of the page before
	Limit int    `json:"limit,omitempty"`
}

// Subject of the message.
func (ListSessions) Subject() Subject { return request(Loop, "list_sessions") }

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
	Terminated   int64  `json:"terminatedAt,omitempty"` // 0: it goes on
	Reason       string `json:"reason,omitempty"`       // why it was terminated
	Reset        int64  `json:"resetThrough,omitempty"` // turns up to this one are no longer sent to a model
}

// Sessions is a list of sessions.
type Sessions struct {
	Sessions []Session `json:"sessions"`
	Page
}

// GetTranscript answers [Transcript]: the session's messages after sequence
// number After, in order, at most Limit of them (0: 500). Errors: NotFound.
type GetTranscript struct {
	Session string `json:"session"`
	After   int64  `json:"after,omitempty"`
	Limit   int    `json:"limit,omitempty"`
}

// Subject of the message.
func (GetTranscript) Subject() Subject { return request(Loop, "get_transcript") }

// Transcript is a part of a session's transcript.
type Transcript struct {
	Lines []TranscriptLine `json:"lines"`
	More  bool             `json:"more,omitempty"`
}

// TranscriptLine is one line of seed 004's JSONL transcript.
type TranscriptLine struct {
	Seq        int64      `json:"seq"`
	Role       string     `json:"role"` // user, assistant, tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"` // snake_case: the seed's format
	ToolCallID string     `json:"tool_call_id,omitempty"`
	Timestamp  string     `json:"timestamp"` // ISO 8601 with milliseconds, UTC
	Turn       string     `json:"turn"`
}

// GetTurn answers [Turn]. Errors: NotFound.
type GetTurn struct {
	Turn string `json:"turn"`
}

// Subject of the message.
func (GetTurn) Subject() Subject { return request(Loop, "get_turn") }

// ListTurns answers [Turns], the latest first. Empty filters match everything;
// Limit 0 means 50.
type ListTurns struct {
	Agent   string `json:"agent,omitempty"`
	Session string `json:"session,omitempty"`
	Run     string `json:"run,omitempty"`
	Before  string `json:"before,omitempty"` // id of a turn: only what this order has after it
	Limit   int    `json:"limit,omitempty"`
}

// Subject of the message.
func (ListTurns) Subject() Subject { return request(Loop, "list_turns") }

// Turns is a list of turns.
type Turns struct {
	Turns []Turn `json:"turns"`
	Page         // Next is what Before takes
}

// Turn is one model call and the tool calls it asked for, as persisted.
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

// CallState is a tool call with what became of it.
type CallState struct {
	Index      int             `json:"index"`
	ID         string          `json:"id"` // the provider's, an attribute only
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

// The outcomes. OutcomeUnknown is an irreversible call whose result a crash
// took away: it may or may not have happened (design §4.4).
const (
	OutcomeOK      Outcome = "ok"
	OutcomeError   Outcome = "error"
	OutcomeDenied  Outcome = "denied"
	OutcomeTimeout Outcome = "timeout"
	OutcomeUnknown Outcome = "outcome_unknown"
)

// RunKind is what started a run.
type RunKind string

// What starts a run.
const (
	RunMessage RunKind = "message"
	RunWake    RunKind = "wake"
	RunTask    RunKind = "task" // one attempt at a task of a goal, in a session of its own
	RunMail    RunKind = "mail" // messages of one sender in the inbox, in the agent's mail session
)

// QueueTimeout is how long a message waits for its session while another runs, in
// seconds; then it expires (seed 004).
const QueueTimeout = 30

// Run asks loop to execute one run on a session. Loop sends it to itself: it is
// the durable form of an accepted message or wake.
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
	// CostCap ends the run after the turn with which it has cost so much (W-23); 0: it
	// has none, as in what releases before wrote.
	CostCap Micros `json:"costCap,omitempty"`
}

// Subject of the message.
func (m Run) Subject() Subject {
	return Subject{Owner: Loop, Class: Command, Name: "run", Version: 1, Key: m.Session, Keyed: true}
}

// The nine events of seed 004. They are views of the entries of a session's journal,
// see [Journal.Events] and [Views].

// LoopStart says that a run left INTAKE.
type LoopStart struct {
	Run     string  `json:"runId"`
	Session string  `json:"sessionId"`
	Agent   string  `json:"agent"`
	Kind    RunKind `json:"kind"`
	At      int64   `json:"at"`
}

// Subject of the message.
func (m LoopStart) Subject() Subject { return event(Loop, "loop_start", m.Session) }

// LoopContext says that a turn's CONTEXT is complete.
type LoopContext struct {
	Run           string `json:"runId"`
	Session       string `json:"sessionId"`
	Turn          string `json:"turnId"`
	TokenEstimate int64  `json:"tokenEstimate"`
	At            int64  `json:"at"`
}

// Subject of the message.
func (m LoopContext) Subject() Subject { return event(Loop, "loop_context", m.Session) }

// LoopExecute says that a turn's EXECUTE begins.
type LoopExecute struct {
	Run       string `json:"runId"`
	Session   string `json:"sessionId"`
	Turn      string `json:"turnId"`
	ToolCount int    `json:"toolCount"` // tools offered to the model
	At        int64  `json:"at"`
}

// Subject of the message.
func (m LoopExecute) Subject() Subject { return event(Loop, "loop_execute", m.Session) }

// ToolStart says that a tool call was allowed and begins.
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

// Subject of the message.
func (m ToolStart) Subject() Subject { return event(Loop, "tool_start", m.Session) }

// ToolEnd says how a tool call ended; a denied call ends without having started.
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

// Subject of the message.
func (m ToolEnd) Subject() Subject { return event(Loop, "tool_end", m.Session) }

// StreamDelta is a piece of the model's answer, for whoever watches now.
//
// A model call that fails in the middle is made again. Discard tells the reader to
// forget all pieces of this turn that came before this message; Content is the first
// piece of the new answer and may be "". Note is one line for people: why the call is
// made again, or what is waited for; it is no part of the answer.
type StreamDelta struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Turn    string `json:"turnId"`
	Content string `json:"content"`
	Discard bool   `json:"discard,omitempty"`
	Note    string `json:"note,omitempty"`
	After   uint64 `json:"after,omitempty"` // as of [Thinking]
}

// Subject of the message.
func (m StreamDelta) Subject() Subject {
	return Subject{Owner: Loop, Class: Live, Name: "stream_delta", Version: 1, Key: m.Session, Keyed: true}
}

// Thinking says that a turn's prompt is complete and its model is asked now. The events
// [LoopContext] and [LoopExecute] say the same for good, when the answer is there.
type Thinking struct {
	Run           string `json:"runId"`
	Session       string `json:"sessionId"`
	Turn          string `json:"turnId"`
	TokenEstimate int64  `json:"tokenEstimate"`
	ToolCount     int    `json:"toolCount"` // tools offered to the model
	At            int64  `json:"at"`
	// After is the sequence of the journal's entry that the message follows: whoever has
	// read up to it has all events that come before. 0: a release before did not say.
	After uint64 `json:"after,omitempty"`
}

// Subject of the message.
func (m Thinking) Subject() Subject {
	return Subject{Owner: Loop, Class: Live, Name: "thinking", Version: 1, Key: m.Session, Keyed: true}
}

// LoopPersist says that a turn's PERSIST is committed.
type LoopPersist struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Turn    string `json:"turnId"`
	At      int64  `json:"at"`
}

// Subject of the message.
func (m LoopPersist) Subject() Subject { return event(Loop, "loop_persist", m.Session) }

// LoopEnd says that a run is over; it is the last event of its run. A run that failed
// has the cause in Code to Next, as the [LoopError] before it. Reason is one of the
// Reason constants or, of a run whose last answer is not what was asked for, that
// answer's Finish: length, content_filter, refusal, empty, repetition, timeout. Response
// then is what there is of the answer.
type LoopEnd struct {
	Run      string `json:"runId"`
	Session  string `json:"sessionId"`
	Agent    string `json:"agent"`
	Success  bool   `json:"success"`
	Fate     Fate   `json:"fate,omitempty"`     // of the run's message; "": consumed, by a release before
	Into     string `json:"into,omitempty"`     // the run that it was merged into
	Response string `json:"response,omitempty"` // the model's last words
	Turns    int    `json:"turns"`
	Cost     Micros `json:"cost"`
	Duration int64  `json:"duration"` // milliseconds since the run was accepted
	At       int64  `json:"at"`
	Code     Code   `json:"code,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Error    string `json:"error,omitempty"`
	Next     string `json:"next,omitempty"` // what to do about it
}

// Subject of the message.
func (m LoopEnd) Subject() Subject { return event(Loop, "loop_end", m.Session) }

// LoopError says why a run could not go on; LoopEnd follows it.
type LoopError struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId"`
	Code    Code   `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Error   string `json:"error"`
	Next    string `json:"next,omitempty"` // what to do about it
	At      int64  `json:"at"`
}

// Subject of the message.
func (m LoopError) Subject() Subject { return event(Loop, "loop_error", m.Session) }

// AgentChanged says that an agent was applied or changed its state.
type AgentChanged struct {
	Agent      string     `json:"agent"`
	Name       string     `json:"name"`
	Address    string     `json:"address"`
	State      AgentState `json:"state"`
	Previous   AgentState `json:"previous,omitempty"`
	Reason     string     `json:"reason,omitempty"`
	SleepUntil int64      `json:"sleepUntil,omitempty"`
	Seq        int64      `json:"seq"` // counts the changes of this agent: readers drop older ones
	At         int64      `json:"at"`
}

// Subject of the message.
func (m AgentChanged) Subject() Subject { return event(Loop, "agent_state", m.Agent) }

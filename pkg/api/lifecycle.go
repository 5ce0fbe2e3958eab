package api

// Messages about the states of agents and the outcomes of runs: queries that loop
// answers, and the operations of the creator (docs/reference/loop.md, Agent states).

// RunOutcome is the outcome of an accepted message. A message has exactly one
// (docs/sessions.md, Outcomes of a message).
type RunOutcome string

// The outcomes. "" means that the message waits or that its run has not ended.
const (
	OutcomeConsumed RunOutcome = "consumed" // a run was executed for it, with any result
	OutcomeMerged   RunOutcome = "merged"   // it was added to another run
	OutcomeDropped  RunOutcome = "dropped"  // cancelled or interrupted before its run began, or its session was terminated
	OutcomeExpired  RunOutcome = "expired"  // it waited for its session longer than [QueueTimeout]
)

// RunStatus is the status of a run.
type RunStatus string

// The statuses of a run.
const (
	RunQueued  RunStatus = "queued"
	RunRunning RunStatus = "running"
	RunEnded   RunStatus = "ended"
)

// GetRun requests a [RunState]. Session is required for a run that still waits, because
// such a run is only in the queue of its session. Errors: NotFound.
type GetRun struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId,omitempty"`
}

// CancelRun cancels a run permanently. A run that waits is dropped. A run that is being
// executed starts no more tool calls, its commands are ended, and no replica resumes
// it. Cancelling a run that has ended changes nothing. The answer is the [RunState] at
// that time. Errors: NotFound, as for [GetRun].
type CancelRun struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// RunState describes a run.
type RunState struct {
	Run        string     `json:"runId"`
	Session    string     `json:"sessionId"`
	Agent      string     `json:"agent"`
	Kind       RunKind    `json:"kind"`
	Status     RunStatus  `json:"status"`
	Cancelled  bool       `json:"cancelled,omitempty"` // a cancellation is stored
	Outcome    RunOutcome `json:"fate,omitempty"`
	Into       string     `json:"into,omitempty"` // the run that its message was added to
	Success    bool       `json:"success"`
	Code       Code       `json:"code,omitempty"` // of the error
	Reason     string     `json:"reason,omitempty"`
	Error      string     `json:"error,omitempty"`
	Next       string     `json:"next,omitempty"` // what to do about the error
	Response   string     `json:"response,omitempty"`
	Turns      int        `json:"turns"`
	Cost       Micros     `json:"cost"`
	AcceptedAt int64      `json:"acceptedAt"`
	EndedAt    int64      `json:"endedAt,omitempty"`
}

// SessionNotice notifies the owner of a session of a change that concerns its run. The
// change itself is in loop's store or queue; the notice only makes the reaction faster.
type SessionNotice struct {
	Session   string `json:"sessionId"`
	Cancelled string `json:"cancelled,omitempty"` // the run to cancel
	Steered   string `json:"steered,omitempty"`   // a message to add to the run
}

// TerminateSession terminates a session permanently. Its current run is cancelled, its
// waiting messages are dropped, and it accepts no more messages. Its transcript
// remains. If the session is the main session or the mail session of its agent, the
// agent gets a new one at once. The answer is the [Session]. Errors: NotFound.
type TerminateSession struct {
	Session string `json:"sessionId"`
	Reason  string `json:"reason,omitempty"`
}

// ResetSession begins a new conversation in a session. Neither its earlier turns nor a
// summary of them are sent to a model any more. The transcript and the agent's memories
// remain. The answer is the [Session]. Errors: NotFound; Conflict with ReasonBusy while
// the session has a run or waiting messages.
type ResetSession struct {
	Session string `json:"sessionId"`
}

// SleepAgent puts an agent to sleep until a time, or until the next message or wake.
// The runs and the waiting messages of its main session and its mail session are
// cancelled. The answer is the [Agent]. Errors: NotFound, Conflict (the agent is dead),
// Invalid (Until in the past or more than 24 h ahead).
type SleepAgent struct {
	Agent  string `json:"agent"`
	Until  int64  `json:"until,omitempty"` // Unix microseconds; 0: until the next message or wake
	Reason string `json:"reason,omitempty"`
}

// ExplainAgent requests an [Explanation]. Errors: NotFound.
type ExplainAgent struct {
	Agent string `json:"agent"`
	Limit int    `json:"limit,omitempty"` // of the history; 0: 20
}

// Explanation describes why an agent is in its state, and what changes the state next.
type Explanation struct {
	Agent    Agent          `json:"agent"`
	Since    int64          `json:"since"`    // time of the last change of its state
	Next     string         `json:"next"`     // what happens next, as text
	Counters Counters       `json:"counters"` // of its main session
	History  []AgentChanged `json:"history"`  // changes of its state, the latest first
}

// Counters holds the counters that put an agent to sleep when they reach a limit
// (docs/reference/loop.md, Loop detection). They are stored, and so survive restarts.
type Counters struct {
	Idle        int    `json:"idle"`                  // consecutive turns without a mutating call; sleep at 10
	Repeated    int    `json:"repeated"`              // consecutive turns with the same tools; warning at 3, sleep at 6
	Pattern     string `json:"pattern,omitempty"`     // tools of the repeated turns
	Maintenance int    `json:"maintenance"`           // consecutive turns that only read the agent's own state; warning at 3, sleep at 6
	Errors      int    `json:"errors"`                // consecutive failed runs; sleep at 5
	Blocked     int    `json:"blocked"`               // consecutive goals that were refused because one is active
	Until       int64  `json:"sleepUntil,omitempty"`  // Unix microseconds
	Why         string `json:"sleepReason,omitempty"` // reason of the last sleep
}

// DeleteAgent deletes an agent. Its runs are cancelled, its sessions accept no more
// messages, its goal is cancelled and its schedule is cleared. Transcripts, turns,
// decisions, the ledger and the account remain: an agent that is applied with the same
// name is the same agent, with the remaining data. Deleting it again completes a
// deletion that a crash interrupted, and otherwise changes nothing. The answer is
// [Deleted]. Errors: NotFound; Conflict (its account has credits and Force is not set);
// Unavailable (treasury does not answer and Force is not set).
type DeleteAgent struct {
	Agent  string `json:"agent"`
	Force  bool   `json:"force,omitempty"`  // delete it although its account has credits, which remain there
	Forget bool   `json:"forget,omitempty"` // delete its memories, soul, skills, MCP servers and folder
	Reason string `json:"reason,omitempty"`
}

// Deleted is the answer to [DeleteAgent].
type Deleted struct {
	Agent     string `json:"agent"`
	Address   string `json:"address"`   // of its account
	At        int64  `json:"at"`        // time of the first deletion
	Left      Micros `json:"left"`      // credits in its account, including holds; 0 also if treasury does not answer
	Forgotten bool   `json:"forgotten"` // its memories and its folder were deleted
}

// The implementations of [Message] by the types of this file.

func (GetRun) Subject() Subject    { return request(Loop, "get_run") }
func (CancelRun) Subject() Subject { return request(Loop, "cancel_run") }
func (m SessionNotice) Subject() Subject {
	return Subject{Owner: Loop, Class: Live, Name: "session_notice", Version: 1}
}
func (TerminateSession) Subject() Subject { return request(Loop, "terminate_session") }
func (ResetSession) Subject() Subject     { return request(Loop, "reset_session") }
func (SleepAgent) Subject() Subject       { return request(Loop, "sleep_agent") }
func (ExplainAgent) Subject() Subject     { return request(Loop, "explain_agent") }
func (DeleteAgent) Subject() Subject      { return request(Loop, "delete_agent") }

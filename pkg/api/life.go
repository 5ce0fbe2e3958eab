package api

// An agent's life and the fates of its runs: what loop answers about them and
// what people may do to them (seeds 001 and 004, design §4).

// Fate is what became of an accepted message; it has exactly one (design §4).
type Fate string

// The fates. "" is none yet: the message waits or runs.
const (
	FateConsumed Fate = "consumed" // a run was made of it, however that ended
	FateMerged   Fate = "merged"   // another run took it in
	FateDropped  Fate = "dropped"  // cancelled or interrupted before it ran, or its session was terminated
	FateExpired  Fate = "expired"  // it waited longer than [QueueTimeout] for its session
)

// RunStatus is how far a run is.
type RunStatus string

// The statuses.
const (
	RunQueued  RunStatus = "queued"
	RunRunning RunStatus = "running"
	RunEnded   RunStatus = "ended"
)

// GetRun answers [RunState]. Session is needed for a run that still waits: only
// its session's queue knows it. Errors: NotFound.
type GetRun struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId,omitempty"`
}

// Subject of the message.
func (GetRun) Subject() Subject { return request(Loop, "get_run") }

// CancelRun cancels a run for good: one that waits is dropped, one under way
// starts no tool any more, its commands are ended, and no replica takes it up
// again. Cancelling what is over changes nothing. Answers [RunState] as it is
// then. Errors: NotFound, as for [GetRun].
type CancelRun struct {
	Run     string `json:"runId"`
	Session string `json:"sessionId,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// Subject of the message.
func (CancelRun) Subject() Subject { return request(Loop, "cancel_run") }

// RunState is a run as others see it.
type RunState struct {
	Run        string    `json:"runId"`
	Session    string    `json:"sessionId"`
	Agent      string    `json:"agent"`
	Kind       RunKind   `json:"kind"`
	Status     RunStatus `json:"status"`
	Cancelled  bool      `json:"cancelled,omitempty"` // it was asked to stop
	Fate       Fate      `json:"fate,omitempty"`
	Into       string    `json:"into,omitempty"` // the run that it was merged into
	Success    bool      `json:"success"`
	Code       Code      `json:"code,omitempty"` // of the error
	Reason     string    `json:"reason,omitempty"`
	Error      string    `json:"error,omitempty"`
	Next       string    `json:"next,omitempty"` // what to do about it
	Response   string    `json:"response,omitempty"`
	Turns      int       `json:"turns"`
	Cost       Micros    `json:"cost"`
	AcceptedAt int64     `json:"acceptedAt"`
	EndedAt    int64     `json:"endedAt,omitempty"`
}

// SessionNotice tells whoever executes a session's run of what concerns it now.
// The facts themselves are in loop's store and queue; this only makes them fast.
type SessionNotice struct {
	Session   string `json:"sessionId"`
	Cancelled string `json:"cancelled,omitempty"` // a run that is to stop
	Steered   string `json:"steered,omitempty"`   // a message that wants to join the run
}

// Subject of the message.
func (m SessionNotice) Subject() Subject {
	return Subject{Owner: Loop, Class: Live, Name: "session_notice", Version: 1}
}

// TerminateSession ends a session for good: what runs is cancelled, what waits is
// dropped, and no message is taken any more. Its transcript stays. An agent whose main
// session ends has a new one at once, and so with its session for mail. Answers
// [Session]. Errors: NotFound.
type TerminateSession struct {
	Session string `json:"sessionId"`
	Reason  string `json:"reason,omitempty"`
}

// Subject of the message.
func (TerminateSession) Subject() Subject { return request(Loop, "terminate_session") }

// ResetSession begins a session's conversation anew: what was said in it so far is no
// longer sent to a model, nor is a summary of it. The transcript keeps it, and so do the
// agent's memories. Answers [Session]. Errors: NotFound; Conflict with ReasonBusy while
// the session runs or something waits on it.
type ResetSession struct {
	Session string `json:"sessionId"`
}

// Subject of the message.
func (ResetSession) Subject() Subject { return request(Loop, "reset_session") }

// SleepAgent puts an agent to sleep until a time, or until something happens: what
// runs on its main session is cancelled. Answers [Agent]. Errors: NotFound,
// Conflict (the agent is dead), Invalid (more than 24 h away).
type SleepAgent struct {
	Agent  string `json:"agent"`
	Until  int64  `json:"until,omitempty"` // Unix microseconds; 0: until something happens
	Reason string `json:"reason,omitempty"`
}

// Subject of the message.
func (SleepAgent) Subject() Subject { return request(Loop, "sleep_agent") }

// ExplainAgent answers [Explanation]. Errors: NotFound.
type ExplainAgent struct {
	Agent string `json:"agent"`
	Limit int    `json:"limit,omitempty"` // of its history; 0: 20
}

// Subject of the message.
func (ExplainAgent) Subject() Subject { return request(Loop, "explain_agent") }

// Explanation says why an agent is in its state, and what would change that.
type Explanation struct {
	Agent    Agent          `json:"agent"`
	Since    int64          `json:"since"`    // it is in this state
	Next     string         `json:"next"`     // what happens next, in words
	Counters Counters       `json:"counters"` // of its main session
	History  []AgentChanged `json:"history"`  // changes of its state, the latest first
}

// Counters are what forces an agent to sleep when they grow (spec-core-1 §1.5).
// They survive restarts.
type Counters struct {
	Idle        int    `json:"idle"`                  // turns in a row without a change to the world; sleeps at 10
	Repeated    int    `json:"repeated"`              // turns in a row with the same tools; warned at 3, sleeps at 6
	Pattern     string `json:"pattern,omitempty"`     // those tools
	Maintenance int    `json:"maintenance"`           // turns in a row that only looked at its own state; warned at 3, sleeps at 6
	Errors      int    `json:"errors"`                // runs in a row that failed; sleeps at 5
	Blocked     int    `json:"blocked"`               // goals in a row that were refused because one is active
	Until       int64  `json:"sleepUntil,omitempty"`  // Unix microseconds
	Why         string `json:"sleepReason,omitempty"` // of the last sleep
}

// DeleteAgent takes an agent out of service for good. Its runs are cancelled, its
// sessions take no messages any more, its goal is given up and its schedule is
// cleared. Transcripts, turns, decisions and the ledger stay, and so does its
// account: an agent that is applied under its name is the same again, with what is
// left of it. Deleting it again changes nothing and completes what a crash cut.
// Answers [Deleted]. Errors: NotFound; Conflict (its account holds money and Force
// is not set); Unavailable (treasury does not answer and Force is not set).
type DeleteAgent struct {
	Agent  string `json:"agent"`
	Force  bool   `json:"force,omitempty"`  // also with money, which stays on its account
	Forget bool   `json:"forget,omitempty"` // erases its memories, its soul, its skills, its MCP servers and its folder
	Reason string `json:"reason,omitempty"`
}

// Subject of the message.
func (DeleteAgent) Subject() Subject { return request(Loop, "delete_agent") }

// Deleted answers [DeleteAgent].
type Deleted struct {
	Agent     string `json:"agent"`
	Address   string `json:"address"`   // of its account
	At        int64  `json:"at"`        // when it was deleted first
	Left      Micros `json:"left"`      // on its account, held money included; 0 also while treasury does not answer
	Forgotten bool   `json:"forgotten"` // its memories and its folder are gone
}

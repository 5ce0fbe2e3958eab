package api

// ReplayTurn has loop live a persisted turn again, offline, from its journal: nobody
// is asked, no tool runs, nothing is paid or stored. Each step that the engine comes
// to is compared with what was recorded. Answers [Replayed].
// Errors: NotFound (no such turn; its journal is gone, which is kept for 7 days; the
// model was not asked in it; it is of a release that recorded less).
type ReplayTurn struct {
	Turn string `json:"turnId"`
}

// Subject of the message.
func (ReplayTurn) Subject() Subject { return request(Loop, "replay_turn") }

// Replayed says whether a turn comes to the same again.
type Replayed struct {
	Turn       string     `json:"turnId"`
	Run        string     `json:"runId"`
	Session    string     `json:"sessionId"`
	Agent      string     `json:"agent"`
	Same       bool       `json:"same"`
	Steps      int        `json:"steps"`               // of the journal, up to the difference if there is one
	Owners     int        `json:"owners"`              // that the turn had: one more than took it over
	Difference Difference `json:"difference,omitzero"` // unless it is the same
}

// Difference is the first place at which a replay left its recording.
type Difference struct {
	Step     string `json:"step"`            // begin, joined, prompt, thought, intent, result, turn, end, counters, …
	Field    string `json:"field,omitempty"` // path within it
	Recorded string `json:"recorded"`        // around the place, shortened
	Replayed string `json:"replayed"`
}

// ForkTurn asks what would have come of a persisted turn with another model, another
// genesis prompt or the policy of now. The model is asked for real, with the prompt of
// then, and the turn's agent pays; with Policy alone nobody is asked and nothing paid.
// No call is made. The answer streams as [Delta] and ends with [Forked].
// Errors: as [ReplayTurn] and, with a model, as [Complete]; Invalid when nothing is to
// be different.
type ForkTurn struct {
	Turn   string `json:"turnId"`
	Model  string `json:"model,omitempty"`  // id of the model to ask; "": as the agent would
	Prompt string `json:"prompt,omitempty"` // instead of the genesis prompt
	Policy bool   `json:"policy,omitempty"` // ask no model: judge the calls of then by the rules of now
}

// Subject of the message.
func (ForkTurn) Subject() Subject { return request(Loop, "fork_turn") }

// Forked is a turn beside what would have come of it.
type Forked struct {
	Turn     string       `json:"turnId"`
	Recorded ForkedAnswer `json:"recorded"`
	Forked   ForkedAnswer `json:"forked"`
}

// ForkedAnswer is what a model said and what policy says of it.
type ForkedAnswer struct {
	Model        string       `json:"model"`
	Provider     string       `json:"provider"`
	Text         string       `json:"text"`
	Finish       string       `json:"finish"`
	Calls        []ForkedCall `json:"calls"`
	InputTokens  int64        `json:"inputTokens"`
	OutputTokens int64        `json:"outputTokens"`
	Cost         Micros       `json:"cost"`
}

// ForkedCall is a call that would be made, or was.
type ForkedCall struct {
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`        // JSON, as the model wrote it
	Action    Action `json:"action,omitempty"` // "" when policy was not asked
	Code      string `json:"code,omitempty"`
	Message   string `json:"message,omitempty"`
}

// CheckCall asks policy what it would decide on a call by the rules of now. Nothing is
// decided: the answer, [Decision], has no id and no token, and is not stored.
// Errors: as [Evaluate].
type CheckCall struct{ Evaluate }

// Subject of the message.
func (CheckCall) Subject() Subject { return request(Policy, "check_call") }

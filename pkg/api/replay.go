package api

// ReplayTurn replays a persisted turn offline from its journal. It makes no requests,
// executes no tools, and pays and stores nothing. Loop compares each step of the replay
// with the recorded one. The answer is [Replayed]. Errors: NotFound (no such turn; its
// journal, which is kept for 7 days, was deleted; the turn has no model call; it was
// recorded by a release that stored too little).
type ReplayTurn struct {
	Turn string `json:"turnId"`
}

// Replayed is the result of a replay.
type Replayed struct {
	Turn       string     `json:"turnId"`
	Run        string     `json:"runId"`
	Session    string     `json:"sessionId"`
	Agent      string     `json:"agent"`
	Same       bool       `json:"same"`
	Steps      int        `json:"steps"`               // journal entries, up to the difference if there is one
	Owners     int        `json:"owners"`              // number of owners of the turn: one more than its takeovers
	Difference Difference `json:"difference,omitzero"` // zero if Same
}

// Difference is the first difference between a replay and the recorded turn.
type Difference struct {
	Step     string `json:"step"`            // begin, joined, prompt, thought, intent, result, turn, end, counters, …
	Field    string `json:"field,omitempty"` // path within the step
	Recorded string `json:"recorded"`        // excerpt around the difference
	Replayed string `json:"replayed"`
}

// ForkTurn repeats a persisted turn with another model, another genesis prompt or the
// current policy. Loop makes a real model call with the recorded prompt, and the turn's
// agent pays it; with Policy alone, it makes no model call and nothing is paid. No tool
// call is executed. The answer is a stream of [Delta] that ends with [Forked]. Errors:
// as [ReplayTurn] and, with a model call, as [Complete]; Invalid if no difference is
// requested.
type ForkTurn struct {
	Turn   string `json:"turnId"`
	Model  string `json:"model,omitempty"`  // id of the model; "": the choice for the agent
	Prompt string `json:"prompt,omitempty"` // instead of the genesis prompt
	Policy bool   `json:"policy,omitempty"` // no model call: evaluate the recorded tool calls by the current rules
}

// Forked holds a recorded turn and its fork.
type Forked struct {
	Turn     string       `json:"turnId"`
	Recorded ForkedAnswer `json:"recorded"`
	Forked   ForkedAnswer `json:"forked"`
}

// ForkedAnswer is a completion with policy's decisions on its tool calls.
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

// ForkedCall is a tool call of a [ForkedAnswer].
type ForkedCall struct {
	Tool      string `json:"tool"`
	Arguments string `json:"arguments"`        // JSON, as the model wrote it
	Action    Action `json:"action,omitempty"` // "" if policy did not evaluate it
	Code      string `json:"code,omitempty"`
	Message   string `json:"message,omitempty"`
}

// CheckCall requests policy's evaluation of a call by the current rules. The answer is
// a [Decision] without an id and a token, which is not stored. Errors: as [Evaluate].
type CheckCall struct{ Evaluate }

// The implementations of [Message] by the types of this file.

func (ReplayTurn) Subject() Subject { return request(Loop, "replay_turn") }
func (ForkTurn) Subject() Subject   { return request(Loop, "fork_turn") }
func (CheckCall) Subject() Subject  { return request(Policy, "check_call") }

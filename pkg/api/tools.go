package api

import "encoding/json"

// Tools that loop does not execute itself. Their owner says which of them it
// executes now, and executes a call only with policy's decision token. Both
// requests are the same for every owner; only the subject differs.
//
// History: v1 2026-11 first version.

// ToolList names the tools of the catalogue that a service executes now.
type ToolList struct {
	Tools []string `json:"tools"`
}

// Invocation is a call of a tool at its owner. The same key again is the same
// call. Errors: Denied (the token is not policy's, or not for this call), Conflict
// (it expired: ask policy again), NotFound (the tool is not executed here),
// Invalid (the arguments).
type Invocation struct {
	Agent    string          `json:"agent"`
	Turn     string          `json:"turnId"`
	Index    int             `json:"index"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`
	Key      string          `json:"key"`
	Token    string          `json:"token"`    // of the decision, see [Grant]
	At       int64           `json:"at"`       // of the thought: the same on every try
	Deadline int64           `json:"deadline"` // Unix microseconds: nobody waits for longer
}

// Returned is what a tool said.
type Returned struct {
	Text string `json:"text"`
}

// ListTreasuryTools answers [ToolList].
type ListTreasuryTools struct{}

// Subject of the message.
func (ListTreasuryTools) Subject() Subject { return request(Treasury, "list_tools") }

// CallTreasuryTool answers [Returned].
type CallTreasuryTool struct{ Invocation }

// Subject of the message.
func (CallTreasuryTool) Subject() Subject { return request(Treasury, "call_tool") }

// ListHeartbeatTools answers [ToolList].
type ListHeartbeatTools struct{}

// Subject of the message.
func (ListHeartbeatTools) Subject() Subject { return request(Heartbeat, "list_tools") }

// CallHeartbeatTool answers [Returned].
type CallHeartbeatTool struct{ Invocation }

// Subject of the message.
func (CallHeartbeatTool) Subject() Subject { return request(Heartbeat, "call_tool") }

// ListInferenceTools answers [ToolList].
type ListInferenceTools struct{}

// Subject of the message.
func (ListInferenceTools) Subject() Subject { return request(Inference, "list_tools") }

// CallInferenceTool answers [Returned].
type CallInferenceTool struct{ Invocation }

// Subject of the message.
func (CallInferenceTool) Subject() Subject { return request(Inference, "call_tool") }

// ToolProgress says that a call goes on, for whoever watches now: every 500 ms as
// long as it lasts.
type ToolProgress struct {
	Run        string `json:"runId"`
	Session    string `json:"sessionId"`
	Turn       string `json:"turnId"`
	Index      int    `json:"index"`
	ToolName   string `json:"toolName"`
	ToolCallID string `json:"toolCallId"`
	Text       string `json:"text,omitempty"` // what it said last, the end of it
	Elapsed    int64  `json:"elapsedMs"`
}

// Subject of the message.
func (m ToolProgress) Subject() Subject {
	return Subject{Owner: Loop, Class: Live, Name: "tool_progress", Version: 1, Key: m.Session, Keyed: true}
}

// Outputs is the object bucket that keeps what tools said where it is too long for
// a turn, under the call's turn and index, as in "<run>.2.0".
const Outputs = "outputs"

// MaxOutput is how much of one call's output is kept, in bytes.
const MaxOutput = 16 << 20

// MaxOutputPart is how much of it one answer carries, in bytes.
const MaxOutputPart = 64 << 10

// GetOutput reads what a call said where its turn has only a part, from an offset
// in bytes on. Answers [OutputPart]. Errors: NotFound, also for what was short
// enough for the turn and for what is older than seven days; Invalid (a negative
// offset).
type GetOutput struct {
	Turn   string `json:"turnId"`
	Index  int    `json:"index"`
	Offset int64  `json:"offset,omitempty"`
}

// Subject of the message.
func (GetOutput) Subject() Subject { return request(Loop, "get_output") }

// OutputPart is a part of an output, whole letters of it.
type OutputPart struct {
	Text string `json:"text"`
	Next int64  `json:"next,omitempty"` // offset to go on at; 0: that was all
	Size int64  `json:"size"`           // of the whole, in bytes
}

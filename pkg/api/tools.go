package api

import (
	"encoding/json"
	"strconv"
)

// Requests to the owners of tools that loop does not execute itself. An owner lists the
// tools that it executes now, and executes a call only with a decision token of policy.
// Both requests are the same for every owner, with different subjects.
//
// History: v1 2026-11 first version.

// ToolList holds the names of the tools of the catalogue that a service executes now.
type ToolList struct {
	Tools []string `json:"tools"`
}

// Invocation is a tool call, sent to the owner of the tool. Key is its idempotency key,
// which has to be [CallKey]. Errors: Denied (the token is not policy's, or not for this
// call), Conflict (the token has expired: request a new decision), NotFound (this service
// does not execute the tool), Invalid (the arguments).
type Invocation struct {
	Agent    string          `json:"agent"`
	Session  string          `json:"sessionId,omitempty"` // of the turn, for the limits of what the tool pays
	Turn     string          `json:"turnId"`
	Index    int             `json:"index"`
	Tool     string          `json:"tool"`
	Args     json.RawMessage `json:"args"`
	Key      string          `json:"key"`
	Token    string          `json:"token"`    // of the decision, see [Grant]
	At       int64           `json:"at"`       // of the completion: the same for every attempt
	Deadline int64           `json:"deadline"` // Unix microseconds: the caller waits no longer
}

// CallKey returns the idempotency key of a call of a turn. It derives from what the
// decision token names, so that one decision is executed once.
func CallKey(turn string, index int) string { return turn + "." + strconv.Itoa(index) }

// Invoked returns m. A message that embeds an Invocation has this method, so that the
// executor can read it from the message of any owner.
func (m Invocation) Invoked() Invocation { return m }

// Returned is the output of a tool call.
type Returned struct {
	Text string `json:"text"`
}

// ListTreasuryTools requests the [ToolList] of treasury.
type ListTreasuryTools struct{}

// CallTreasuryTool executes a tool of treasury. The answer is [Returned].
type CallTreasuryTool struct{ Invocation }

// ListHeartbeatTools requests the [ToolList] of heartbeat.
type ListHeartbeatTools struct{}

// CallHeartbeatTool executes a tool of heartbeat. The answer is [Returned].
type CallHeartbeatTool struct{ Invocation }

// ListInferenceTools requests the [ToolList] of inference-router.
type ListInferenceTools struct{}

// CallInferenceTool executes a tool of inference-router. The answer is [Returned].
type CallInferenceTool struct{ Invocation }

// ListSocialTools requests the [ToolList] of social.
type ListSocialTools struct{}

// CallSocialTool executes a tool of social. The answer is [Returned].
type CallSocialTool struct{ Invocation }

// ToolProgress announces to the current subscribers that a call is still in progress.
// It is published every 500 ms.
type ToolProgress struct {
	Run        string `json:"runId"`
	Session    string `json:"sessionId"`
	Turn       string `json:"turnId"`
	Index      int    `json:"index"`
	ToolName   string `json:"toolName"`
	ToolCallID string `json:"toolCallId"`
	Text       string `json:"text,omitempty"` // the end of its output so far
	Elapsed    int64  `json:"elapsedMs"`
}

// Outputs is the object bucket that keeps what tools said where it is too long for
// a turn. The name of an object is the turn and the index of its call, as in "<run>.2.0".
const Outputs = "outputs"

// MaxOutput is the limit of the stored output of one call, in bytes.
const MaxOutput = 16 << 20

// MaxOutputPart is the limit of the output in one answer, in bytes.
const MaxOutputPart = 64 << 10

// GetOutput requests an [OutputPart] of a call for which the turn has only a part of
// the text. It begins at Offset, in bytes. Errors: NotFound, also if the text in the
// turn is complete or if the output is older than seven days; Invalid (a negative
// offset).
type GetOutput struct {
	Turn   string `json:"turnId"`
	Index  int    `json:"index"`
	Offset int64  `json:"offset,omitempty"`
}

// OutputPart is a part of an output, whole letters of it.
// It ends at the end of a UTF-8 character.
type OutputPart struct {
	Text string `json:"text"`
	Next int64  `json:"next,omitempty"` // offset of the next part; 0: this is the last one
	Size int64  `json:"size"`           // of the complete output, in bytes
}

// The implementations of [Message] by the types of this file.

func (ListTreasuryTools) Subject() Subject  { return request(Treasury, "list_tools") }
func (CallTreasuryTool) Subject() Subject   { return request(Treasury, "call_tool") }
func (ListHeartbeatTools) Subject() Subject { return request(Heartbeat, "list_tools") }
func (CallHeartbeatTool) Subject() Subject  { return request(Heartbeat, "call_tool") }
func (ListInferenceTools) Subject() Subject { return request(Inference, "list_tools") }
func (CallInferenceTool) Subject() Subject  { return request(Inference, "call_tool") }
func (ListSocialTools) Subject() Subject    { return request(Social, "list_tools") }
func (CallSocialTool) Subject() Subject     { return request(Social, "call_tool") }
func (m ToolProgress) Subject() Subject     { return keyed(Loop, Live, "tool_progress", m.Session) }
func (GetOutput) Subject() Subject          { return request(Loop, "get_output") }

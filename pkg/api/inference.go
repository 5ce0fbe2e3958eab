package api

import "encoding/json"

// inference is owned by the service inference-router: models, prices, provider
// keys, and the cost of every call (design §3, §5).
//
// History: v1 2026-11 first version.

// Task is what a model call is for; it picks the row of the routing matrix
// (seed 003).
type Task string

// The five tasks of seed 003.
const (
	TaskTurn     Task = "agent_turn"
	TaskTriage   Task = "heartbeat_triage"
	TaskSafety   Task = "safety_check"
	TaskSummary  Task = "summarization"
	TaskPlanning Task = "planning"
)

// MemoBroken is the memo with which the hold of an answer is settled that broke off:
// what had come of it is paid, and the call is made again from another hold.
const MemoBroken = "a broken answer"

// ChatMessage is one message of a prompt.
type ChatMessage struct {
	Role       string     `json:"role"` // system, user, assistant, tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // of an assistant
	ToolCallID string     `json:"toolCallId,omitempty"` // of a tool's result
}

// ToolCall is a call that the model asked for. Arguments is the model's own
// text: it may not be JSON at all.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Tool is a tool as the model is told about it.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"` // JSON Schema of the arguments
}

// Complete asks for one model call, paid from the agent's account: the router
// holds the estimated cost, calls, and settles the actual one. It streams
// [Delta]s and answers [Completion]. Asking again with the same ID returns the
// stored answer and pays nothing.
// Errors: Denied with ReasonInsufficient or ReasonLimit, Unavailable with
// ReasonNoModel or ReasonProvider, Invalid with ReasonTooLong.
type Complete struct {
	ID        string        `json:"id"` // idempotency key: turn id and attempt
	Agent     string        `json:"agent"`
	Session   string        `json:"session"`
	Turn      string        `json:"turn"`
	Task      Task          `json:"task"`
	Tier      Tier          `json:"tier"`            // as the caller knows it; unknown is not poor
	Model     string        `json:"model,omitempty"` // preference
	Messages  []ChatMessage `json:"messages"`
	Tools     []Tool        `json:"tools,omitempty"`
	MaxTokens int64         `json:"maxTokens,omitempty"` // 0: the matrix decides
}

// Subject of the message.
func (Complete) Subject() Subject { return request(Inference, "complete") }

// Delta is a piece of the answer's text.
type Delta struct {
	Content string `json:"content"`
}

// Completion is the model's answer and what it cost.
type Completion struct {
	Model        string     `json:"model"`
	Provider     string     `json:"provider"`
	Text         string     `json:"text"`
	ToolCalls    []ToolCall `json:"toolCalls,omitempty"`
	Finish       string     `json:"finish"` // stop, tool_calls, length, content_filter
	InputTokens  int64      `json:"inputTokens"`
	OutputTokens int64      `json:"outputTokens"`
	Cost         Micros     `json:"cost"`
	LatencyMS    int64      `json:"latencyMs"`
}

// ListModels answers [Models].
type ListModels struct{}

// Subject of the message.
func (ListModels) Subject() Subject { return request(Inference, "list_models") }

// Models is what the router can call and why not the rest.
type Models struct {
	Models []Model `json:"models"`
}

// Model is one entry of the registry. Prices are micro-USD per million tokens.
type Model struct {
	ID            string `json:"id"`
	Provider      string `json:"provider"`
	InputPrice    Micros `json:"inputPrice"`
	OutputPrice   Micros `json:"outputPrice"`
	ContextWindow int64  `json:"contextWindow"`
	MaxOutput     int64  `json:"maxOutput"`
	TierMinimum   Tier   `json:"tierMinimum"`
	Usable        bool   `json:"usable"`
	Why           string `json:"why,omitempty"` // why it is not usable
}

// Completed says that a model call was paid for.
type Completed struct {
	ID           string `json:"id"`
	Agent        string `json:"agent"`
	Session      string `json:"session"`
	Turn         string `json:"turn"`
	Task         Task   `json:"task"`
	Tier         Tier   `json:"tier"`
	Model        string `json:"model"`
	Provider     string `json:"provider"`
	InputTokens  int64  `json:"inputTokens"`
	OutputTokens int64  `json:"outputTokens"`
	Cost         Micros `json:"cost"`
	LatencyMS    int64  `json:"latencyMs"`
	At           int64  `json:"at"`
}

// Subject of the message.
func (m Completed) Subject() Subject { return event(Inference, "completed", m.Agent) }

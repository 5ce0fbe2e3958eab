package api

import (
	"encoding/json"
	"fmt"
)

// Messages of inference-router, which owns models, prices, provider keys and the cost
// of every call (docs/reference/inference-router.md, Calls).
//
// History: v1 2026-11 first version; v2 of complete 2026-11, with the prompt as it is
// sent to the provider.

// Task is the purpose of a model call. It selects the row of the routing matrix
// (docs/reference/inference-router.md, Routing matrix).
type Task string

// The five tasks (docs/reference/inference-router.md, Tasks).
const (
	TaskTurn     Task = "agent_turn"
	TaskTriage   Task = "heartbeat_triage"
	TaskSafety   Task = "safety_check"
	TaskSummary  Task = "summarization"
	TaskPlanning Task = "planning"
)

// MemoBroken is the memo of a settlement for an answer that broke off. The partial
// answer is paid, and the call is repeated with another hold.
const MemoBroken = "a broken answer"

// ChatMessage is one message of a prompt.
type ChatMessage struct {
	Role       string     `json:"role"` // system, user, assistant, tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // of an assistant
	ToolCallID string     `json:"toolCallId,omitempty"` // of a tool's result
	Images     []Image    `json:"images,omitempty"`     // of a user or of a tool's result, in the order of their places
}

// Image is an image in a message of the user or in a result: its bytes, or an address from which the
// provider reads it. Package chat checks both and has the limits.
type Image struct {
	At        int    `json:"at,omitempty"`        // its place in the message: number of bytes of Content before it
	MediaType string `json:"mediaType,omitempty"` // of Data: image/png, image/jpeg, image/gif or image/webp
	Data      []byte `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`    // https; only without Data
	Detail    string `json:"detail,omitempty"` // low, high or auto, for providers that have it; "": their default
}

// ToolCall is a call that a completion asks for. Arguments is the text of the model and
// may not be valid JSON.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// Tool describes a tool to a model.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`           // JSON Schema of the arguments
	Strict      bool            `json:"strict,omitempty"` // the provider has to keep the arguments to the schema
}

// The finish of a completion, in [Completion.Finish]. A value of the provider that is
// none of these is passed on unchanged.
const (
	FinishStop       = "stop"
	FinishToolCalls  = "tool_calls"
	FinishLength     = "length"         // cut at the limit of output tokens; the last tool call may be cut too
	FinishFilter     = "content_filter" // the provider withheld the answer or the rest of it
	FinishRefusal    = "refusal"        // the model declined; Text is its explanation
	FinishEmpty      = "empty"          // neither text nor a tool call
	FinishRepetition = "repetition"     // the text was repeating and was cut after the first occurrence
	FinishTimeout    = "timeout"        // the time limit passed; Text is incomplete and Partial is set
)

// Complete requests one model call, which the agent's account pays. The router holds
// the estimated cost, calls the model, stores the answer and settles the actual cost.
// It streams [Delta]s and then the [Completion].
//
// The answer is stored before any caller receives it. It is sent twice: in
// [Delta.Answer] as soon as it is stored, and at the end of the stream after the
// settlement by treasury. A repeated request with the same ID returns the stored answer
// and pays nothing; while the first request is in progress, it waits for that answer.
// An error after [Delta.Answer] is an error of the settlement: the answer is valid, and
// [Confirm] or a repeated request settles it.
//
// The router repeats a call that failed for a transient cause, on the same model or the
// next one. The number of attempts is limited for an ID and for a Run. Both counts are
// kept in the router's store.
//
// Errors: Denied with ReasonInsufficient, ReasonLimit or a reason of [OverLimit]; Invalid with ReasonTooLong or
// ReasonRefused; Unavailable with ReasonNoModel, ReasonAuth, ReasonQuota,
// ReasonEndpoint or ReasonAttempts, for which a retry is of no use; Unavailable with
// ReasonProvider, after which the request may be repeated with the same ID after
// RetryAfter.
type Complete struct {
	ID        string        `json:"id"` // idempotency key: turn id and attempt
	Agent     string        `json:"agent"`
	Session   string        `json:"session"`
	Turn      string        `json:"turn"`
	Task      Task          `json:"task"`
	Tier      Tier          `json:"tier"`               // of the agent; unknown is not treated as a low balance
	Model     string        `json:"model,omitempty"`    // preference
	Messages  []ChatMessage `json:"messages,omitempty"` // required, except in [CompleteV2]
	Tools     []Tool        `json:"tools,omitempty"`
	MaxTokens int64         `json:"maxTokens,omitempty"` // 0: by the routing matrix
	// ResponseFormat is the form of the answer, as in OpenAI's chat completions: {"type":
	// "json_object"}, or {"type":"json_schema","json_schema":{"name","schema","strict"}}.
	// Empty: a text.
	ResponseFormat json.RawMessage `json:"responseFormat,omitempty"`
	// Run is the id of the run that the call is a part of: the failed attempts of its
	// calls are counted together. "" is a call without a run.
	Run string `json:"runId,omitempty"`
	// Deadline is the Unix time in microseconds after which the answer is not needed.
	// The time limit of the task applies as well. 0: only the limit of the task.
	Deadline int64 `json:"deadline,omitempty"`
	// By is the principal of the turn, for the limits on what peers may cost. "": unknown.
	By PrincipalKind `json:"by,omitempty"`
}

// CompleteV2 is [Complete] with the prompt in the provider's form. Package chat encodes
// the prompt once, and its bytes are sent unchanged. The router decodes them only if it
// has to change them.
//
// Its encoding is a JSON object whose first field has the sizes of the next two, so
// that the router finds their ends without scanning them. Other readers can decode it
// as any JSON object.
type CompleteV2 struct {
	Messages json.RawMessage `json:"messages"` // messages of OpenAI's chat completions, see package chat
	Tools    json.RawMessage `json:"tools"`    // tools in the same form; [] if none are offered
	Call     Complete        `json:"call"`     // without its Messages and Tools
}

// The constant parts of an encoded [CompleteV2], between its variable parts.
const (
	sizesHead, sizesForm, sizesTail    = `{"sizes":[`, "%10d,%10d", `],"messages":`
	partTools, partCall, sizesMessages = `,"tools":`, `,"call":`, len(sizesHead) + 21 + len(sizesTail)
)

// encode implements [encoder].
func (m CompleteV2) encode() ([]byte, error) {
	m.Call.Messages, m.Call.Tools = nil, nil
	call, err := Encode(m.Call)
	if err != nil {
		return nil, err
	}
	tools := m.Tools
	if len(tools) == 0 {
		tools = json.RawMessage("[]")
	}
	out := make([]byte, 0, sizesMessages+len(m.Messages)+len(partTools)+len(tools)+len(partCall)+len(call)+1)
	out = append(fmt.Appendf(append(out, sizesHead...), sizesForm, len(m.Messages), len(tools)), sizesTail...)
	out = append(append(out, m.Messages...), partTools...)
	out = append(append(out, tools...), partCall...)
	return append(append(out, call...), '}'), nil
}

// decode implements [decoder]. Messages and Tools share memory with data and are not
// checked.
func (m *CompleteV2) decode(data []byte) (bool, error) {
	var messages, tools int
	if len(data) < sizesMessages || string(data[:len(sizesHead)]) != sizesHead || string(data[sizesMessages-len(sizesTail):sizesMessages]) != sizesTail {
		return false, nil
	}
	sizes := data[len(sizesHead) : sizesMessages-len(sizesTail)]
	if sizes[10] != ',' || !number(sizes[:10], &messages) || !number(sizes[11:], &tools) {
		return false, nil
	}
	rest := data[sizesMessages:]
	if messages > len(rest)-len(partTools) || string(rest[messages:messages+len(partTools)]) != partTools {
		return false, nil
	}
	m.Messages, rest = rest[:messages:messages], rest[messages+len(partTools):]
	if tools > len(rest)-len(partCall) || string(rest[tools:tools+len(partCall)]) != partCall || rest[len(rest)-1] != '}' {
		return false, nil
	}
	m.Tools, rest = rest[:tools:tools], rest[tools+len(partCall):]
	return true, json.Unmarshal(rest[:len(rest)-1], &m.Call)
}

// number adds to n, which must be 0, the decimal number in text. Leading spaces are
// allowed. It returns false if text is not a number.
func number(text []byte, n *int) bool {
	for i, c := range text {
		switch {
		case c == ' ' && *n == 0 && i < len(text)-1:
		case c >= '0' && c <= '9':
			*n = *n*10 + int(c-'0')
		default:
			return false
		}
	}
	return true
}

// Delta is a piece of the answer's text. With Discard, all earlier pieces are void: the
// call is repeated, and Content is the first piece of the new answer, often "". Note is
// the reason, for people; a Note without Discard reports a wait.
//
// A Delta with an Answer is the last one: Content is the rest of the text, and Answer
// is the complete stored answer without [Completion.Funds]. The stream continues until
// the cost is settled. An answer that costs nothing, or one of an earlier release, is
// only sent at the end of the stream.
type Delta struct {
	Content string      `json:"content"`
	Discard bool        `json:"discard,omitempty"`
	Note    string      `json:"note,omitempty"`
	Answer  *Completion `json:"answer,omitempty"`
}

// Completion is the answer of a model and its cost.
type Completion struct {
	Model        string     `json:"model"`
	Provider     string     `json:"provider"`
	Text         string     `json:"text"`
	ToolCalls    []ToolCall `json:"toolCalls,omitempty"`
	Finish       string     `json:"finish"`                 // one of the Finish constants, or the provider's own value
	StopSequence string     `json:"stopSequence,omitempty"` // of the request, before which the answer ends, if the provider names it
	InputTokens  int64      `json:"inputTokens"`
	OutputTokens int64      `json:"outputTokens"`
	CachedTokens int64      `json:"cachedTokens,omitempty"`     // of InputTokens, read from the provider's cache
	CacheWrite   int64      `json:"cacheWriteTokens,omitempty"` // of InputTokens, written to the provider's cache
	ReasonTokens int64      `json:"reasoningTokens,omitempty"`  // of OutputTokens, not part of Text
	Cost         Micros     `json:"cost"`                       // includes earlier attempts of the call
	LatencyMS    int64      `json:"latencyMs"`
	// Reasoning is the text that the model wrote before its answer and that is not a
	// part of it (reasoning_content, <think>). It is not streamed and never sent to a
	// model.
	Reasoning string `json:"reasoning,omitempty"`
	Partial   bool   `json:"partial,omitempty"`  // Text is the beginning of an incomplete answer
	Attempts  int    `json:"attempts,omitempty"` // number of calls to providers, including this one; 0: one, from an earlier release
	// Funds are those of the agent after the settlement. nil means unknown: nothing was
	// settled, or not by this answer, or by an earlier release.
	Funds *Funds `json:"funds,omitempty"`
}

// Confirm requests the settlement of a stored answer. The router settles its cost,
// unless that is done, and answers the [Completion]. A caller sends it if the stream of
// [Complete] failed or was lost after [Delta.Answer]. It is idempotent.
//
// Errors: NotFound (no answer is stored), Conflict (the call belongs to another agent),
// Unavailable.
type Confirm struct {
	ID    string `json:"id"` // of the call
	Agent string `json:"agent"`
}

// ListModels requests the [Models].
type ListModels struct{}

// Models holds the models of the router, usable or not.
type Models struct {
	Models []Model  `json:"models"`
	Faults []string `json:"faults,omitempty"` // providers for which the list of models cannot be read, with the reason
}

// Model describes one model of the registry. Prices are in micro-USD per million
// tokens.
type Model struct {
	ID            string `json:"id"`
	Provider      string `json:"provider"`
	InputPrice    Micros `json:"inputPrice"`
	OutputPrice   Micros `json:"outputPrice"`
	ContextWindow int64  `json:"contextWindow"`
	MaxOutput     int64  `json:"maxOutput"`
	TierMinimum   Tier   `json:"tierMinimum"`
	Vision        bool   `json:"vision,omitempty"` // sees images; other models are not called for prompts with images
	Usable        bool   `json:"usable"`
	Why           string `json:"why,omitempty"` // why it is not usable

	Lifecycle     Lifecycle `json:"lifecycle,omitempty"`
	CachedPrice   Micros    `json:"cachedPrice,omitempty"`    // of prompt tokens read from the provider's cache; 0: InputPrice
	WritePrice    Micros    `json:"writePrice,omitempty"`     // of prompt tokens written to the provider's cache; 0: InputPrice
	ReasonPrice   Micros    `json:"reasoningPrice,omitempty"` // of answer tokens that are not part of the text; 0: OutputPrice
	PriceVersion  int64     `json:"priceVersion,omitempty"`   // 0: the prices are those of the settings, or the model has none
	PriceUnknown  bool      `json:"priceUnknown,omitempty"`   // then the prices are 0 and the model is not usable
	Vanished      int64     `json:"vanishedAt,omitempty"`     // its provider listed it until then; 0: it did not vanish
	Breaker       string    `json:"breaker,omitempty"`        // open or half-open; "": closed
	BreakerUntil  int64     `json:"breakerUntil,omitempty"`   // end of an open breaker
	BreakerReason string    `json:"breakerReason,omitempty"`  // why the last attempt failed
}

// The implementations of [Message] by the types of this file.

func (Complete) Subject() Subject   { return request(Inference, "complete") }
func (CompleteV2) Subject() Subject { return request(Inference, "complete").version(2) }
func (Confirm) Subject() Subject    { return request(Inference, "confirm") }
func (ListModels) Subject() Subject { return request(Inference, "list_models") }

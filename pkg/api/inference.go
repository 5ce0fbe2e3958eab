package api

import (
	"encoding/json"
	"fmt"
)

// inference is owned by the service inference-router: models, prices, provider
// keys, and the cost of every call (design §3, §5).
//
// History: v1 2026-11 first version; v2 of complete 2026-11, the prompt as the provider
// gets it.

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

// How an answer ended, as [Completion.Finish] says it. A provider's own word that is
// none of these passes unchanged.
const (
	FinishStop       = "stop"
	FinishToolCalls  = "tool_calls"
	FinishLength     = "length"         // cut at the limit of output tokens; the last tool call may be cut too
	FinishFilter     = "content_filter" // the provider withheld the answer or the rest of it
	FinishRefusal    = "refusal"        // the model declined; Text is how it says so
	FinishEmpty      = "empty"          // neither text nor a tool call
	FinishRepetition = "repetition"     // the text repeated itself and was cut after the first time
	FinishTimeout    = "timeout"        // the time was over; Text is what had arrived, Partial is set
)

// Complete asks for one model call, paid from the agent's account: the router
// holds the estimated cost, calls, and settles the actual one. It streams
// [Delta]s and answers [Completion]. The answer is stored before any caller gets it.
// It is sent twice: in [Delta.Answer] as soon as it is stored, and at the end of the
// stream, when treasury has settled its cost. Asking again with the same ID returns the
// stored answer and pays nothing; asking while the first question is being answered
// waits for that answer. An error after [Delta.Answer] is one of the settlement: the
// answer stands, and [Confirm] or the same question settles it.
//
// The router repeats a call that failed for a passing cause, on the same model or the
// next one, within one number of attempts for an ID and one for a Run. Both counts
// are kept in its store.
//
// Errors: Denied with ReasonInsufficient or ReasonLimit; Invalid with ReasonTooLong or
// ReasonRefused; Unavailable with ReasonNoModel, ReasonAuth, ReasonQuota,
// ReasonEndpoint or ReasonAttempts, which asking again does not mend; Unavailable with
// ReasonProvider, which may be asked again under the same ID after RetryAfter.
type Complete struct {
	ID        string        `json:"id"` // idempotency key: turn id and attempt
	Agent     string        `json:"agent"`
	Session   string        `json:"session"`
	Turn      string        `json:"turn"`
	Task      Task          `json:"task"`
	Tier      Tier          `json:"tier"`               // as the caller knows it; unknown is not poor
	Model     string        `json:"model,omitempty"`    // preference
	Messages  []ChatMessage `json:"messages,omitempty"` // needed, but for [CompleteV2]
	Tools     []Tool        `json:"tools,omitempty"`
	MaxTokens int64         `json:"maxTokens,omitempty"` // 0: the matrix decides
	// Run is the run that the call is a part of: its failed attempts count together.
	// "" is a call by itself.
	Run string `json:"runId,omitempty"`
	// Deadline is when the answer is no longer wanted, in Unix µs; the task's own
	// limit applies too. 0: only that one.
	Deadline int64 `json:"deadline,omitempty"`
}

// Subject of the message.
func (Complete) Subject() Subject { return request(Inference, "complete") }

// CompleteV2 is [Complete] with the prompt as the provider gets it: its bytes are made
// once, by package chat, and neither encoded nor decoded on their way. A router decodes
// them only where it has to change them.
//
// It has a form of its own on the wire, a JSON object whose first field has the sizes of
// the next two, so that a reader need not look for their ends. A reader that does not
// know of that reads it as any other object.
type CompleteV2 struct {
	Messages json.RawMessage `json:"messages"` // of OpenAI's chat completions, see package chat
	Tools    json.RawMessage `json:"tools"`    // the same; [] when none is offered
	Call     Complete        `json:"call"`     // without its Messages and Tools
}

// Subject of the message.
func (CompleteV2) Subject() Subject { return request(Inference, "complete").version(2) }

// What stands between the parts of a [CompleteV2].
const (
	sizesHead, sizesForm, sizesTail    = `{"sizes":[`, "%10d,%10d", `],"messages":`
	partTools, partCall, sizesMessages = `,"tools":`, `,"call":`, len(sizesHead) + 21 + len(sizesTail)
)

// encode implements encoder.
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

// decode implements decoder. Messages and Tools are parts of data, and not looked at.
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

// number reads digits behind spaces.
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

// Delta is a piece of the answer's text. With Discard, all pieces before it are void:
// the call is made again, and Content is the first piece of the new answer (often
// ""). Note says why, for people; a Note without Discard reports a wait.
//
// A Delta with an Answer is the last one: Content is the rest of the text, and Answer
// the whole answer as it is stored, without [Completion.Funds]. The stream goes on until
// its cost is settled. An answer that costs nothing has none, and neither has one of a
// release before: it comes at the end of the stream only.
type Delta struct {
	Content string      `json:"content"`
	Discard bool        `json:"discard,omitempty"`
	Note    string      `json:"note,omitempty"`
	Answer  *Completion `json:"answer,omitempty"`
}

// Completion is the model's answer and what it cost.
type Completion struct {
	Model        string     `json:"model"`
	Provider     string     `json:"provider"`
	Text         string     `json:"text"`
	ToolCalls    []ToolCall `json:"toolCalls,omitempty"`
	Finish       string     `json:"finish"` // one of the Finish constants, or the provider's word
	InputTokens  int64      `json:"inputTokens"`
	OutputTokens int64      `json:"outputTokens"`
	Cost         Micros     `json:"cost"` // with what earlier attempts of the call cost
	LatencyMS    int64      `json:"latencyMs"`
	// Reasoning is what the model wrote before its answer and not as a part of it
	// (reasoning_content, <think>). It is not streamed and never sent back.
	Reasoning string `json:"reasoning,omitempty"`
	Partial   bool   `json:"partial,omitempty"`  // Text is the beginning of an answer that did not end
	Attempts  int    `json:"attempts,omitempty"` // calls to providers, this one included; 0: one, by a release before
	// Funds are the agent's after the call was settled. nil: they are not known, because
	// nothing was settled, or not by this answer, or by a release before.
	Funds *Funds `json:"funds,omitempty"`
}

// Confirm asks for the settlement of an answer that is stored: the router settles its
// cost, unless that is done, and answers the [Completion]. A caller asks when the stream
// of [Complete] ended, or was lost, after [Delta.Answer]. Asking again changes nothing.
//
// Errors: NotFound (no answer is stored), Conflict (the call is another agent's),
// Unavailable.
type Confirm struct {
	ID    string `json:"id"` // of the call
	Agent string `json:"agent"`
}

// Subject of the message.
func (Confirm) Subject() Subject { return request(Inference, "confirm") }

// ListModels answers [Models].
type ListModels struct{}

// Subject of the message.
func (ListModels) Subject() Subject { return request(Inference, "list_models") }

// Models is what the router can call and why not the rest.
type Models struct {
	Models []Model  `json:"models"`
	Faults []string `json:"faults,omitempty"` // providers whose list cannot be read, and why
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

package surface

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

type anthropicUsage struct {
	Input      int64 `json:"input_tokens"` // without the two below
	CacheWrite int64 `json:"cache_creation_input_tokens"`
	CacheRead  int64 `json:"cache_read_input_tokens"`
	Output     int64 `json:"output_tokens"`
	Details    struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

func anthropicUsageOf(c api.Completion) anthropicUsage {
	u := anthropicUsage{Input: c.InputTokens - c.CachedTokens - c.CacheWrite, CacheWrite: c.CacheWrite, CacheRead: c.CachedTokens, Output: c.OutputTokens}
	u.Details.Thinking = c.ReasonTokens
	return u
}

// anthropicMessage is an answer. In the first event of a stream it is empty.
type anthropicMessage struct {
	ID           string           `json:"id"`
	Type         string           `json:"type"`
	Role         string           `json:"role"`
	Model        string           `json:"model"`
	Content      []anthropicBlock `json:"content"`
	StopReason   *string          `json:"stop_reason"`
	StopSequence *string          `json:"stop_sequence"`
	Usage        anthropicUsage   `json:"usage"`
}

// anthropicStop returns the stop reason in the words of the protocol.
func anthropicStop(c api.Completion) *string {
	word := "end_turn"
	if c.StopSequence != "" {
		word = "stop_sequence"
	}
	switch c.Finish {
	case api.FinishToolCalls:
		word = "tool_use"
	case api.FinishLength, api.FinishTimeout, api.FinishRepetition:
		word = "max_tokens"
	case api.FinishRefusal, api.FinishFilter:
		word = "refusal"
	}
	return &word
}

// stopSequence returns the stop sequence that ended the answer, or nil.
func stopSequence(c api.Completion) *string {
	if c.StopSequence == "" {
		return nil
	}
	return &c.StopSequence
}

// inputOf returns the arguments of a call as the object that the protocol requires. Text
// that is not an object becomes the field _raw of one.
func inputOf(arguments string) json.RawMessage {
	text := strings.TrimSpace(arguments)
	if text == "" {
		return json.RawMessage(`{}`)
	}
	if text[0] == '{' && json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	data, err := api.Encode(map[string]string{"_raw": arguments})
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return data
}

// Answer implements [Dialect].
func (Anthropic) Answer(w http.ResponseWriter, head Head, c api.Completion) {
	m := anthropicMessage{
		ID: head.ID, Type: "message", Role: provider.Assistant, Model: c.Model, Content: []anthropicBlock{},
		StopReason: anthropicStop(c), StopSequence: stopSequence(c), Usage: anthropicUsageOf(c),
	}
	if c.Reasoning != "" {
		none := ""
		m.Content = append(m.Content, anthropicBlock{Type: "thinking", Thinking: &c.Reasoning, Signature: &none})
	}
	if c.Text != "" {
		m.Content = append(m.Content, anthropicBlock{Type: "text", Text: &c.Text})
	}
	for _, call := range c.ToolCalls {
		m.Content = append(m.Content, anthropicBlock{Type: "tool_use", ID: call.ID, Name: call.Name, Input: inputOf(call.Arguments)})
	}
	write(w, http.StatusOK, m)
}

// Count writes the number of tokens of a request that [Anthropic.ReadCount] has read.
func (Anthropic) Count(w http.ResponseWriter, tokens int64) {
	write(w, http.StatusOK, map[string]int64{"input_tokens": tokens})
}

// Stream implements [Dialect].
func (Anthropic) Stream(w http.ResponseWriter, head Head) Stream {
	return &anthropicStream{events: events{w: w}, head: head}
}

type anthropicStream struct {
	events

	head Head
	open bool // the text block is open
	next int  // index of the next block
}

// event is the part that most events have.
type event map[string]any

func (s *anthropicStream) emit(name string, e event) error {
	e["type"] = name
	return s.send(name, e)
}

// start writes the head of the message before the first block.
func (s *anthropicStream) start() error {
	if s.begun {
		return nil
	}
	return s.emit("message_start", event{"message": anthropicMessage{
		ID: s.head.ID, Type: "message", Role: provider.Assistant, Model: s.head.Model, Content: []anthropicBlock{},
	}})
}

func (s *anthropicStream) Text(piece string) error {
	if err := s.start(); err != nil {
		return err
	}
	if !s.open {
		s.open = true
		if err := s.emit("content_block_start", event{"index": s.next, "content_block": event{"type": "text", "text": ""}}); err != nil {
			return err
		}
	}
	return s.emit("content_block_delta", event{"index": s.next, "delta": event{"type": "text_delta", "text": piece}})
}

// closeBlock ends the block in progress.
func (s *anthropicStream) closeBlock() error {
	s.open = false
	s.next++
	return s.emit("content_block_stop", event{"index": s.next - 1})
}

// thinking writes a block of thinking. Its signature is empty: thinking is not sent back to
// the model.
func (s *anthropicStream) thinking(text string) error {
	if err := s.emit("content_block_start", event{"index": s.next, "content_block": event{"type": "thinking", "thinking": "", "signature": ""}}); err != nil {
		return err
	}
	if err := s.emit("content_block_delta", event{"index": s.next, "delta": event{"type": "thinking_delta", "thinking": text}}); err != nil {
		return err
	}
	return s.closeBlock()
}

func (s *anthropicStream) End(c api.Completion) error {
	s.head.Model = c.Model
	if err := s.start(); err != nil {
		return err
	}
	if s.open {
		if err := s.closeBlock(); err != nil {
			return err
		}
	}
	if c.Reasoning != "" { // known only now
		if err := s.thinking(c.Reasoning); err != nil {
			return err
		}
	}
	for _, call := range c.ToolCalls {
		if err := s.emit("content_block_start", event{"index": s.next, "content_block": event{"type": "tool_use", "id": call.ID, "name": call.Name, "input": event{}}}); err != nil {
			return err
		}
		if err := s.emit("content_block_delta", event{"index": s.next, "delta": event{"type": "input_json_delta", "partial_json": string(inputOf(call.Arguments))}}); err != nil {
			return err
		}
		if err := s.closeBlock(); err != nil {
			return err
		}
	}
	// The usage of the prompt is known only now, so it is in this event too.
	if err := s.emit("message_delta", event{
		"delta": event{"stop_reason": anthropicStop(c), "stop_sequence": stopSequence(c)}, "usage": anthropicUsageOf(c),
	}); err != nil {
		return err
	}
	return s.emit("message_stop", event{})
}

// Fail writes an error event. No message_stop follows.
func (s *anthropicStream) Fail(status int, err error) error {
	return s.send("error", anthropicError(status, err))
}

// Refuse implements [Dialect].
func (Anthropic) Refuse(w http.ResponseWriter, status int, err error) {
	write(w, status, anthropicError(status, err))
}

func anthropicError(status int, err error) any {
	word := "invalid_request_error"
	switch {
	case status == http.StatusUnauthorized:
		word = "authentication_error"
	case status == http.StatusPaymentRequired:
		word = "billing_error"
	case status == http.StatusForbidden:
		word = "permission_error"
	case status == http.StatusNotFound:
		word = "not_found_error"
	case status == http.StatusRequestEntityTooLarge:
		word = "request_too_large"
	case status == http.StatusTooManyRequests:
		word = "rate_limit_error"
	case status == http.StatusServiceUnavailable:
		word = "overloaded_error"
	case status >= http.StatusInternalServerError:
		word = "api_error"
	}
	return event{"type": "error", "error": event{"type": word, "message": message(err)}}
}

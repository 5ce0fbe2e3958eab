package surface

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Anthropic is the protocol of POST /v1/messages.
type Anthropic struct{}

// anthropicRequest has the fields of a request that the router understands.
type anthropicRequest struct {
	Model      string          `json:"model"`
	MaxTokens  int64           `json:"max_tokens"`
	System     json.RawMessage `json:"system"`
	Messages   []anthropicTurn `json:"messages"`
	Tools      []anthropicTool `json:"tools"`
	ToolChoice *struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	Temperature *float64 `json:"temperature"`
	TopP        *float64 `json:"top_p"`
	Stop        []string `json:"stop_sequences"`
	Metadata    struct {
		UserID string `json:"user_id"`
	} `json:"metadata"`
	Stream bool `json:"stream"`
}

type anthropicTurn struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type anthropicTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// anthropicBlock is a content block, in requests and in answers.
type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
}

// Read implements [Dialect].
func (Anthropic) Read(body []byte) (Request, error) {
	var in anthropicRequest
	if err := decode(body, &in); err != nil {
		return Request{}, err
	}
	out := Request{
		Model: in.Model, MaxTokens: in.MaxTokens, User: in.Metadata.UserID, Stream: in.Stream,
		Options: provider.Options{Temperature: in.Temperature, TopP: in.TopP, Stop: in.Stop},
	}
	switch {
	case in.Model == "":
		return out, invalid("model: field required")
	case in.MaxTokens < 1:
		return out, invalid("max_tokens: at least 1 is required")
	case len(in.Messages) == 0:
		return out, invalid("messages: at least one message is required")
	}
	blocks, err := blocksOf(in.System)
	if err != nil {
		return out, invalid("system: %v", err)
	}
	for _, b := range blocks {
		if b.Type != "text" || b.Text == nil {
			return out, invalid("system: a block of type %q is not supported, only text is", b.Type)
		}
		out.Messages = append(out.Messages, api.ChatMessage{Role: provider.System, Content: *b.Text})
	}
	for i, m := range in.Messages {
		read, err := m.messages()
		if err != nil {
			return out, invalid("messages.%d: %v", i, err)
		}
		out.Messages = append(out.Messages, read...)
	}
	for i, t := range in.Tools {
		if t.Type != "" && t.Type != "custom" || t.Name == "" {
			return out, invalid("tools.%d: a custom tool with a name is needed, tools of the server are not supported", i)
		}
		out.Tools = append(out.Tools, api.Tool{Name: t.Name, Description: t.Description, Schema: notNull(t.InputSchema)})
	}
	if c := in.ToolChoice; c != nil {
		out.Options.SingleCall = c.Single
		switch c.Type {
		case "auto", "none":
			out.Options.ToolChoice = c.Type
		case "any":
			out.Options.ToolChoice = provider.ToolsRequired
		case "tool":
			out.Options.ToolChoice = provider.OneTool + c.Name
		default:
			return out, invalid("tool_choice: type %q is none of auto, any, tool, none", c.Type)
		}
	}
	return out, nil
}

// blocksOf returns the blocks of a content, which is a text or a list of blocks.
func blocksOf(raw json.RawMessage) ([]anthropicBlock, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []anthropicBlock{{Type: "text", Text: &text}}, nil
	}
	var all []anthropicBlock
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, api.Errorf(api.Invalid, "the content is neither a text nor a list of blocks")
	}
	return all, nil
}

// messages returns a message in the neutral form, in which each result is a message of its
// own before the text that follows it. Thinking of earlier answers is left out: it belongs
// to the model that wrote it.
func (m anthropicTurn) messages() ([]api.ChatMessage, error) {
	if m.Role != provider.User && m.Role != provider.Assistant {
		return nil, api.Errorf(api.Invalid, "role %q is neither user nor assistant", m.Role)
	}
	blocks, err := blocksOf(m.Content)
	if err != nil {
		return nil, err
	}
	var out []api.ChatMessage
	own := api.ChatMessage{Role: m.Role}
	var texts []string
	for _, b := range blocks {
		switch {
		case b.Type == "text" && b.Text != nil:
			texts = append(texts, *b.Text)
		case b.Type == "thinking", b.Type == "redacted_thinking":
		case b.Type == "tool_use" && m.Role == provider.Assistant:
			own.ToolCalls = append(own.ToolCalls, api.ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case b.Type == "tool_result" && m.Role == provider.User:
			text, err := resultOf(b)
			if err != nil {
				return nil, err
			}
			out = append(out, api.ChatMessage{Role: provider.ToolRole, ToolCallID: b.ToolUseID, Content: text})
		default:
			return nil, api.Errorf(api.Invalid, "a block of type %q is not supported for the role %s", b.Type, m.Role)
		}
	}
	own.Content = strings.Join(texts, "\n")
	if own.Content != "" || len(own.ToolCalls) > 0 {
		out = append(out, own)
	}
	return out, nil
}

// resultOf returns the text of a result. A failed call is marked, because the neutral form
// has no field for it.
func resultOf(b anthropicBlock) (string, error) {
	blocks, err := blocksOf(b.Content)
	if err != nil {
		return "", err
	}
	var texts []string
	if b.IsError {
		texts = append(texts, "[the call failed]")
	}
	for _, part := range blocks {
		if part.Type != "text" || part.Text == nil {
			return "", api.Errorf(api.Invalid, "a result with a block of type %q is not supported, only text is", part.Type)
		}
		texts = append(texts, *part.Text)
	}
	return strings.Join(texts, "\n"), nil
}

type anthropicUsage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
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
func anthropicStop(finish string) *string {
	word := "end_turn"
	switch finish {
	case api.FinishToolCalls:
		word = "tool_use"
	case api.FinishLength, api.FinishTimeout:
		word = "max_tokens"
	case api.FinishRefusal, api.FinishFilter:
		word = "refusal"
	}
	return &word
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
		StopReason: anthropicStop(c.Finish), Usage: anthropicUsage{c.InputTokens, c.OutputTokens},
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

func (s *anthropicStream) End(c api.Completion) error {
	if err := s.start(); err != nil {
		return err
	}
	if s.open {
		if err := s.closeBlock(); err != nil {
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
		"delta": event{"stop_reason": anthropicStop(c.Finish), "stop_sequence": nil}, "usage": anthropicUsage{c.InputTokens, c.OutputTokens},
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

package surface

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// OpenAI is the protocol of POST /v1/chat/completions.
type OpenAI struct{}

// openAIRequest has the fields of a request that the router understands.
type openAIRequest struct {
	Model               string          `json:"model"`
	Messages            []openAIMessage `json:"messages"`
	Tools               []openAITool    `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ParallelToolCalls   *bool           `json:"parallel_tool_calls"`
	MaxTokens           int64           `json:"max_tokens"`
	MaxCompletionTokens int64           `json:"max_completion_tokens"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`
	ResponseFormat      json.RawMessage `json:"response_format"`
	N                   int             `json:"n"`
	User                string          `json:"user"`
	Stream              bool            `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type openAIMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Refusal    string          `json:"refusal"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []openAICall    `json:"tool_calls"`
}

type openAICall struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type openAITool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// Read implements [Dialect].
func (OpenAI) Read(body []byte) (Request, error) {
	var in openAIRequest
	if err := decode(body, &in); err != nil {
		return Request{}, err
	}
	out := Request{
		Model: in.Model, MaxTokens: max(in.MaxCompletionTokens, in.MaxTokens), User: in.User, Stream: in.Stream, Usage: in.StreamOptions.IncludeUsage,
		Options: provider.Options{Temperature: in.Temperature, TopP: in.TopP, Seed: in.Seed, ResponseFormat: notNull(in.ResponseFormat)},
	}
	switch {
	case in.Model == "":
		return out, invalid("model is missing")
	case len(in.Messages) == 0:
		return out, invalid("messages is empty")
	case in.N > 1:
		return out, invalid("n is %d: one answer can be requested at a time", in.N)
	case in.MaxTokens < 0 || in.MaxCompletionTokens < 0:
		return out, invalid("the output limit cannot be negative")
	}
	if in.ParallelToolCalls != nil && !*in.ParallelToolCalls {
		out.Options.SingleCall = true
	}
	for i, m := range in.Messages {
		text, err := textOf(m.Content)
		if err != nil {
			return out, invalid("messages[%d]: %v", i, err)
		}
		if text == "" {
			text = m.Refusal
		}
		read := api.ChatMessage{Role: m.Role, Content: text, ToolCallID: m.ToolCallID}
		if m.Role == "developer" {
			read.Role = provider.System
		}
		for _, c := range m.ToolCalls {
			read.ToolCalls = append(read.ToolCalls, api.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		out.Messages = append(out.Messages, read)
	}
	for i, t := range in.Tools {
		if t.Type != "function" || t.Function.Name == "" {
			return out, invalid("tools[%d]: a function with a name is needed", i)
		}
		out.Tools = append(out.Tools, api.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: notNull(t.Function.Parameters)})
	}
	var err error
	if out.Options.ToolChoice, err = openAIChoice(in.ToolChoice); err != nil {
		return out, err
	}
	out.Options.Stop, err = stopOf(in.Stop)
	return out, err
}

func notNull(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// textOf returns the text of a content, which is a string, null or a list of parts.
func textOf(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", api.Errorf(api.Invalid, "the content is neither a text nor a list of parts")
	}
	var all []string
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text": // the latter two in a response
			all = append(all, p.Text)
		case "refusal":
			all = append(all, p.Refusal)
		default:
			return "", api.Errorf(api.Invalid, "a part of type %q is not supported, only text is", p.Type)
		}
	}
	return strings.Join(all, "\n"), nil
}

// stopOf returns the stop sequences, which are a string, null or a list.
func stopOf(raw json.RawMessage) ([]string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var all []string
	if json.Unmarshal(raw, &all) != nil {
		return nil, invalid("stop is neither a text nor a list of texts")
	}
	return all, nil
}

// openAIChoice returns the choice of tools: auto, none, required, or the name of a tool
// after [provider.OneTool].
func openAIChoice(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var word string
	if json.Unmarshal(raw, &word) == nil {
		switch word {
		case provider.ToolsAuto, provider.ToolsNone, provider.ToolsRequired:
			return word, nil
		}
		return "", invalid("tool_choice %q is none of auto, none, required", word)
	}
	var one struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if json.Unmarshal(raw, &one) != nil || one.Function.Name == "" {
		return "", invalid("tool_choice names no function")
	}
	return provider.OneTool + one.Function.Name, nil
}

type openAIUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

func openAIUsageOf(c api.Completion) *openAIUsage {
	return &openAIUsage{c.InputTokens, c.OutputTokens, c.InputTokens + c.OutputTokens}
}

// openAIDelta is a message or a piece of one.
type openAIDelta struct {
	Role      string       `json:"role,omitempty"`
	Content   *string      `json:"content,omitempty"`
	Reasoning string       `json:"reasoning_content,omitempty"`
	Refusal   *string      `json:"refusal,omitempty"`
	ToolCalls []openAICall `json:"tool_calls,omitempty"`
}

type openAIChoiceOut struct {
	Index   int          `json:"index"`
	Message *openAIDelta `json:"message,omitempty"`
	Delta   *openAIDelta `json:"delta,omitempty"`
	Finish  *string      `json:"finish_reason"`
}

type openAIAnswer struct {
	ID      string            `json:"id"`
	Object  string            `json:"object"`
	Created int64             `json:"created"`
	Model   string            `json:"model"`
	Choices []openAIChoiceOut `json:"choices"`
	Usage   *openAIUsage      `json:"usage,omitempty"`
}

// openAICalls returns the calls of an answer, with indexes in a stream.
func openAICalls(calls []api.ToolCall, indexed bool) []openAICall {
	var out []openAICall
	for i, c := range calls {
		call := openAICall{ID: c.ID, Type: "function"}
		call.Function.Name, call.Function.Arguments = c.Name, c.Arguments
		if indexed {
			call.Index = &i
		}
		out = append(out, call)
	}
	return out
}

// openAIFinish returns the finish reason in the words of the protocol, which has fewer.
func openAIFinish(finish string) *string {
	switch finish {
	case api.FinishToolCalls, api.FinishFilter, api.FinishLength:
	case api.FinishTimeout:
		finish = api.FinishLength // the answer is incomplete
	default:
		finish = api.FinishStop
	}
	return &finish
}

// Answer implements [Dialect].
func (OpenAI) Answer(w http.ResponseWriter, head Head, c api.Completion) {
	m := &openAIDelta{Role: provider.Assistant, Content: &c.Text, Reasoning: c.Reasoning, ToolCalls: openAICalls(c.ToolCalls, false)}
	if c.Finish == api.FinishRefusal {
		m.Content, m.Refusal = nil, &c.Text
	}
	write(w, http.StatusOK, openAIAnswer{
		ID: head.ID, Object: "chat.completion", Created: head.Created, Model: c.Model,
		Choices: []openAIChoiceOut{{Message: m, Finish: openAIFinish(c.Finish)}}, Usage: openAIUsageOf(c),
	})
}

// Stream implements [Dialect].
func (OpenAI) Stream(w http.ResponseWriter, head Head) Stream {
	return &openAIStream{events: events{w: w}, head: head}
}

type openAIStream struct {
	events

	head Head
}

func (s *openAIStream) chunk(choices []openAIChoiceOut, usage *openAIUsage) error {
	return s.send("", openAIAnswer{ID: s.head.ID, Object: "chat.completion.chunk", Created: s.head.Created, Model: s.head.Model, Choices: choices, Usage: usage})
}

// delta writes a piece of the message. The first one has the role.
func (s *openAIStream) delta(d openAIDelta) error {
	if !s.begun {
		d.Role = provider.Assistant
	}
	return s.chunk([]openAIChoiceOut{{Delta: &d}}, nil)
}

func (s *openAIStream) Text(piece string) error { return s.delta(openAIDelta{Content: &piece}) }

// End writes the usage in a chunk of its own if the caller asked for it, and else in the
// chunk with the finish reason.
func (s *openAIStream) End(c api.Completion) error {
	if len(c.ToolCalls) > 0 || !s.begun {
		if err := s.delta(openAIDelta{ToolCalls: openAICalls(c.ToolCalls, true)}); err != nil {
			return err
		}
	}
	usage := openAIUsageOf(c)
	last := []openAIChoiceOut{{Delta: &openAIDelta{}, Finish: openAIFinish(c.Finish)}}
	if !s.head.Usage {
		if err := s.chunk(last, usage); err != nil {
			return err
		}
		return s.raw("", []byte("[DONE]"))
	}
	if err := s.chunk(last, nil); err != nil {
		return err
	}
	if err := s.chunk([]openAIChoiceOut{}, usage); err != nil {
		return err
	}
	return s.raw("", []byte("[DONE]"))
}

// Fail writes an error event. No [DONE] follows.
func (s *openAIStream) Fail(status int, err error) error { return s.send("", openAIError(status, err)) }

// Refuse implements [Dialect].
func (OpenAI) Refuse(w http.ResponseWriter, status int, err error) {
	write(w, status, openAIError(status, err))
}

func openAIError(status int, err error) any {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}
	o := object{Message: message(err), Type: "server_error"}
	var code string
	switch reason := api.ReasonOf(err); {
	case status == http.StatusUnauthorized:
		o.Type, code = "invalid_request_error", "invalid_api_key"
	case reason == api.ReasonInsufficient:
		o.Type, code = "insufficient_quota", "insufficient_quota"
	case reason == api.ReasonTooLong:
		o.Type, code = "invalid_request_error", "context_length_exceeded"
	case reason == api.ReasonNoModel:
		code = "model_not_found"
	case status == http.StatusTooManyRequests:
		o.Type, code = "rate_limit_error", "rate_limit_exceeded"
	case status >= http.StatusInternalServerError:
		code = reason
	default:
		o.Type, code = "invalid_request_error", reason
	}
	if code != "" {
		o.Code = &code
	}
	return map[string]object{"error": o}
}

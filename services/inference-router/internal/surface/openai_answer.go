package surface

import (
	"net/http"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

type openAIUsage struct {
	Prompt        int64 `json:"prompt_tokens"`
	Completion    int64 `json:"completion_tokens"`
	Total         int64 `json:"total_tokens"`
	PromptDetails struct {
		Cached     int64 `json:"cached_tokens"`
		CacheWrite int64 `json:"cache_write_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func openAIUsageOf(c api.Completion) *openAIUsage {
	u := &openAIUsage{Prompt: c.InputTokens, Completion: c.OutputTokens, Total: c.InputTokens + c.OutputTokens}
	u.PromptDetails.Cached, u.PromptDetails.CacheWrite, u.CompletionDetails.Reasoning = c.CachedTokens, c.CacheWrite, c.ReasonTokens
	return u
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
		call.Function.Name, call.Function.Arguments = c.Name, argumentsOf(c)
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
	case api.FinishTimeout, api.FinishRepetition:
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
	s.head.Model = c.Model
	if c.Reasoning != "" || !s.begun { // the reasoning is known only now
		if err := s.delta(openAIDelta{Reasoning: c.Reasoning}); err != nil {
			return err
		}
	}
	for _, call := range openAICalls(c.ToolCalls, true) { // each in a chunk: the official client for Go reports one of a chunk
		if err := s.delta(openAIDelta{ToolCalls: []openAICall{call}}); err != nil {
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
	case api.OverLimit(reason), reason == api.ReasonLimit && status == http.StatusPaymentRequired:
		o.Type, code = "insufficient_quota", reason
	case reason == api.ReasonTooLong:
		o.Type, code = "invalid_request_error", "context_length_exceeded"
	case status == http.StatusNotFound && reason == api.ReasonNoModel:
		o.Type, code = "invalid_request_error", "model_not_found"
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

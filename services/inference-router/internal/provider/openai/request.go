package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3/option"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// body encodes the request in the server's dialect. An encoded prompt is sent unchanged,
// unless the server takes no tools; in any other prompt consecutive messages are merged.
func body(req provider.Request, d dialect) ([]byte, error) {
	if d.noTools {
		opened, err := req.Decode()
		if err != nil {
			return nil, err
		}
		req = opened
		req.Messages, req.Tools = plain(req.Messages), nil
	}
	prompt := req.Raw
	if prompt == nil {
		merged, err := chat.Merge(apart(req.Messages))
		if err != nil {
			return nil, err
		}
		tools, err := chat.EncodeTools(req.Tools)
		if err != nil {
			return nil, err
		}
		prompt = &provider.EncodedPrompt{Messages: chat.Encode(merged), Tools: tools, Offered: len(req.Tools)}
	}
	if _, err := provider.FormatOf(req.ResponseFormat); err != nil {
		return nil, err
	}
	head := struct {
		Model               string          `json:"model"`
		MaxTokens           int64           `json:"max_tokens,omitempty"`
		MaxCompletionTokens int64           `json:"max_completion_tokens,omitempty"`
		Temperature         *float64        `json:"temperature,omitempty"`
		TopP                *float64        `json:"top_p,omitempty"`
		FrequencyPenalty    *float64        `json:"frequency_penalty,omitempty"`
		PresencePenalty     *float64        `json:"presence_penalty,omitempty"`
		Seed                *int64          `json:"seed,omitempty"`
		Stop                []string        `json:"stop,omitempty"`
		ResponseFormat      json.RawMessage `json:"response_format,omitempty"`
		Effort              string          `json:"reasoning_effort,omitempty"`
		Stream              bool            `json:"stream,omitempty"`
		StreamOptions       *usage          `json:"stream_options,omitempty"`
		ToolChoice          any             `json:"tool_choice,omitempty"`
		ParallelToolCalls   *bool           `json:"parallel_tool_calls,omitempty"`
	}{
		Model: req.Model, Temperature: req.Temperature, TopP: req.TopP, FrequencyPenalty: req.FrequencyPenalty, PresencePenalty: req.PresencePenalty, Seed: req.Seed, Stop: req.Stop,
		ResponseFormat: req.ResponseFormat, Effort: req.Effort, Stream: !d.noStream,
	}
	if !d.noStream && !d.noStreamOptions {
		head.StreamOptions = &usage{IncludeUsage: true}
	}
	if prompt.Offered > 0 {
		head.ToolChoice = toolChoice(req.ToolChoice)
		if req.SingleCall {
			head.ParallelToolCalls = new(bool)
		}
	}
	limit := req.TokenParam
	if d.tokens != "" {
		limit = d.tokens
	}
	if limit == model.MaxCompletionTokens {
		head.MaxCompletionTokens = req.MaxTokens
	} else {
		head.MaxTokens = req.MaxTokens
	}
	rest, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	const messages, tools = `{"messages":`, `,"tools":`
	out := make([]byte, 0, len(messages)+len(prompt.Messages)+len(tools)+len(prompt.Tools)+len(rest))
	out = append(append(out, messages...), prompt.Messages...)
	if prompt.Offered > 0 {
		out = append(append(out, tools...), prompt.Tools...)
	}
	out = append(out, ',')
	return append(out, rest[1:]...), nil
}

// toolChoice returns the choice of tools in the protocol's form.
func toolChoice(choice string) any {
	if name, ok := strings.CutPrefix(choice, provider.OneTool); ok {
		return map[string]any{"type": "function", "function": map[string]string{"name": name}}
	}
	return cmp.Or(choice, provider.ToolsAuto)
}

type usage struct {
	IncludeUsage bool `json:"include_usage"`
}

// inMemory sends a body. It makes net/http write the request and its body together: the
// client hides that the body is in memory, and net/http sends the headers of any other
// body in a separate write. It also bounds the body of a refusal, which the client reads.
func inMemory(body []byte) option.RequestOption {
	return option.WithMiddleware(func(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		req.Body = io.NopCloser(bytes.NewReader(body))
		res, err := next(req)
		if err == nil && res.StatusCode != http.StatusOK {
			res.Body = struct {
				io.Reader
				io.Closer
			}{io.LimitReader(res.Body, maxRefusal), res.Body}
		}
		return res, err
	})
}

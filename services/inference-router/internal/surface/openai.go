package surface

import (
	"encoding/json"
	"slices"

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
	FrequencyPenalty    *float64        `json:"frequency_penalty"`
	PresencePenalty     *float64        `json:"presence_penalty"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`
	ResponseFormat      json.RawMessage `json:"response_format"`
	Effort              string          `json:"reasoning_effort"`
	N                   int             `json:"n"`
	User                string          `json:"user"`
	Stream              bool            `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	openAIUnsupported
}

// openAIUnsupported has the fields of features that the router does not have.
type openAIUnsupported struct {
	Logprobs         bool                       `json:"logprobs"`
	TopLogprobs      int                        `json:"top_logprobs"`
	LogitBias        map[string]json.RawMessage `json:"logit_bias"`
	Functions        []json.RawMessage          `json:"functions"`
	FunctionCall     json.RawMessage            `json:"function_call"`
	Audio            json.RawMessage            `json:"audio"`
	Modalities       []string                   `json:"modalities"`
	WebSearchOptions json.RawMessage            `json:"web_search_options"`
}

// refusal returns the error for a request that uses one of the features.
func (u openAIUnsupported) refusal() error {
	switch {
	case u.Logprobs || u.TopLogprobs > 0:
		return invalid("logprobs is not supported")
	case len(u.LogitBias) > 0:
		return invalid("logit_bias is not supported: it has the tokens of one model, and another one may answer")
	case len(u.Functions) > 0 || len(notNull(u.FunctionCall)) > 0:
		return invalid("functions and function_call are not supported: use tools and tool_choice")
	case len(notNull(u.Audio)) > 0 || slices.ContainsFunc(u.Modalities, func(m string) bool { return m != "text" }):
		return invalid("audio and modalities other than text are not supported")
	case len(notNull(u.WebSearchOptions)) > 0:
		return invalid("web_search_options is not supported: tools of the server are not executed")
	}
	return nil
}

type openAIMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Refusal    string          `json:"refusal"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []openAICall    `json:"tool_calls"`

	FunctionCall json.RawMessage `json:"function_call"` // not supported, as Audio
	Audio        json.RawMessage `json:"audio"`
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
		Strict      bool            `json:"strict"`
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
		Options: provider.Options{
			Temperature: in.Temperature, TopP: in.TopP, FrequencyPenalty: in.FrequencyPenalty, PresencePenalty: in.PresencePenalty, Seed: in.Seed, Effort: in.Effort,
		},
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
	if err := in.refusal(); err != nil {
		return out, err
	}
	if in.ParallelToolCalls != nil && !*in.ParallelToolCalls {
		out.Options.SingleCall = true
	}
	for i, m := range in.Messages {
		read, err := messageOf(m.Role, m.Content)
		if err != nil {
			return out, invalid("messages[%d]: %v", i, err)
		}
		if read.ToolCallID = m.ToolCallID; read.Content == "" {
			read.Content = m.Refusal
		}
		if len(notNull(m.FunctionCall)) > 0 || len(notNull(m.Audio)) > 0 {
			return out, invalid("messages[%d]: function_call and audio are not supported", i)
		}
		for _, c := range m.ToolCalls {
			if c.Type != "" && c.Type != "function" {
				return out, invalid("messages[%d]: a call of the type %.40q is not supported, only function is", i, c.Type)
			}
			read.ToolCalls = append(read.ToolCalls, api.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		out.Messages = append(out.Messages, read)
	}
	for i, t := range in.Tools {
		tool := api.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: notNull(t.Function.Parameters), Strict: t.Function.Strict}
		if err := addTool(&out.Tools, tool, t.Type == "function"); err != nil {
			return out, invalid("tools[%d]: %v", i, err)
		}
	}
	format, err := provider.FormatOf(in.ResponseFormat)
	if err != nil {
		return out, invalid("response_format: %v", err)
	}
	if out.Options.ResponseFormat, err = format.Encode(); err != nil {
		return out, err
	}
	if err := checkEffort(in.Effort); err != nil {
		return out, err
	}
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

// stopOf returns the stop sequences, which are a string, null or a list.
func stopOf(raw json.RawMessage) ([]string, error) {
	if len(notNull(raw)) == 0 {
		return nil, nil
	}
	if one, ok := stringOf(raw); ok {
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
	if len(notNull(raw)) == 0 {
		return "", nil
	}
	if word, ok := stringOf(raw); ok {
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

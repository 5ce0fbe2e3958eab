// Package responsestest is the server side of OpenAI's protocol of responses for tests. It
// refuses every request that the API would refuse: unknown fields, empty contents, calls
// without outputs and outputs without calls.
package responsestest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Request is a decoded request of POST /v1/responses.
type Request struct {
	Model             string          `json:"model"`
	Input             []Item          `json:"input"`
	Tools             []Tool          `json:"tools"`
	ToolChoice        json.RawMessage `json:"tool_choice"`
	ParallelToolCalls *bool           `json:"parallel_tool_calls"`
	MaxOutputTokens   *int64          `json:"max_output_tokens"`
	Temperature       *float64        `json:"temperature"`
	TopP              *float64        `json:"top_p"`
	Reasoning         *struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Text *struct {
		Format struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"schema"`
			Strict      *bool           `json:"strict"`
		} `json:"format"`
	} `json:"text"`
	Store  *bool `json:"store"`
	Stream bool  `json:"stream"`
}

// Item is an item of the input, with the fields of all supported types.
type Item struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// Part is a part of a content.
type Part struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL string `json:"image_url"`
	Detail   string `json:"detail"`
}

// Tool is a tool definition.
type Tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// word is the form of tool names and of the ids of calls.
var word = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// Decode reads and checks a request and returns it in the form of package provider. Its
// error is the message that the API would return, as far as it is documented.
func Decode(body io.Reader) (Request, provider.Request, error) {
	var r Request
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, provider.Request{}, fmt.Errorf("the request cannot be read: %w", err)
	}
	neutral := provider.Request{Model: r.Model, TokenParam: model.MaxTokens}
	neutral.Temperature, neutral.TopP = r.Temperature, r.TopP
	switch {
	case r.Model == "":
		return r, neutral, errors.New("missing required parameter: 'model'")
	case len(r.Input) == 0:
		return r, neutral, errors.New("one of 'input' or 'previous_response_id' must be provided")
	case r.Store == nil || *r.Store:
		return r, neutral, errors.New("the response must not be stored")
	case r.MaxOutputTokens != nil && *r.MaxOutputTokens < 16:
		return r, neutral, errors.New("invalid 'max_output_tokens': integer below minimum value, expected a value >= 16")
	case len(r.ToolChoice) > 0 && len(r.Tools) == 0:
		return r, neutral, errors.New("'tool_choice' is only allowed when 'tools' are specified")
	}
	if r.MaxOutputTokens != nil {
		neutral.MaxTokens = *r.MaxOutputTokens
	}
	if r.Reasoning != nil {
		neutral.Effort = r.Reasoning.Effort
	}
	if r.Text != nil {
		format, err := provider.Format(r.Text.Format).Encode()
		if err != nil {
			return r, neutral, fmt.Errorf("invalid 'text.format': %w", err)
		}
		neutral.ResponseFormat = format
	}
	for i, t := range r.Tools {
		var schema struct {
			Type       string                     `json:"type"`
			Properties map[string]json.RawMessage `json:"properties"`
		}
		if err := json.Unmarshal(t.Parameters, &schema); err != nil || schema.Type != "object" || schema.Properties == nil || t.Type != "function" || t.Strict == nil || !word.MatchString(t.Name) {
			return r, neutral, fmt.Errorf("invalid 'tools[%d]': a function with a name, parameters of type 'object' with properties, and 'strict', is required", i)
		}
		neutral.Tools = append(neutral.Tools, provider.Tool{Name: t.Name, Description: t.Description, Schema: t.Parameters})
	}
	var err error
	neutral.Messages, err = messages(r.Input)
	return r, neutral, err
}

// messages checks the items and returns them as messages. Calls belong to the message of
// the assistant before them.
func messages(items []Item) (out []provider.Message, err error) {
	open, ids := map[string]bool{}, map[string]bool{}
	last := func() *provider.Message {
		if len(out) == 0 || out[len(out)-1].Role != provider.Assistant {
			out = append(out, provider.Message{Role: provider.Assistant})
		}
		return &out[len(out)-1]
	}
	for i, item := range items {
		refuse := func(format string, args ...any) ([]provider.Message, error) {
			return nil, fmt.Errorf("invalid 'input[%d]': %s", i, fmt.Sprintf(format, args...))
		}
		if item.Type != "function_call" && item.Type != "function_call_output" && len(open) > 0 {
			return refuse("no tool output found for function call %v", open)
		}
		switch item.Type {
		case "", "message":
			m, err := item.message()
			if err != nil {
				return refuse("%v", err)
			}
			out = append(out, m)
		case "function_call":
			var object map[string]any
			if !word.MatchString(item.CallID) || ids[item.CallID] || !word.MatchString(item.Name) || json.Unmarshal([]byte(item.Arguments), &object) != nil {
				return refuse("the call %q of %q with %q is not valid", item.CallID, item.Name, item.Arguments)
			}
			m := last()
			m.ToolCalls = append(m.ToolCalls, provider.ToolCall{ID: item.CallID, Name: item.Name, Arguments: item.Arguments})
			open[item.CallID], ids[item.CallID] = true, true
		case "function_call_output":
			if !open[item.CallID] {
				return refuse("no tool call found for function call output with call_id %q", item.CallID)
			}
			delete(open, item.CallID)
			m, err := content(provider.ToolRole, item.Output)
			if err != nil {
				return refuse("%v", err)
			}
			m.ToolCallID = item.CallID
			out = append(out, m)
		default:
			return refuse("invalid type %q", item.Type)
		}
	}
	if len(open) > 0 {
		return nil, fmt.Errorf("no tool output found for function call %v", open)
	}
	return out, nil
}

// message returns the message of an item.
func (item Item) message() (provider.Message, error) {
	switch item.Role {
	case provider.System, provider.User, provider.Assistant:
	default:
		return provider.Message{}, fmt.Errorf("the role %q is not valid", item.Role)
	}
	m, err := content(item.Role, item.Content)
	if err == nil && m.Content == "" && len(m.Images) == 0 {
		return m, errors.New("the content is empty")
	}
	return m, err
}

// content returns a message with the content of an item, or with its output, which may be
// empty. Only the user and outputs may have images.
func content(role string, raw json.RawMessage) (provider.Message, error) {
	m := provider.Message{Role: role}
	if string(raw) != "null" && json.Unmarshal(raw, &m.Content) == nil {
		return m, nil
	}
	var parts []Part
	if err := json.Unmarshal(raw, &parts); err != nil || len(parts) == 0 {
		return m, errors.New("the content is neither a text nor a list of parts")
	}
	for _, p := range parts {
		switch {
		case p.Type == "input_text" && p.Text != "" && role != provider.Assistant:
			chat.Add(&m, chat.Part{Text: p.Text})
		case p.Type == "input_image" && (role == provider.User || role == provider.ToolRole) && (p.Detail == "auto" || p.Detail == "low" || p.Detail == "high"):
			picture, err := chat.ImageOf(p.ImageURL)
			if err != nil {
				return m, err
			}
			if p.Detail != "auto" {
				picture.Detail = p.Detail
			}
			chat.Add(&m, chat.Part{Image: &picture})
		default:
			return m, fmt.Errorf("a part %+v is not valid for the role %s", p, role)
		}
	}
	return m, chat.CheckImages([]provider.Message{m})
}

package stricttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// Request is a chat completion request: the fields of OpenAI's documentation of POST
// /v1/chat/completions that the suite needs. A request with another field is refused.
type Request struct {
	Model         string    `json:"model"`
	Messages      []Message `json:"messages"`
	Tools         []Tool    `json:"tools"`
	ToolChoice    any       `json:"tool_choice"`
	Stream        bool      `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           *int64   `json:"max_tokens"`
	MaxCompletionTokens *int64   `json:"max_completion_tokens"`
	Temperature         *float64 `json:"temperature"`
	Seed                *int64   `json:"seed"`
}

// Message is one message of a request.
type Message struct {
	Role       string  `json:"role"`
	Content    *string `json:"content"`
	ToolCalls  []Call  `json:"tool_calls"`
	ToolCallID string  `json:"tool_call_id"`
}

// Call is a tool call in a request.
type Call struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Tool is a tool definition.
type Tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// fault is the reason why a request is refused, with the wrong parameter.
type fault struct{ param, message string }

func (f *fault) Error() string { return f.message }

func wrong(param, format string, args ...any) error {
	return &fault{param, fmt.Sprintf(format, args...)}
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// decode decodes a request and returns an error if the protocol does not allow it.
func decode(r io.Reader) (Request, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return Request{}, wrong("", "the body cannot be read")
	}
	var req Request
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		return req, wrong("", "the body is not a request: %s", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return req, wrong("", "something follows the request")
	}
	return req, check(req)
}

func check(req Request) error {
	switch {
	case req.Model == "":
		return wrong("model", "you must provide a model parameter")
	case len(req.Messages) == 0:
		return wrong("messages", "[] is too short - 'messages'")
	case req.MaxTokens != nil && req.MaxCompletionTokens != nil:
		return wrong("max_tokens", "max_tokens and max_completion_tokens cannot both be set")
	case req.MaxTokens != nil && *req.MaxTokens < 1, req.MaxCompletionTokens != nil && *req.MaxCompletionTokens < 1:
		return wrong("max_tokens", "the output limit must be at least 1")
	case req.StreamOptions != nil && !req.Stream:
		return wrong("stream_options", "the 'stream_options' parameter is only allowed when 'stream' is enabled")
	case req.ToolChoice != nil && len(req.Tools) == 0:
		return wrong("tool_choice", "'tool_choice' is only allowed when 'tools' are specified")
	}
	if err := checkTools(req.Tools); err != nil {
		return err
	}
	return checkMessages(req.Messages)
}

func checkTools(tools []Tool) error {
	seen := map[string]bool{}
	for i, t := range tools {
		at := fmt.Sprintf("tools[%d].function", i)
		switch {
		case t.Type != "function":
			return wrong(at, "tools[%d].type is %q, not 'function'", i, t.Type)
		case !validName.MatchString(t.Function.Name):
			return wrong(at+".name", "invalid '%s.name': %.80q does not match '^[a-zA-Z0-9_-]{1,64}$'", at, t.Function.Name)
		case seen[t.Function.Name]:
			return wrong(at+".name", "tool names must be unique: %s", t.Function.Name)
		}
		seen[t.Function.Name] = true
		if len(t.Function.Parameters) == 0 {
			continue
		}
		var schema struct {
			Type       string                     `json:"type"`
			Properties map[string]json.RawMessage `json:"properties"`
			Required   []string                   `json:"required"`
		}
		if err := json.Unmarshal(t.Function.Parameters, &schema); err != nil || schema.Type != "object" {
			return wrong(at+".parameters", "invalid schema for function '%s': it must be a JSON Schema of type 'object'", t.Function.Name)
		}
		for _, name := range schema.Required {
			if _, ok := schema.Properties[name]; !ok {
				return wrong(at+".parameters", "invalid schema for function '%s': required %q is no property", t.Function.Name, name)
			}
		}
	}
	return nil
}

// checkMessages checks roles, contents and the pairing of calls with results.
func checkMessages(messages []Message) error {
	var open []string // calls of the last assistant message without a result
	talked := false   // a message of another role than system was seen
	for i, m := range messages {
		at := fmt.Sprintf("messages[%d]", i)
		if m.Role != "tool" && len(open) > 0 {
			return wrong(at, "an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'; without response: %v", open)
		}
		if m.Role != "assistant" && m.ToolCalls != nil || m.Role != "tool" && m.ToolCallID != "" {
			return wrong(at, "%s: role %s cannot have calls or be a result", at, m.Role)
		}
		var err error
		switch m.Role {
		case "system":
			if talked {
				err = wrong(at+".role", "%s: a system message must be at the beginning", at)
			} else if empty(m) {
				err = wrong(at+".content", "%s: empty content", at)
			}
		case "user":
			if empty(m) {
				err = wrong(at+".content", "%s: empty content", at)
			}
		case "assistant":
			open, err = checkCalls(at, m)
		case "tool":
			open, err = answered(at, open, m)
		default:
			err = wrong(at+".role", "invalid value: %q; supported values are 'system', 'assistant', 'user', and 'tool'", m.Role)
		}
		if err != nil {
			return err
		}
		talked = talked || m.Role != "system"
	}
	if len(open) > 0 {
		return wrong("messages", "tool calls without response: %v", open)
	}
	if !talked {
		return wrong("messages", "there is no message but the system's")
	}
	return nil
}

func empty(m Message) bool { return m.Content == nil || *m.Content == "" }

func checkCalls(at string, m Message) ([]string, error) {
	if empty(m) && len(m.ToolCalls) == 0 {
		return nil, wrong(at+".content", "%s: an assistant message needs content or tool calls", at)
	}
	if m.Content != nil && *m.Content == "" {
		return nil, wrong(at+".content", "%s: content is empty; leave it out", at)
	}
	var ids []string
	seen := map[string]bool{}
	for j, c := range m.ToolCalls {
		in := fmt.Sprintf("%s.tool_calls[%d]", at, j)
		var object map[string]json.RawMessage
		switch {
		case c.ID == "" || seen[c.ID]:
			return nil, wrong(in+".id", "%s.id %q is empty or used twice", in, c.ID)
		case c.Type != "function":
			return nil, wrong(in+".type", "%s.type is %q", in, c.Type)
		case !validName.MatchString(c.Function.Name):
			return nil, wrong(in+".function.name", "invalid '%s.function.name': %.80q does not match '^[a-zA-Z0-9_-]{1,64}$'", in, c.Function.Name)
		case json.Unmarshal([]byte(c.Function.Arguments), &object) != nil || object == nil:
			return nil, wrong(in+".function.arguments", "%s.function.arguments must be a JSON object, not %.60q", in, c.Function.Arguments)
		}
		seen[c.ID] = true
		ids = append(ids, c.ID)
	}
	return ids, nil
}

// answered removes the call that a result answers from the open calls.
func answered(at string, open []string, m Message) ([]string, error) {
	if m.Content == nil {
		return nil, wrong(at+".content", "%s: a result needs content", at)
	}
	for i, id := range open {
		if id == m.ToolCallID {
			return append(open[:i:i], open[i+1:]...), nil
		}
	}
	return nil, wrong(at, "messages with role 'tool' must be a response to a preceding message with 'tool_calls': %q", m.ToolCallID)
}

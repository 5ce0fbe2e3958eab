// Package openaitest is the server side of OpenAI's chat-completions protocol, for tests:
// it decodes requests and writes answers, whole or as server-sent events. It must not
// decide about a request beyond whether it can be read.
package openaitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Request is the body of POST /v1/chat/completions with the supported fields. Other
// fields are ignored, as OpenAI's servers ignore the fields of newer clients.
type Request struct {
	Model         string          `json:"model"`
	Messages      []Message       `json:"messages"`
	Tools         []Tool          `json:"tools,omitempty"`
	ToolChoice    json.RawMessage `json:"tool_choice,omitempty"`
	Stream        bool            `json:"stream,omitempty"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage,omitempty"`
	} `json:"stream_options,omitzero"`
	MaxTokens           *int64   `json:"max_tokens,omitempty"`
	MaxCompletionTokens *int64   `json:"max_completion_tokens,omitempty"`
	Temperature         *float64 `json:"temperature,omitempty"`
	Seed                *int64   `json:"seed,omitempty"`
}

// maxBody is the largest request that is read, in bytes.
const maxBody = 32 << 20

// Decode reads one request. Errors are suitable for an answer to the client.
func Decode(r io.Reader) (Request, error) {
	var req Request
	err := json.NewDecoder(io.LimitReader(r, maxBody)).Decode(&req)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Request{}, fmt.Errorf("the body ends in the middle or is larger than %d bytes", maxBody)
	case err != nil:
		return Request{}, fmt.Errorf("the body is not a chat completion request: %w", err)
	}
	if err := req.check(); err != nil {
		return Request{}, err
	}
	return req, nil
}

// Message is one message of a request or the message of an answer.
type Message struct {
	Role       string     `json:"role"`
	Content    Content    `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// Content is a message's text. It is decoded from a string, from null, and from a list of
// text parts, which are joined; any other part is an error.
type Content string

// UnmarshalJSON decodes the three forms.
func (c *Content) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '[' {
		var text *string
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		*c = ""
		if text != nil {
			*c = Content(*text)
		}
		return nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	var text []byte
	for i, p := range parts {
		if p.Type != "text" {
			return fmt.Errorf("content part %d has type %q; only text is supported", i, p.Type)
		}
		text = append(text, p.Text...)
	}
	*c = Content(text)
	return nil
}

// ToolCall is a tool call, or in a stream a part of one. Index is present only in
// streams.
type ToolCall struct {
	Index    *int   `json:"index,omitempty"`
	ID       string `json:"id,omitempty"`
	Type     string `json:"type,omitempty"`
	Function struct {
		Name      string `json:"name,omitempty"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Tool is a tool definition.
type Tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	} `json:"function"`
}

// check returns an error for a decoded request that is invalid.
func (r Request) check() error {
	if r.Model == "" {
		return errors.New("model is missing")
	}
	for i, t := range r.Tools {
		if t.Type != "function" || t.Function.Name == "" {
			return fmt.Errorf("tools[%d] is not a function with a name", i)
		}
	}
	return nil
}

// Limit returns the requested output limit, 0 for none.
func (r Request) Limit() int64 {
	switch {
	case r.MaxCompletionTokens != nil:
		return *r.MaxCompletionTokens
	case r.MaxTokens != nil:
		return *r.MaxTokens
	}
	return 0
}

// Neutral converts the request to the form of package provider.
func (r Request) Neutral() provider.Request {
	n := provider.Request{
		Model: r.Model, MaxTokens: r.Limit(), TokenParam: model.MaxTokens,
		Temperature: r.Temperature, Seed: r.Seed,
	}
	if r.MaxCompletionTokens != nil {
		n.TokenParam = model.MaxCompletionTokens
	}
	if len(r.Messages) > 0 {
		n.Messages = make([]provider.Message, 0, len(r.Messages))
	}
	for _, m := range r.Messages {
		role := m.Role
		if role == "developer" { // OpenAI's newer name of the role
			role = provider.System
		}
		msg := provider.Message{Role: role, Content: string(m.Content), ToolCallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			msg.ToolCalls = append(msg.ToolCalls, provider.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
		n.Messages = append(n.Messages, msg)
	}
	if len(r.Tools) > 0 {
		n.Tools = make([]provider.Tool, 0, len(r.Tools))
	}
	for _, t := range r.Tools {
		n.Tools = append(n.Tools, provider.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: t.Function.Parameters})
	}
	return n
}

// Package chat encodes prompts as JSON, in the form of the messages and tools of
// OpenAI's chat completions. A prompt is normalised and encoded once; the same bytes
// are hashed, stored and sent to the provider. [Check] checks whether the bytes are a
// normal prompt, without decoding them.
//
// It must not do I/O and must not contain rules for a single provider.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// The roles of messages.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
	ToolRole  = "tool"
)

// Encode returns the JSON of messages in the only form that [Check] accepts, unless they
// have images. It replaces invalid UTF-8 by U+FFFD.
func Encode(messages []api.ChatMessage) []byte {
	n := 2
	for _, m := range messages {
		n += len(m.Content) + len(m.Content)/16 + 64
		for _, c := range m.ToolCalls {
			n += len(c.Arguments) + len(c.Arguments)/4 + 128
		}
	}
	out := append(make([]byte, 0, n), '[')
	for i, m := range messages {
		if i > 0 {
			out = append(out, ',')
		}
		out = text(append(out, `{"role":`...), m.Role)
		if len(m.Images) > 0 {
			out = parts(append(out, `,"content":[`...), m)
		} else if m.Content != "" || len(m.ToolCalls) == 0 { // some servers refuse an empty text beside calls
			out = text(append(out, `,"content":`...), m.Content)
		}
		for k, c := range m.ToolCalls {
			if k == 0 {
				out = append(out, `,"tool_calls":[`...)
			} else {
				out = append(out, ',')
			}
			out = text(append(out, `{"id":`...), c.ID)
			out = text(append(out, `,"type":"function","function":{"name":`...), c.Name)
			out = append(text(append(out, `,"arguments":`...), c.Arguments), `}}`...)
		}
		if len(m.ToolCalls) > 0 {
			out = append(out, ']')
		}
		if m.ToolCallID != "" {
			out = text(append(out, `,"tool_call_id":`...), m.ToolCallID)
		}
		out = append(out, '}')
	}
	return append(out, ']')
}

// parts appends the texts and images of a message and the end of their list.
func parts(out []byte, m api.ChatMessage) []byte {
	for i, p := range Parts(m) {
		if i > 0 {
			out = append(out, ',')
		}
		if p.Image == nil {
			out = append(text(append(out, `{"type":"text","text":`...), p.Text), '}')
			continue
		}
		out = text(append(out, `{"type":"image_url","image_url":{"url":`...), Address(*p.Image))
		if p.Image.Detail != "" {
			out = text(append(out, `,"detail":`...), p.Image.Detail)
		}
		out = append(out, `}}`...)
	}
	return append(out, ']')
}

// EncodeTools returns the JSON of the tools that are offered to a model. It does not
// change their schemas. It returns an error for a schema that is not JSON.
func EncodeTools(tools []api.Tool) ([]byte, error) {
	out := []byte{'['}
	for i, t := range tools {
		if i > 0 {
			out = append(out, ',')
		}
		out = text(append(out, `{"type":"function","function":{"name":`...), t.Name)
		if t.Description != "" {
			out = text(append(out, `,"description":`...), t.Description)
		}
		if len(t.Schema) > 0 {
			if !json.Valid(t.Schema) {
				return nil, fmt.Errorf("the schema of tool %s is not JSON", t.Name)
			}
			out = append(append(out, `,"parameters":`...), t.Schema...)
		}
		if t.Strict {
			out = append(out, `,"strict":true`...)
		}
		out = append(out, `}}`...)
	}
	return append(out, ']'), nil
}

const hex = "0123456789abcdef"

// text appends s to out as a JSON string.
func text(out []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	out = append(out, '"')
	for {
		i := 0
		for i < len(s) && kinds[s[i]]&1 == 1 { // letters, space and wide are odd
			i++
		}
		out = append(out, s[:i]...)
		if i == len(s) {
			return append(out, '"')
		}
		c := s[i]
		s = s[i+1:]
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
}

// message is a message in any JSON of the protocol, normal or not.
type message struct {
	Role       string  `json:"role"`
	Content    content `json:"content"`
	ToolCallID string  `json:"tool_call_id"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// content is a text, or a list of texts and images.
type content struct{ api.ChatMessage }

// UnmarshalJSON implements [json.Unmarshaler].
func (c *content) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '[' {
		return json.Unmarshal(data, &c.Content)
	}
	var all []struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Image struct {
			URL    string `json:"url"`
			Detail string `json:"detail"`
		} `json:"image_url"`
	}
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("a content has no parts")
	}
	var b Builder
	for _, p := range all {
		switch p.Type {
		case "text":
			b.Add(Part{Text: p.Text})
		case "image_url":
			picture, err := ImageOf(p.Image.URL)
			if err != nil {
				return err
			}
			picture.Detail = p.Image.Detail
			b.Add(Part{Image: &picture})
		default:
			return fmt.Errorf("a part of type %.40q is not supported", p.Type)
		}
	}
	b.Fill(&c.ChatMessage)
	return nil
}

// Decode returns the messages of a prompt, normal or not. A content is a string or a list
// of texts and images. It does not check the images; see [CheckImages].
func Decode(messages []byte) ([]api.ChatMessage, error) {
	var all []message
	if err := json.Unmarshal(messages, &all); err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	out := make([]api.ChatMessage, len(all))
	for i, m := range all {
		out[i] = api.ChatMessage{Role: m.Role, Content: m.Content.Content, Images: m.Content.Images, ToolCallID: m.ToolCallID}
		for _, c := range m.ToolCalls {
			out[i].ToolCalls = append(out[i].ToolCalls, api.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
	}
	return out, nil
}

// DecodeTools returns the tools of a prompt.
func DecodeTools(tools []byte) ([]api.Tool, error) {
	var all []struct {
		Function struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
			Strict      bool            `json:"strict"`
		} `json:"function"`
	}
	if err := json.Unmarshal(tools, &all); err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	out := make([]api.Tool, len(all))
	for i, t := range all {
		out[i] = api.Tool{Name: t.Function.Name, Description: t.Function.Description, Schema: t.Function.Parameters, Strict: t.Function.Strict}
	}
	return out, nil
}

// Tokens returns an estimate of the number of tokens of a text: a quarter of its ASCII
// bytes plus half of all other bytes, rounded up.
func Tokens[T string | []byte](text T) int64 {
	quarters := int64(len(text))
	for i := range len(text) {
		quarters += int64(text[i] >> 7) // 1 if it is not ASCII
	}
	return (quarters + 3) / 4
}

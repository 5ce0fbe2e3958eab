// Package anthropictest is the server side of Anthropic's Messages API for tests. It
// refuses every request that the API would refuse: unknown fields, roles that do not
// alternate, blank texts, calls without results and results without calls.
package anthropictest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Request is a decoded request of POST /v1/messages.
type Request struct {
	Model      string          `json:"model"`
	MaxTokens  int64           `json:"max_tokens"`
	System     []Block         `json:"system"`
	Messages   []Message       `json:"messages"`
	Tools      []Tool          `json:"tools"`
	ToolChoice json.RawMessage `json:"tool_choice"`

	Temperature *float64 `json:"temperature"`
	TopP        *float64 `json:"top_p"`
	TopK        *int64   `json:"top_k"`
	Stop        []string `json:"stop_sequences"`
	Stream      bool     `json:"stream"`
	Output      *struct {
		Effort string `json:"effort"`
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

// Message is one message of a [Request].
type Message struct {
	Role    string  `json:"role"`
	Content []Block `json:"content"`
}

// Block is a content block with the fields of all supported types.
type Block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	Source    *Source         `json:"source"`
	Cache     *Cache          `json:"cache_control"`
}

// Source is the source of an image.
type Source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      []byte `json:"data"`
	URL       string `json:"url"`
}

// check checks the source of an image.
func (s *Source) check() error {
	switch {
	case s == nil:
		return fmt.Errorf("source: field required")
	case s.Type == "base64" && len(s.Data) > 0 && s.URL == "" && s.MediaType == http.DetectContentType(s.Data):
		return nil
	case s.Type == "url" && strings.HasPrefix(s.URL, "https://") && s.MediaType == "" && len(s.Data) == 0:
		return nil
	}
	return fmt.Errorf("source: %q is not the source of an image", s.Type)
}

func (s *Source) image() *api.Image {
	return &api.Image{MediaType: s.MediaType, Data: s.Data, URL: s.URL}
}

// Cache marks the end of a cached part of the prompt.
type Cache struct {
	Type string `json:"type"`
}

// Tool is a tool definition.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Strict      bool            `json:"strict"`
	Cache       *Cache          `json:"cache_control"`
}

// word is the form of tool names and of the ids of calls.
var word = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// maxCacheMarks is the most cache marks that a request may have.
const maxCacheMarks = 4

// Decode reads and checks a request. Its error is the message that the API would return,
// as far as it is documented.
func Decode(body io.Reader) (Request, error) {
	var r Request
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("the request cannot be read: %w", err)
	}
	return r, r.check()
}

func (r Request) check() error {
	switch {
	case r.Model == "":
		return fmt.Errorf("model: field required")
	case r.MaxTokens < 1:
		return fmt.Errorf("max_tokens: at least 1 is required")
	case len(r.Messages) == 0:
		return fmt.Errorf("messages: at least one message is required")
	case r.Messages[0].Role != "user":
		return fmt.Errorf("messages: first message must use the user role")
	}
	if t := r.Temperature; t != nil && (*t < 0 || *t > 1) {
		return fmt.Errorf("temperature: must be between 0 and 1")
	}
	if r.Temperature != nil && r.TopP != nil {
		return fmt.Errorf("`temperature` and `top_p` cannot both be specified for this model")
	}
	if slices.ContainsFunc(r.Stop, func(s string) bool { return strings.TrimSpace(s) == "" }) {
		return fmt.Errorf("stop_sequences: each stop sequence must contain non-whitespace")
	}
	if o := r.Output; o != nil && !slices.Contains([]string{"", "low", "medium", "high", "xhigh", "max"}, o.Effort) {
		return fmt.Errorf("output_config.effort: %q is none of low, medium, high, xhigh, max", o.Effort)
	}
	if r.Output != nil && r.Output.Format != nil && (r.Output.Format.Type != provider.FormatSchema || !strings.HasPrefix(string(r.Output.Format.Schema), "{")) {
		return fmt.Errorf("output_config.format: a schema is required")
	}
	if r.Output != nil && r.Output.Format != nil && hasOpen(r.Output.Format.Schema) {
		return fmt.Errorf("output_config.format.schema: for 'object' type, 'additionalProperties' must be explicitly set to false")
	}
	marks := 0
	mark := func(c *Cache) {
		if c != nil {
			marks++
		}
	}
	for i, b := range r.System {
		mark(b.Cache)
		if b.Type != "text" || strings.TrimSpace(b.Text) == "" {
			return fmt.Errorf("system.%d: text content blocks must be non-empty", i)
		}
	}
	names := map[string]bool{}
	for i, t := range r.Tools {
		mark(t.Cache)
		var schema struct {
			Type string `json:"type"`
		}
		switch err := json.Unmarshal(t.InputSchema, &schema); {
		case !word.MatchString(t.Name) || names[t.Name]:
			return fmt.Errorf("tools.%d.name: %q is not valid or not unique", i, t.Name)
		case err != nil || schema.Type != "object":
			return fmt.Errorf("tools.%d.input_schema: an object schema is required", i)
		}
		names[t.Name] = true
	}
	if len(r.ToolChoice) > 0 && len(r.Tools) == 0 {
		return fmt.Errorf("tool_choice: requires tools")
	}
	ids := map[string]bool{}
	var open []string // calls of the previous message
	for i, m := range r.Messages {
		if i > 0 && m.Role == r.Messages[i-1].Role {
			return fmt.Errorf("messages.%d: roles must alternate between user and assistant", i)
		}
		for _, b := range m.Content {
			mark(b.Cache)
		}
		var err error
		if open, err = m.check(ids, open); err != nil {
			return fmt.Errorf("messages.%d: %w", i, err)
		}
	}
	if last := r.Messages[len(r.Messages)-1]; last.Role != "user" {
		return fmt.Errorf("messages: this model does not support a prefilled answer")
	}
	if marks > maxCacheMarks {
		return fmt.Errorf("a maximum of %d blocks with cache_control may be provided, found %d", maxCacheMarks, marks)
	}
	if len(ids) > 0 && len(r.Tools) == 0 {
		return fmt.Errorf("requests which include tool_use or tool_result blocks must define tools")
	}
	return nil
}

// hasOpen reports whether JSON has a schema of an object that does not forbid further
// properties.
func hasOpen(data json.RawMessage) bool {
	var all []json.RawMessage
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &all) != nil && json.Unmarshal(data, &fields) == nil {
		if string(fields["type"]) == `"object"` && string(fields["additionalProperties"]) != "false" {
			return true
		}
		all = slices.Collect(maps.Values(fields))
	}
	return slices.ContainsFunc(all, hasOpen)
}

// check checks a message that follows a message with the calls open, and returns its own
// calls. ids are the calls of all messages so far.
func (m Message) check(ids map[string]bool, open []string) (calls []string, err error) {
	if len(m.Content) == 0 {
		return nil, fmt.Errorf("content must not be empty")
	}
	results := map[string]bool{}
	others := false
	for i, b := range m.Content {
		switch {
		case b.Type == "text" && strings.TrimSpace(b.Text) == "":
			return nil, fmt.Errorf("content.%d: text content blocks must be non-empty", i)
		case b.Type == "text":
			others = true
		case b.Type == "image" && m.Role == "user":
			others = true
			if err := b.Source.check(); err != nil {
				return nil, fmt.Errorf("content.%d: %w", i, err)
			}
		case b.Type == "tool_use" && m.Role == "assistant":
			if !word.MatchString(b.ID) || ids[b.ID] {
				return nil, fmt.Errorf("content.%d: tool_use id %q is not valid or not unique", i, b.ID)
			}
			if !word.MatchString(b.Name) {
				return nil, fmt.Errorf("content.%d: tool_use name %q is not valid", i, b.Name)
			}
			if input := bytes.TrimSpace(b.Input); len(input) == 0 || input[0] != '{' {
				return nil, fmt.Errorf("content.%d: tool_use input must be a dictionary", i)
			}
			ids[b.ID] = true
			calls = append(calls, b.ID)
		case b.Type == "tool_result" && m.Role == "user":
			if others {
				return nil, fmt.Errorf("content.%d: tool_result blocks must come first", i)
			}
			if _, err := b.result(); err != nil {
				return nil, fmt.Errorf("content.%d: %w", i, err)
			}
			results[b.ToolUseID] = true
		default:
			return nil, fmt.Errorf("content.%d: a block of type %q is not allowed for the role %q", i, b.Type, m.Role)
		}
	}
	for _, id := range open {
		if !results[id] {
			return nil, fmt.Errorf("tool_use id %q was found without a tool_result block immediately after", id)
		}
		delete(results, id)
	}
	for id := range results {
		return nil, fmt.Errorf("tool_result has an unexpected tool_use_id %q", id)
	}
	return calls, nil
}

// result returns the message of a tool_result. Its content is missing, a text, or a list of
// blocks of text and images.
func (b Block) result() (provider.Message, error) {
	out := provider.Message{Role: provider.ToolRole, ToolCallID: b.ToolUseID}
	if len(b.Content) == 0 || json.Unmarshal(b.Content, &out.Content) == nil {
		return out, nil
	}
	var parts []Block
	d := json.NewDecoder(bytes.NewReader(b.Content))
	d.DisallowUnknownFields()
	if err := d.Decode(&parts); err != nil {
		return out, fmt.Errorf("tool_result: %w", err)
	}
	for i, p := range parts {
		switch {
		case p.Type == "text" && strings.TrimSpace(p.Text) != "":
			chat.Add(&out, chat.Part{Text: p.Text})
		case p.Type == "image":
			if err := p.Source.check(); err != nil {
				return out, fmt.Errorf("content.%d: %w", i, err)
			}
			chat.Add(&out, chat.Part{Image: p.Source.image()})
		default:
			return out, fmt.Errorf("content.%d: a block of type %q is not allowed here, or its text is empty", i, p.Type)
		}
	}
	return out, nil
}

// Neutral returns the request in the form of package provider. Results and texts of one
// message are separate messages.
func (r Request) Neutral() provider.Request {
	out := provider.Request{Model: r.Model, MaxTokens: r.MaxTokens, TokenParam: model.MaxTokens}
	out.Temperature, out.TopP, out.Stop = r.Temperature, r.TopP, r.Stop
	if r.Output != nil {
		out.Effort = r.Output.Effort
	}
	if r.Output != nil && r.Output.Format != nil { // the protocol has no name for the schema
		out.ResponseFormat, _ = provider.Format{Type: r.Output.Format.Type, Name: "answer", Schema: r.Output.Format.Schema}.Encode()
	}
	for _, b := range r.System {
		out.Messages = append(out.Messages, provider.Message{Role: provider.System, Content: b.Text})
	}
	for _, m := range r.Messages {
		own := provider.Message{Role: m.Role}
		spoken := false
		for _, b := range m.Content {
			switch b.Type {
			case "text":
				chat.Add(&own, chat.Part{Text: b.Text})
				spoken = true
			case "image":
				chat.Add(&own, chat.Part{Image: b.Source.image()})
				spoken = true
			case "tool_use":
				own.ToolCalls, spoken = append(own.ToolCalls, provider.ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)}), true
			case "tool_result":
				result, _ := b.result() // it was checked
				out.Messages = append(out.Messages, result)
			}
		}
		if spoken {
			out.Messages = append(out.Messages, own)
		}
	}
	for _, t := range r.Tools {
		out.Tools = append(out.Tools, provider.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema})
	}
	return out
}

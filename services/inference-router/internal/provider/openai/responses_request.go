package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// The request of the protocol of responses.
type (
	responseRequest struct {
		Model             string          `json:"model"`
		Input             []any           `json:"input"` // of responseMessage, responseCall and responseOutput
		Tools             []responseTool  `json:"tools,omitempty"`
		ToolChoice        any             `json:"tool_choice,omitempty"`
		ParallelToolCalls *bool           `json:"parallel_tool_calls,omitempty"`
		MaxOutputTokens   int64           `json:"max_output_tokens,omitempty"`
		Temperature       *float64        `json:"temperature,omitempty"`
		TopP              *float64        `json:"top_p,omitempty"`
		Reasoning         *responseEffort `json:"reasoning,omitempty"`
		Text              *responseText   `json:"text,omitempty"`
		Store             bool            `json:"store"`
		Stream            bool            `json:"stream,omitempty"`
	}
	responseMessage struct {
		Role    string `json:"role"`
		Content any    `json:"content"` // a string, or a list of responsePart
	}
	responsePart struct {
		Type     string `json:"type"`
		Text     string `json:"text,omitempty"`
		ImageURL string `json:"image_url,omitempty"`
		Detail   string `json:"detail,omitempty"` // of an image; required
	}
	responseCall struct {
		Type      string `json:"type"`
		CallID    string `json:"call_id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	}
	responseOutput struct {
		Type   string `json:"type"`
		CallID string `json:"call_id"`
		Output any    `json:"output"` // as the content of a message
	}
	responseTool struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      bool            `json:"strict"`
	}
	responseEffort struct {
		Effort string `json:"effort"`
	}
	responseText struct {
		Format responseFormat `json:"format"`
	}
	responseFormat struct {
		Type        string          `json:"type"`
		Name        string          `json:"name,omitempty"`
		Description string          `json:"description,omitempty"`
		Schema      json.RawMessage `json:"schema,omitempty"`
		Strict      *bool           `json:"strict,omitempty"`
	}
)

// responseBody encodes the request in the protocol of responses. Its prompt is decoded:
// the items of this protocol differ from the messages of the encoded prompt.
func responseBody(req provider.Request, d dialect) ([]byte, error) {
	req, err := req.Decode()
	if err != nil {
		return nil, err
	}
	if d.noTools {
		req.Messages, req.Tools = plain(req.Messages), nil
	}
	merged, err := chat.Merge(req.Messages)
	if err != nil {
		return nil, err
	}
	out := responseRequest{
		Model: req.Model, MaxOutputTokens: outputLimit(req.MaxTokens), Temperature: req.Temperature, TopP: req.TopP, Stream: !d.noStream,
	}
	for _, m := range merged {
		out.Input = append(out.Input, responseItems(m)...)
	}
	for _, t := range req.Tools {
		schema := t.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		out.Tools = append(out.Tools, responseTool{Type: "function", Name: t.Name, Description: t.Description, Parameters: schema, Strict: t.Strict})
	}
	if len(out.Tools) > 0 {
		out.ToolChoice = responseChoice(req.ToolChoice)
		if req.SingleCall {
			out.ParallelToolCalls = new(bool)
		}
	}
	if req.Effort != "" {
		out.Reasoning = &responseEffort{req.Effort}
	}
	format, err := provider.FormatOf(req.ResponseFormat)
	if err != nil {
		return nil, err
	}
	if format.Type != provider.FormatText {
		out.Text = &responseText{responseFormat(format)}
	}
	data, err := api.Encode(out)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	return data, nil
}

// minOutputTokens is the lowest output limit that OpenAI takes in this protocol.
const minOutputTokens = 16

// outputLimit returns the limit to send, 0 for none.
func outputLimit(asked int64) int64 {
	if asked <= 0 {
		return 0
	}
	return max(asked, minOutputTokens)
}

// responseItems returns the items of a message. Calls are items of their own, after the
// text of their message.
func responseItems(m provider.Message) []any {
	var content any = m.Content
	if len(m.Images) > 0 {
		content = responseParts(m)
	}
	if m.Role == provider.ToolRole {
		return []any{responseOutput{Type: "function_call_output", CallID: m.ToolCallID, Output: content}}
	}
	var items []any
	if m.Content != "" || len(m.Images) > 0 || len(m.ToolCalls) == 0 {
		items = append(items, responseMessage{Role: m.Role, Content: content})
	}
	for _, c := range m.ToolCalls {
		items = append(items, responseCall{Type: "function_call", CallID: c.ID, Name: c.Name, Arguments: c.Arguments})
	}
	return items
}

// responseParts returns the texts and images of a message.
func responseParts(m provider.Message) (parts []responsePart) {
	for _, p := range chat.Parts(m) {
		if p.Image == nil {
			parts = append(parts, responsePart{Type: "input_text", Text: p.Text})
			continue
		}
		parts = append(parts, responsePart{Type: "input_image", ImageURL: chat.Address(*p.Image), Detail: cmp.Or(p.Image.Detail, "auto")})
	}
	return parts
}

// responseChoice returns the choice of tools in the protocol's form.
func responseChoice(choice string) any {
	if name, ok := strings.CutPrefix(choice, provider.OneTool); ok {
		return map[string]string{"type": "function", "name": name}
	}
	return cmp.Or(choice, provider.ToolsAuto)
}

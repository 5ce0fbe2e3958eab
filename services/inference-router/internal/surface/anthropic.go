package surface

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Anthropic is the protocol of POST /v1/messages.
type Anthropic struct{}

// anthropicRequest has the fields of a request that the router understands.
type anthropicRequest struct {
	Model      string          `json:"model"`
	MaxTokens  int64           `json:"max_tokens"`
	System     json.RawMessage `json:"system"`
	Messages   []anthropicTurn `json:"messages"`
	Tools      []anthropicTool `json:"tools"`
	ToolChoice *struct {
		Type   string `json:"type"`
		Name   string `json:"name"`
		Single bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
	Temperature *float64 `json:"temperature"`
	TopP        *float64 `json:"top_p"`
	TopK        *int64   `json:"top_k"`
	Stop        []string `json:"stop_sequences"`
	Output      struct {
		Effort string `json:"effort"`
		Format *struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
	Thinking struct {
		Type   string `json:"type"`
		Budget int64  `json:"budget_tokens"`
	} `json:"thinking"`
	Metadata struct {
		UserID string `json:"user_id"`
	} `json:"metadata"`
	Container  json.RawMessage   `json:"container"`
	MCPServers []json.RawMessage `json:"mcp_servers"`
	Stream     bool              `json:"stream"`
}

type anthropicTurn struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type anthropicTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
	Strict      bool            `json:"strict"`
}

// anthropicBlock is a content block, in requests and in answers.
type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	ToolUseID string          `json:"tool_use_id,omitempty"`
	Content   json.RawMessage `json:"content,omitempty"`
	IsError   bool            `json:"is_error,omitempty"`
	Source    *struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type"`
		Data      string `json:"data"`
		URL       string `json:"url"`
	} `json:"source,omitempty"` // of an image
}

// Read implements [Dialect].
func (Anthropic) Read(body []byte) (Request, error) {
	var in anthropicRequest
	if err := decode(body, &in); err != nil {
		return Request{}, err
	}
	if in.Model != "" && in.MaxTokens < 1 {
		return Request{}, invalid("max_tokens: at least 1 is required")
	}
	return in.request()
}

// ReadCount is Read for a request whose tokens are counted. It needs no output limit, and
// one that it has is not read.
func (Anthropic) ReadCount(body []byte) (Request, error) {
	var in anthropicRequest
	if err := decode(body, &in); err != nil {
		return Request{}, err
	}
	in.MaxTokens = 0
	return in.request()
}

// request returns the request in the neutral form.
func (in anthropicRequest) request() (Request, error) {
	out := Request{
		Model: in.Model, MaxTokens: in.MaxTokens, User: in.Metadata.UserID, Stream: in.Stream,
		Options: provider.Options{Temperature: in.Temperature, TopP: in.TopP, TopK: in.TopK, Stop: in.Stop, Effort: in.effort()},
	}
	if err := checkEffort(in.Output.Effort); err != nil {
		return out, err
	}
	if f := in.Output.Format; f != nil { // the protocol has no name for the schema
		var err error
		strict := true
		if out.Options.ResponseFormat, err = (provider.Format{Type: f.Type, Name: "answer", Schema: f.Schema, Strict: &strict}).Encode(); err != nil {
			return out, invalid("output_config.format: %v", err)
		}
	}
	switch {
	case in.Model == "":
		return out, invalid("model: field required")
	case len(in.Messages) == 0:
		return out, invalid("messages: at least one message is required")
	case len(in.MCPServers) > 0 || len(notNull(in.Container)) > 0:
		return out, invalid("mcp_servers and container are not supported: tools of the server are not executed")
	}
	blocks, err := blocksOf(in.System)
	if err != nil {
		return out, invalid("system: %v", err)
	}
	for _, b := range blocks {
		if b.Type != "text" || b.Text == nil {
			return out, invalid("system: a block of type %q is not supported, only text is", b.Type)
		}
		out.Messages = append(out.Messages, api.ChatMessage{Role: provider.System, Content: *b.Text})
	}
	for i, m := range in.Messages {
		read, err := m.messages(i == 0)
		if err != nil {
			return out, invalid("messages.%d: %v", i, err)
		}
		out.Messages = append(out.Messages, read...)
	}
	for i, t := range in.Tools {
		tool := api.Tool{Name: t.Name, Description: t.Description, Schema: notNull(t.InputSchema), Strict: t.Strict}
		if err := addTool(&out.Tools, tool, t.Type == "" || t.Type == "custom"); err != nil {
			return out, invalid("tools.%d: %v", i, err)
		}
	}
	if c := in.ToolChoice; c != nil {
		out.Options.SingleCall = c.Single
		switch c.Type {
		case "auto", "none":
			out.Options.ToolChoice = c.Type
		case "any":
			out.Options.ToolChoice = provider.ToolsRequired
		case "tool":
			out.Options.ToolChoice = provider.OneTool + c.Name
		default:
			return out, invalid("tool_choice: type %q is none of auto, any, tool, none", c.Type)
		}
	}
	return out, nil
}

// Budgets of thinking, in tokens, from which the effort is medium and high.
const (
	mediumThinking = 2048
	highThinking   = 4096
)

// effort returns the effort of reasoning: the one that the request names, or else that of
// its budget for thinking. Adaptive thinking leaves it to the model.
func (in anthropicRequest) effort() string {
	switch {
	case in.Output.Effort != "" || in.Thinking.Type != "enabled":
		return in.Output.Effort
	case in.Thinking.Budget >= highThinking:
		return "high"
	case in.Thinking.Budget >= mediumThinking:
		return "medium"
	}
	return "low"
}

// blocksOf returns the blocks of a content, which is a text or a list of blocks.
func blocksOf(raw json.RawMessage) ([]anthropicBlock, error) {
	if len(notNull(raw)) == 0 {
		return nil, nil
	}
	if text, ok := stringOf(raw); ok {
		return []anthropicBlock{{Type: "text", Text: &text}}, nil
	}
	all, ok := listOf(raw, func(kind, text string) anthropicBlock { return anthropicBlock{Type: kind, Text: &text} })
	if !ok {
		return nil, errors.New("the content is neither a text nor a list of blocks")
	}
	return all, nil
}

// messages returns a message in the neutral form, in which each result is a message of its
// own before the text that follows it. Thinking of earlier answers is left out: it belongs
// to the model that wrote it.
//
// A message of the system within the conversation becomes a text of the user at its place,
// because few models take it there. With the system messages at the beginning, each of them
// would change the part of the prompt that providers cache. The protocol does not allow it
// as the first message.
func (m anthropicTurn) messages(first bool) ([]api.ChatMessage, error) {
	switch {
	case m.Role == provider.System && first:
		return nil, errors.New("role system is not supported for the first message: send it as system")
	case m.Role != provider.User && m.Role != provider.Assistant && m.Role != provider.System:
		return nil, fmt.Errorf("role %.40q is none of user, assistant, system", m.Role)
	}
	blocks, err := blocksOf(m.Content)
	if err != nil {
		return nil, err
	}
	var out []api.ChatMessage
	own := api.ChatMessage{Role: m.Role}
	if m.Role == provider.System {
		own.Role = provider.User
	}
	var content chat.Builder
	for _, b := range blocks {
		switch {
		case b.Type == "text" && b.Text != nil:
			content.Add(chat.Part{Text: *b.Text})
		case b.Type == "image" && m.Role == provider.User:
			picture, err := b.image()
			if err != nil {
				return nil, fmt.Errorf("image: %w", err)
			}
			content.Add(chat.Part{Image: &picture})
		case b.Type == "thinking", b.Type == "redacted_thinking":
		case b.Type == "tool_use" && m.Role == provider.Assistant:
			own.ToolCalls = append(own.ToolCalls, api.ToolCall{ID: b.ID, Name: b.Name, Arguments: string(b.Input)})
		case b.Type == "tool_result" && m.Role == provider.User:
			result, err := b.result()
			if err != nil {
				return nil, err
			}
			out = append(out, result)
		default:
			return nil, fmt.Errorf("a block of type %q is not supported for the role %s", b.Type, m.Role)
		}
	}
	content.Fill(&own)
	if own.Content != "" || len(own.ToolCalls) > 0 || len(own.Images) > 0 {
		out = append(out, own)
	}
	return out, nil
}

// image returns the image of a block.
func (b anthropicBlock) image() (api.Image, error) {
	switch s := b.Source; {
	case s != nil && s.Type == "base64":
		return chat.ImageData(s.MediaType, s.Data)
	case s != nil && s.Type == "url":
		return api.Image{URL: s.URL}, nil
	}
	return api.Image{}, errors.New("the type of its source is neither base64 nor url")
}

// result returns the message of a result. A failed call is marked, because the neutral form
// has no field for it.
func (b anthropicBlock) result() (api.ChatMessage, error) {
	out := api.ChatMessage{Role: provider.ToolRole, ToolCallID: b.ToolUseID}
	blocks, err := blocksOf(b.Content)
	if err != nil {
		return out, err
	}
	if b.IsError {
		mark := "[the call failed]"
		blocks = append([]anthropicBlock{{Type: "text", Text: &mark}}, blocks...)
	}
	var texts []string
	var parts []chat.Part
	for _, part := range blocks {
		switch {
		case part.Type == "text" && part.Text != nil:
			texts, parts = append(texts, *part.Text), append(parts, chat.Part{Text: *part.Text})
		case part.Type == "image":
			picture, err := part.image()
			if err != nil {
				return out, fmt.Errorf("image of a result: %w", err)
			}
			parts = append(parts, chat.Part{Image: &picture})
		default:
			return out, fmt.Errorf("a result with a block of type %q is not supported, only text and images are", part.Type)
		}
	}
	if len(parts) == len(texts) {
		out.Content = strings.Join(texts, "\n") // unlike a Builder, it keeps the lines of empty texts
		return out, nil
	}
	var content chat.Builder
	for _, p := range parts {
		content.Add(p)
	}
	content.Fill(&out)
	return out, nil
}

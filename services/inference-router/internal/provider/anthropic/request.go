package anthropic

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// defaultMaxTokens is the output limit of a request without one: the protocol requires a
// limit.
const defaultMaxTokens = 4096

// maxTemperature is the highest temperature of the protocol. OpenAI's goes up to 2.
const maxTemperature = 1.0

// The request of the Messages API, in the order of its fields that providers hash for
// their cache: tools, system, messages.
type (
	request struct {
		Model       string    `json:"model"`
		MaxTokens   int64     `json:"max_tokens"`
		Tools       []tool    `json:"tools,omitempty"`
		ToolChoice  *choice   `json:"tool_choice,omitempty"`
		System      []block   `json:"system,omitempty"`
		Messages    []message `json:"messages"`
		Temperature *float64  `json:"temperature,omitempty"`
		TopP        *float64  `json:"top_p,omitempty"`
		TopK        *int64    `json:"top_k,omitempty"`
		Stop        []string  `json:"stop_sequences,omitempty"`
		Output      *output   `json:"output_config,omitempty"`
		Stream      bool      `json:"stream"`
	}
	message struct {
		Role    string  `json:"role"`
		Content []block `json:"content"`
	}
	block struct {
		Type      string          `json:"type"`
		Text      string          `json:"text,omitempty"`        // of text
		ID        string          `json:"id,omitempty"`          // of tool_use
		Name      string          `json:"name,omitempty"`        // of tool_use
		Input     json.RawMessage `json:"input,omitempty"`       // of tool_use
		ToolUseID string          `json:"tool_use_id,omitempty"` // of tool_result
		Content   any             `json:"content,omitempty"`     // of tool_result: a string, or a list of blocks
		Source    *source         `json:"source,omitempty"`      // of image
		Cache     *cache          `json:"cache_control,omitempty"`
	}
	output struct {
		Effort string  `json:"effort,omitempty"`
		Format *format `json:"format,omitempty"`
	}
	format struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"schema"`
	}
	source struct {
		Type      string `json:"type"`
		MediaType string `json:"media_type,omitempty"`
		Data      []byte `json:"data,omitempty"`
		URL       string `json:"url,omitempty"`
	}
	tool struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		InputSchema json.RawMessage `json:"input_schema"`
		Strict      bool            `json:"strict,omitempty"`
		Cache       *cache          `json:"cache_control,omitempty"`
	}
	cache struct {
		Type string `json:"type"`
	}
	choice struct {
		Type   string `json:"type"`
		Name   string `json:"name,omitempty"`
		Single bool   `json:"disable_parallel_tool_use,omitempty"`
	}
)

// marked ends a part of the prompt that the provider caches for five minutes.
//
//nolint:gochecknoglobals // a constant
var marked = &cache{Type: "ephemeral"}

// body encodes the request. The result depends only on the prompt, and equal beginnings
// of prompts have equal encodings, so that the provider's cache recognises them. At most
// three of the four permitted cache marks are set: after the tools, the system messages
// and the last message.
func body(req provider.Request) ([]byte, error) {
	req, err := req.Decode()
	if err != nil {
		return nil, err
	}
	if err := chat.Roles(req.Messages); err != nil {
		return nil, err
	}
	out := request{Model: req.Model, MaxTokens: req.MaxTokens, TopK: req.TopK, Stream: true}
	if out.MaxTokens <= 0 {
		out.MaxTokens = defaultMaxTokens
	}
	out.Temperature, out.TopP = sampling(req.Temperature, req.TopP)
	for _, text := range req.Stop {
		if strings.TrimSpace(text) != "" { // the protocol refuses a blank one
			out.Stop = append(out.Stop, text)
		}
	}
	for _, t := range req.Tools {
		schema := t.Schema
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object"}`)
		}
		out.Tools = append(out.Tools, tool{Name: t.Name, Description: t.Description, InputSchema: schema, Strict: t.Strict})
	}
	if n := len(out.Tools); n > 0 {
		out.ToolChoice = toolChoice(req.Options)
		out.Tools[n-1].Cache = marked
	}
	out.System, out.Messages = blocks(req.Messages)
	if err := out.shape(req.Options); err != nil {
		return nil, err
	}
	if n := len(out.System); n > 0 {
		out.System[n-1].Cache = marked
	}
	if len(out.Messages) == 0 {
		return nil, chat.ErrNoMessages
	}
	last := out.Messages[len(out.Messages)-1].Content
	last[len(last)-1].Cache = marked
	data, err := api.Encode(out)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	return data, nil
}

// sampling returns the temperature and top_p to send. The models take one of them: top_p is
// left out, or the temperature if it is the highest one, which is the default.
func sampling(temperature, topP *float64) (_, _ *float64) {
	switch {
	case temperature == nil:
		return nil, topP
	case *temperature < maxTemperature:
		return temperature, nil
	case topP != nil:
		return nil, topP
	}
	return new(maxTemperature), nil
}

// onlyJSON is the last system message of a call whose answer has to be JSON without a
// schema. The protocol has a format only for schemas.
const onlyJSON = "Answer with one JSON object and nothing else."

// effortOf returns the effort of reasoning in the words of the protocol, "" if it has none
// for it.
func effortOf(word string) string {
	switch word {
	case "none":
		return ""
	case "minimal":
		return "low"
	}
	return word
}

// shape adds the effort of reasoning and the format of the answer.
func (r *request) shape(o provider.Options) error {
	f, err := provider.FormatOf(o.ResponseFormat)
	if err != nil {
		return err
	}
	if effort := effortOf(o.Effort); effort != "" {
		r.Output = &output{Effort: effort}
	}
	switch f.Type {
	case provider.FormatObject:
		r.System = append(r.System, block{Type: "text", Text: onlyJSON})
	case provider.FormatSchema:
		if r.Output == nil {
			r.Output = &output{}
		}
		r.Output.Format = &format{Type: f.Type, Schema: closed(f.Schema)}
	}
	return nil
}

// toolChoice returns the choice of tools in the protocol's form.
func toolChoice(o provider.Options) *choice {
	c := &choice{Type: "auto", Single: o.SingleCall}
	switch name, one := strings.CutPrefix(o.ToolChoice, provider.OneTool); {
	case one:
		c.Type, c.Name = "tool", name
	case o.ToolChoice == provider.ToolsRequired:
		c.Type = "any"
	case o.ToolChoice == provider.ToolsNone:
		return &choice{Type: "none"}
	}
	return c
}

// blocks converts messages to system blocks and to messages whose roles alternate. Results
// of calls and the user's text that follows them are one message, with the results first,
// as the protocol requires. Blank texts are omitted, because the protocol refuses them.
func blocks(messages []provider.Message) (system []block, out []message) {
	add := func(role string, b ...block) {
		if len(b) == 0 {
			return
		}
		if n := len(out); n > 0 && out[n-1].Role == role {
			out[n-1].Content = append(out[n-1].Content, b...)
			return
		}
		out = append(out, message{role, b})
	}
	for _, m := range messages {
		var content []block
		if m.Role != provider.ToolRole || len(m.Images) > 0 {
			for _, p := range chat.Parts(m) {
				content = append(content, blockOf(p))
			}
		}
		switch m.Role {
		case provider.System:
			system = append(system, content...)
		case provider.Assistant:
			for _, c := range m.ToolCalls {
				content = append(content, block{Type: "tool_use", ID: c.ID, Name: c.Name, Input: input(c.Arguments)})
			}
			add("assistant", content...)
		case provider.ToolRole:
			result := block{Type: "tool_result", ToolUseID: m.ToolCallID}
			switch {
			case len(m.Images) > 0:
				result.Content = content
			case m.Content != "":
				result.Content = m.Content
			}
			add("user", result)
		default:
			add("user", content...)
		}
	}
	for _, m := range out {
		slices.SortStableFunc(m.Content, func(a, b block) int { return rank(a) - rank(b) })
	}
	return system, out
}

// blockOf returns the block of a text or an image.
func blockOf(p chat.Part) block {
	switch i := p.Image; {
	case i == nil:
		return block{Type: "text", Text: p.Text}
	case len(i.Data) > 0:
		return block{Type: "image", Source: &source{Type: "base64", MediaType: i.MediaType, Data: i.Data}}
	default:
		return block{Type: "image", Source: &source{Type: "url", URL: i.URL}}
	}
}

// rank orders the blocks of a message: results before everything else.
func rank(b block) int {
	if b.Type == "tool_result" {
		return 0
	}
	return 1
}

// input returns the arguments of a call as the JSON object that the protocol requires.
// Other JSON becomes the field value of an object, and text that is not JSON the field
// _raw (docs/reference/inference-router.md, Messages).
func input(arguments string) json.RawMessage {
	text := strings.TrimSpace(arguments)
	switch {
	case text == "":
		return json.RawMessage(`{}`)
	case !json.Valid([]byte(text)):
		return field("_raw", arguments)
	case text[0] != '{':
		return field("value", json.RawMessage(text))
	}
	return json.RawMessage(text)
}

func field(name string, value any) json.RawMessage {
	data, err := json.Marshal(map[string]any{name: value})
	if err != nil {
		return json.RawMessage(`{}`)
	}
	return data
}

package surface

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Responses is the protocol of POST /v1/responses. Responses are not stored under their
// ids, so a request cannot refer to an earlier one: it has to send the whole conversation.
type Responses struct{}

// responsesRequest has the fields of a request that the router understands.
type responsesRequest struct {
	Model              string          `json:"model"`
	Input              json.RawMessage `json:"input"`
	Instructions       json.RawMessage `json:"instructions"`
	Tools              []responsesTool `json:"tools"`
	ToolChoice         json.RawMessage `json:"tool_choice"`
	ParallelToolCalls  *bool           `json:"parallel_tool_calls"`
	MaxOutputTokens    int64           `json:"max_output_tokens"`
	Temperature        *float64        `json:"temperature"`
	TopP               *float64        `json:"top_p"`
	User               string          `json:"user"`
	Stream             bool            `json:"stream"`
	Background         bool            `json:"background"`
	PreviousResponseID string          `json:"previous_response_id"`
	Conversation       json.RawMessage `json:"conversation"`
	Prompt             json.RawMessage `json:"prompt"`
	TopLogprobs        int             `json:"top_logprobs"`
	Include            []string        `json:"include"`
	Reasoning          struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Text struct {
		Format json.RawMessage `json:"format"`
	} `json:"text"`
}

type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"`
}

// responsesInput is one item of a conversation: a message, a call or its result.
type responsesInput struct {
	Type      string          `json:"type"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// Read implements [Dialect].
func (Responses) Read(body []byte) (Request, error) {
	var in responsesRequest
	if err := decode(body, &in); err != nil {
		return Request{}, err
	}
	out := Request{
		Model: in.Model, MaxTokens: in.MaxOutputTokens, User: in.User, Stream: in.Stream,
		Options: provider.Options{Temperature: in.Temperature, TopP: in.TopP, Effort: in.Reasoning.Effort, SingleCall: in.ParallelToolCalls != nil && !*in.ParallelToolCalls},
	}
	switch {
	case in.Model == "":
		return out, invalid("model is missing")
	case in.MaxOutputTokens < 0:
		return out, invalid("max_output_tokens cannot be negative")
	case in.Background:
		return out, invalid("background is not supported")
	case in.PreviousResponseID != "" || len(notNull(in.Conversation)) > 0:
		return out, invalid("previous_response_id and conversation are not supported, because responses are not stored: send the whole conversation as input")
	case len(notNull(in.Prompt)) > 0:
		return out, invalid("prompt is not supported, because prompts are not stored: send instructions and input")
	case in.TopLogprobs > 0 || slices.Contains(in.Include, "message.output_text.logprobs"):
		return out, invalid("logprobs are not supported")
	}
	for i, t := range in.Tools {
		tool := api.Tool{Name: t.Name, Description: t.Description, Schema: notNull(t.Parameters), Strict: t.Strict}
		if err := addTool(&out.Tools, tool, t.Type == "function"); err != nil {
			return out, invalid("tools[%d]: %v", i, err)
		}
	}
	if err := checkEffort(in.Reasoning.Effort); err != nil {
		return out, err
	}
	var err error
	if out.Messages, err = responsesMessages(in.Instructions, in.Input); err != nil {
		return out, err
	}
	if out.Options.ToolChoice, err = responsesChoice(in.ToolChoice); err != nil {
		return out, err
	}
	out.Options.ResponseFormat, err = responsesFormat(in.Text.Format)
	return out, err
}

// responsesMessages returns the conversation of the instructions, which may be missing,
// and the input, which is a text or a list of items.
func responsesMessages(instructions, input json.RawMessage) ([]api.ChatMessage, error) {
	system, err := textOf(instructions)
	if err != nil {
		return nil, invalid("instructions: %v", err)
	}
	var out []api.ChatMessage
	if system != "" {
		out = append(out, api.ChatMessage{Role: provider.System, Content: system})
	}
	if text, ok := stringOf(input); ok && text != "" {
		return append(out, api.ChatMessage{Role: provider.User, Content: text}), nil
	}
	var items []responsesInput
	if json.Unmarshal(input, &items) != nil || len(items) == 0 {
		return nil, invalid("input is neither a text nor a list of items, or is empty")
	}
	for i, item := range items {
		if out, err = item.add(out); err != nil {
			return nil, invalid("input[%d]: %v", i, err)
		}
	}
	return out, nil
}

// add appends the item to a conversation. Calls belong to the assistant's message before
// them. Reasoning is omitted, because it is never sent to a model.
func (item responsesInput) add(all []api.ChatMessage) ([]api.ChatMessage, error) {
	switch item.Type {
	case "", "message":
		if item.Role == provider.ToolRole { // a role of chat completions only
			return nil, errors.New("the role tool is not one of responses: send a function_call_output")
		}
		m, err := messageOf(item.Role, item.Content)
		return append(all, m), err
	case "function_call":
		call := api.ToolCall{ID: item.CallID, Name: item.Name, Arguments: item.Arguments}
		if last := len(all) - 1; last >= 0 && all[last].Role == provider.Assistant {
			all[last].ToolCalls = append(all[last].ToolCalls, call)
			return all, nil
		}
		return append(all, api.ChatMessage{Role: provider.Assistant, ToolCalls: []api.ToolCall{call}}), nil
	case "function_call_output":
		m, err := contentOf(provider.ToolRole, item.Output, true) // unlike in chat completions, with images
		m.ToolCallID = item.CallID
		return append(all, m), err
	case "reasoning":
		return all, nil
	case "item_reference":
		return nil, errors.New("an item_reference is not supported, because items are not stored: set store to false in the client, which then sends the items themselves")
	}
	return nil, fmt.Errorf("an item of type %q is not supported", item.Type)
}

// responsesChoice returns the choice of tools as [openAIChoice] does. The name of a
// function has no object of its own here.
func responsesChoice(raw json.RawMessage) (string, error) {
	var one struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if json.Unmarshal(raw, &one) == nil && one.Type != "" {
		if one.Type != "function" || one.Name == "" {
			return "", invalid("tool_choice names no function")
		}
		return provider.OneTool + one.Name, nil
	}
	return openAIChoice(raw)
}

// responsesFormat returns the format of the answer in the form of a chat completion, in
// which the schema has an object of its own.
func responsesFormat(raw json.RawMessage) (json.RawMessage, error) {
	if len(notNull(raw)) == 0 {
		return nil, nil
	}
	var in struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      *bool           `json:"strict"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, invalid("text.format: %v", err)
	}
	out, err := provider.Format(in).Encode()
	if err != nil {
		return nil, invalid("text.format: %v", err)
	}
	return out, nil
}

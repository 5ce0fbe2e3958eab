package openai

import (
	"encoding/json"
	"fmt"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// params is the request in the client's words and the server's dialect,
// consecutive messages merged.
func params(req provider.Request, d dialect) (sdk.ChatCompletionNewParams, error) {
	p := sdk.ChatCompletionNewParams{Model: req.Model}
	if !d.noStream && !d.noStreamOptions {
		p.StreamOptions = sdk.ChatCompletionStreamOptionsParam{IncludeUsage: sdk.Bool(true)}
	}
	if d.noTools {
		req.Messages, req.Tools = plain(req.Messages), nil
	}
	if d.tokens != "" {
		req.TokenParam = d.tokens
	}
	messages, err := chat.Merge(req.Messages)
	if err != nil {
		return p, err
	}
	for _, m := range messages {
		switch m.Role {
		case provider.System:
			p.Messages = append(p.Messages, sdk.SystemMessage(m.Content))
		case provider.User:
			p.Messages = append(p.Messages, sdk.UserMessage(m.Content))
		case provider.ToolRole:
			p.Messages = append(p.Messages, sdk.ToolMessage(m.Content, m.ToolCallID))
		case provider.Assistant:
			p.Messages = append(p.Messages, assistant(m))
		}
	}
	for _, t := range req.Tools {
		f, err := function(t)
		if err != nil {
			return p, err
		}
		p.Tools = append(p.Tools, sdk.ChatCompletionFunctionTool(f))
	}
	if len(p.Tools) > 0 {
		p.ToolChoice.OfAuto = sdk.String("auto")
	}
	if req.MaxTokens > 0 {
		if req.TokenParam == model.MaxCompletionTokens {
			p.MaxCompletionTokens = sdk.Int(req.MaxTokens)
		} else {
			p.MaxTokens = sdk.Int(req.MaxTokens)
		}
	}
	if req.Temperature != nil {
		p.Temperature = sdk.Float(*req.Temperature)
	}
	if req.Seed != nil {
		p.Seed = sdk.Int(*req.Seed)
	}
	return p, nil
}

// assistant leaves the content out of a message that has only calls: some
// servers refuse an empty text there.
func assistant(m provider.Message) sdk.ChatCompletionMessageParamUnion {
	var a sdk.ChatCompletionAssistantMessageParam
	if m.Content != "" || len(m.ToolCalls) == 0 {
		a.Content.OfString = sdk.String(m.Content)
	}
	for _, c := range m.ToolCalls {
		a.ToolCalls = append(a.ToolCalls, sdk.ChatCompletionMessageToolCallUnionParam{
			OfFunction: &sdk.ChatCompletionMessageFunctionToolCallParam{
				ID:       c.ID,
				Function: sdk.ChatCompletionMessageFunctionToolCallFunctionParam{Name: c.Name, Arguments: c.Arguments},
			},
		})
	}
	return sdk.ChatCompletionMessageParamUnion{OfAssistant: &a}
}

// function sends the schema's bytes as they are: decoding it would reorder its
// keys and cost time on every call.
func function(t provider.Tool) (shared.FunctionDefinitionParam, error) {
	if len(t.Schema) > 0 && !json.Valid(t.Schema) {
		return shared.FunctionDefinitionParam{}, fmt.Errorf("the schema of tool %s is not JSON", t.Name)
	}
	return param.Override[shared.FunctionDefinitionParam](struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	}{t.Name, t.Description, t.Schema}), nil
}

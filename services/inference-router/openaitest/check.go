package openaitest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// wrong returns the error for a request that the protocol does not allow, with the wrong
// parameter.
func wrong(param, format string, args ...any) *Error {
	return &Error{Param: param, Message: fmt.Sprintf(format, args...)}
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Check returns the error of a strict server for a request that the protocol does not
// allow, else nil. The strictest known servers accept a system message only at the
// beginning, a result only after its call, and only objects as arguments.
func Check(r Request) *Error {
	switch {
	case r.Model == "":
		return wrong("model", "you must provide a model parameter")
	case len(r.Messages) == 0:
		return wrong("messages", "[] is too short - 'messages'")
	case r.TokenParam != "" && r.MaxTokens < 1:
		return wrong(string(r.TokenParam), "the output limit must be at least 1")
	case r.StreamOptions && !r.Stream:
		return wrong("stream_options", "the 'stream_options' parameter is only allowed when 'stream' is enabled")
	case len(r.Stop) > 4:
		return wrong("stop", "at most 4 stop sequences are allowed")
	case r.SingleCall && len(r.Tools) == 0:
		return wrong("parallel_tool_calls", "'parallel_tool_calls' is only allowed when 'tools' are specified")
	case r.ToolChoice && len(r.Tools) == 0:
		return wrong("tool_choice", "'tool_choice' is only allowed when 'tools' are specified")
	}
	if err := checkTools(r.Tools); err != nil {
		return err
	}
	return checkMessages(r.Messages)
}

func checkTools(tools []api.Tool) *Error {
	seen := map[string]bool{}
	for i, t := range tools {
		at := fmt.Sprintf("tools[%d].function", i)
		switch {
		case !validName.MatchString(t.Name):
			return wrong(at+".name", "invalid '%s.name': %.80q does not match '^[a-zA-Z0-9_-]{1,64}$'", at, t.Name)
		case seen[t.Name]:
			return wrong(at+".name", "tool names must be unique: %s", t.Name)
		}
		seen[t.Name] = true
		if len(t.Schema) == 0 {
			continue
		}
		var schema struct {
			Type       string                     `json:"type"`
			Properties map[string]json.RawMessage `json:"properties"`
			Required   []string                   `json:"required"`
		}
		if err := json.Unmarshal(t.Schema, &schema); err != nil || schema.Type != "object" {
			return wrong(at+".parameters", "invalid schema for function '%s': it must be a JSON Schema of type 'object'", t.Name)
		}
		if schema.Properties == nil {
			return wrong(at+".parameters", "invalid schema for function '%s': in context=(), object schema missing properties", t.Name)
		}
		for _, name := range schema.Required {
			if _, ok := schema.Properties[name]; !ok {
				return wrong(at+".parameters", "invalid schema for function '%s': required %q is no property", t.Name, name)
			}
		}
	}
	return nil
}

// checkMessages checks roles, contents and the pairing of calls with results.
func checkMessages(messages []api.ChatMessage) *Error {
	var open []string // calls of the last assistant message without a result
	talked := false   // a message of another role than system was seen
	for i, m := range messages {
		at := fmt.Sprintf("messages[%d]", i)
		if m.Role != chat.ToolRole && len(open) > 0 {
			return wrong(at, "an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'; without response: %v", open)
		}
		if m.Role != chat.Assistant && m.ToolCalls != nil || m.Role != chat.ToolRole && m.ToolCallID != "" {
			return wrong(at, "%s: role %s cannot have calls or be a result", at, m.Role)
		}
		if m.Content == "" && len(m.ToolCalls) == 0 && len(m.Images) == 0 && m.Role != chat.ToolRole {
			return wrong(at+".content", "%s: the message has neither content nor tool calls", at)
		}
		switch m.Role {
		case chat.System:
			if talked {
				return wrong(at+".role", "%s: a system message must be at the beginning", at)
			}
		case chat.User:
		case chat.Assistant:
			if err := checkCalls(at, m.ToolCalls); err != nil {
				return err
			}
			for _, c := range m.ToolCalls {
				open = append(open, c.ID)
			}
		case chat.ToolRole:
			answered := slices.Index(open, m.ToolCallID)
			if answered < 0 {
				return wrong(at, "messages with role 'tool' must be a response to a preceding message with 'tool_calls': %q", m.ToolCallID)
			}
			open = slices.Delete(open, answered, answered+1)
		default:
			return wrong(at+".role", "invalid value: %q; supported values are 'system', 'assistant', 'user', and 'tool'", m.Role)
		}
		talked = talked || m.Role != chat.System
	}
	if len(open) > 0 {
		return wrong("messages", "tool calls without response: %v", open)
	}
	if !talked {
		return wrong("messages", "there is no message but the system's")
	}
	return nil
}

func checkCalls(at string, calls []api.ToolCall) *Error {
	seen := map[string]bool{}
	for j, c := range calls {
		in := fmt.Sprintf("%s.tool_calls[%d]", at, j)
		var object map[string]json.RawMessage
		switch {
		case c.ID == "" || seen[c.ID]:
			return wrong(in+".id", "%s.id %q is empty or used twice", in, c.ID)
		case !validName.MatchString(c.Name):
			return wrong(in+".function.name", "invalid '%s.function.name': %.80q does not match '^[a-zA-Z0-9_-]{1,64}$'", in, c.Name)
		case json.Unmarshal([]byte(c.Arguments), &object) != nil || object == nil:
			return wrong(in+".function.arguments", "%s.function.arguments must be a JSON object, not %.60q", in, c.Arguments)
		}
		seen[c.ID] = true
	}
	return nil
}

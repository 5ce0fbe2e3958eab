package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// wrong returns the error for a request that the protocol does not allow, with the wrong
// parameter.
func wrong(param, format string, args ...any) *openaitest.Error {
	return &openaitest.Error{Param: param, Message: fmt.Sprintf(format, args...)}
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkRequest returns an error if the protocol does not allow the request, else nil.
func checkRequest(r openaitest.Request) *openaitest.Error {
	switch {
	case r.Model == "":
		return wrong("model", "you must provide a model parameter")
	case len(r.Messages) == 0:
		return wrong("messages", "[] is too short - 'messages'")
	case r.TokenParam != "" && r.MaxTokens < 1:
		return wrong(string(r.TokenParam), "the output limit must be at least 1")
	case r.StreamOptions && !r.Stream:
		return wrong("stream_options", "the 'stream_options' parameter is only allowed when 'stream' is enabled")
	case r.ToolChoice && len(r.Tools) == 0:
		return wrong("tool_choice", "'tool_choice' is only allowed when 'tools' are specified")
	}
	if err := checkTools(r.Tools); err != nil {
		return err
	}
	return checkMessages(r.Messages)
}

func checkTools(tools []api.Tool) *openaitest.Error {
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
		for _, name := range schema.Required {
			if _, ok := schema.Properties[name]; !ok {
				return wrong(at+".parameters", "invalid schema for function '%s': required %q is no property", t.Name, name)
			}
		}
	}
	return nil
}

// checkMessages checks roles, contents and the pairing of calls with results.
func checkMessages(messages []api.ChatMessage) *openaitest.Error {
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
		if m.Content == "" && len(m.ToolCalls) == 0 && m.Role != chat.ToolRole {
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

func checkCalls(at string, calls []api.ToolCall) *openaitest.Error {
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

// TestStrictServerRefuses checks that a request that the protocol does not allow is an
// error.
func TestStrictServerRefuses(t *testing.T) {
	t.Parallel()
	const user, call = `{"role":"user","content":"U"}`, `{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	const result = `{"role":"tool","tool_call_id":"c","content":"R"}`
	messages := func(all ...string) string { return `{"model":"m","messages":[` + strings.Join(all, ",") + `]}` }
	if req, err := decodeRequest(messages(user, call, result)); err != nil || checkRequest(req) != nil {
		t.Fatalf("a good request: got %v, %+v", err, checkRequest(req))
	}
	with := func(field string) string { return strings.TrimSuffix(messages(user), "}") + "," + field + "}" }
	for name, body := range map[string]string{
		"no model":                   `{"messages":[` + user + `]}`,
		"no message":                 messages(),
		"no limit":                   with(`"max_tokens":0`),
		"options without a stream":   with(`"stream_options":{}`),
		"a choice without tools":     with(`"tool_choice":"auto"`),
		"a nameless tool":            with(`"tools":[{"type":"function"}]`),
		"a tool twice":               with(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}]`),
		"a schema of a string":       with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"string"}}}]`),
		"a missing property":         with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","required":["p"]}}}]`),
		"an unknown role":            messages(user, `{"role":"critic","content":"x"}`),
		"an empty message":           messages(user, `{"role":"user","content":""}`),
		"a late system message":      messages(user, `{"role":"system","content":"x"}`),
		"only a system message":      messages(`{"role":"system","content":"x"}`),
		"a call without a result":    messages(user, call),
		"a message before a result":  messages(user, call, user, result),
		"a result without a call":    messages(user, result),
		"a call of the user":         messages(strings.Replace(call, "assistant", "user", 1), result),
		"arguments that are a list":  messages(user, strings.Replace(call, "{}", "[]", 1), result),
		"a name with a space":        messages(user, strings.Replace(call, `"f"`, `"f g"`, 1), result),
		"a call without an id":       messages(user, strings.Replace(call, `"c"`, `""`, 1), result),
		"a result of the wrong role": messages(`{"role":"user","content":"U","tool_call_id":"c"}`),
	} {
		req, err := decodeRequest(body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if checkRequest(req) == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func decodeRequest(body string) (openaitest.Request, error) {
	return openaitest.Decode(strings.NewReader(body), int64(len(body)))
}

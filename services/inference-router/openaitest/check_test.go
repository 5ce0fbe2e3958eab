package openaitest_test

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// TestCheck checks that a request that the protocol does not allow is an
// error.
func TestCheck(t *testing.T) {
	t.Parallel()
	const user, call = `{"role":"user","content":"U"}`, `{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	const result = `{"role":"tool","tool_call_id":"c","content":"R"}`
	messages := func(all ...string) string { return `{"model":"m","messages":[` + strings.Join(all, ",") + `]}` }
	if req, err := decodeRequest(messages(user, call, result)); err != nil || openaitest.Check(req) != nil {
		t.Fatalf("a good request: got %v, %+v", err, openaitest.Check(req))
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
		"no properties":              with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`),
		"a missing property":         with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{},"required":["p"]}}}]`),
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
		} else if openaitest.Check(req) == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func decodeRequest(body string) (openaitest.Request, error) {
	return openaitest.Decode(strings.NewReader(body), int64(len(body)))
}

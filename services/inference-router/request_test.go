package router_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestEncodedPrompt checks that a normal encoded prompt is sent to the provider byte for
// byte, that another one is normalized, and that an unreadable one is refused before a
// provider is called.
func TestEncodedPrompt(t *testing.T) {
	t.Parallel()
	bodies := make(chan string, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
			return
		}
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- string(data)
		raw{w}.events(chunkText("yes"), chunkStop, chunkDone)
	}))
	t.Cleanup(srv.Close)
	w := start(t, &provider{url: srv.URL + "/v1"}, nil)
	ask := func(id, messages, tools string) (api.Completion, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return bus.CallStream[api.Delta, api.Completion](ctx, w.Bus, api.CompleteV2{
			Messages: json.RawMessage(messages), Tools: json.RawMessage(tools),
			Call: api.Complete{ID: id, Agent: "lucky", Session: "s", Turn: "r.1", Task: api.TaskTurn, Tier: api.TierNormal, Model: "m"},
		}, func(api.Delta) error { return nil })
	}
	const (
		tools  = `[{"type":"function","function":{"name":"look","description":"at it","parameters":{ "type":"object" }}}]`
		normal = `[{"role":"system","content":"be brief"},{"role":"user","content":"a \"b\"\n"},{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"look","arguments":"{}"}}]},{"role":"tool","content":"seen","tool_call_id":"a"}]`
	)
	for _, c := range []struct{ name, messages, tools, sent, offered string }{
		{"normal", normal, tools, normal, tools},
		{"not normal", `[{"role":"user","content":"one"}, {"role":"user","content":"two"}]`, tools, `[{"role":"user","content":"one\ntwo"}]`, tools},
		{"calls without tools", normal, `[]`, `[{"role":"system","content":"be brief"},{"role":"user","content":"a \"b\"\n"},{"role":"assistant","content":"[tool_call:a] look {}"},{"role":"user","content":"[tool_result:a] seen"}]`, ""},
	} {
		if got, err := ask(c.name, c.messages, c.tools); err != nil || got.Text != "yes" {
			t.Fatalf("%s: got %+v, %v", c.name, got, err)
		}
		body := <-bodies
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(body), &fields); err != nil {
			t.Fatalf("%s: %v: %s", c.name, err, body)
		}
		if string(fields["messages"]) != c.sent || string(fields["tools"]) != c.offered {
			t.Errorf("%s: the provider got %s with the tools %s, want %s with %s", c.name, fields["messages"], fields["tools"], c.sent, c.offered)
		}
		if string(fields["model"]) != `"m"` || string(fields["stream"]) != "true" || string(fields["stream_options"]) != `{"include_usage":true}` || string(fields["max_tokens"]) == "" {
			t.Errorf("%s: the provider got %s", c.name, body)
		}
	}
	for name, c := range map[string]struct{ messages, tools string }{
		"no JSON":               {`[{"role":"user"`, `[]`},
		"more than a prompt":    {normal + `,"model":"dear"`, tools},
		"tools that are none":   {normal, `{}`},
		"more than tools":       {normal, `[],"model":"dear"`},
		"nothing":               {`[]`, `[]`},
		"a text that is a list": {`[{"role":"user","content":[]}]`, `[]`},
	} {
		if got, err := ask(name, c.messages, c.tools); api.CodeOf(err) != api.Invalid {
			t.Errorf("%s: got %+v, %v, want Invalid", name, got, err)
		}
	}
	if len(bodies) > 0 {
		t.Errorf("the provider was asked for a prompt that cannot be read: %s", <-bodies)
	}
}

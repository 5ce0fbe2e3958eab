package router_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// picky is a provider that refuses some requests and records their bodies.
type picky struct {
	refuse func(body string) bool

	mu     sync.Mutex
	bodies []string
}

func (p *picky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body json.RawMessage
	if !strings.HasSuffix(r.URL.Path, "/chat/completions") || json.NewDecoder(r.Body).Decode(&body) != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	p.mu.Lock()
	p.bodies = append(p.bodies, string(body))
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if p.refuse(string(body)) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":{"message":"messages[2] is not what I take"}}`))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write([]byte(`data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"fine"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}` + "\n\ndata: [DONE]\n\n"))
}

func (p *picky) sent() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bodies
}

func worked(id string) api.Complete {
	req := request(id, "look at it")
	req.Messages = append(req.Messages,
		api.ChatMessage{Role: "assistant", ToolCalls: []api.ToolCall{{ID: "c1", Name: "look at", Arguments: `["it"]`}}},
		api.ChatMessage{Role: "tool", ToolCallID: "c1", Content: "there is no such tool"})
	return req
}

// TestHistory checks that malformed output of a model is not sent to a provider
// unchanged. If a provider refuses the history nevertheless, it is sent once more without
// tool calls, and then the caller gets the provider's error.
func TestHistory(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refuse func(body string) bool
		calls  int
		fails  bool
	}{
		"taken":                   {func(string) bool { return false }, 1, false},
		"refused with its calls":  {func(body string) bool { return strings.Contains(body, `"tool_calls"`) }, 2, false},
		"refused in every form":   {func(string) bool { return true }, 2, true},
		"arguments as they were":  {func(body string) bool { return strings.Contains(body, `"arguments":"[`) }, 1, false},
		"a name as it was":        {func(body string) bool { return strings.Contains(body, `"name":"look at"`) }, 1, false},
		"an assistant that is ''": {func(body string) bool { return strings.Contains(body, `"content":""`) }, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &picky{refuse: tt.refuse}
			srv := httptest.NewServer(p)
			t.Cleanup(srv.Close)
			w := start(t, &provider{url: srv.URL + "/v1"}, nil)
			c, _, err := complete(t, w.Bus, worked("h1"))
			if got := p.sent(); len(got) != tt.calls {
				t.Errorf("the provider was asked %d times, want %d: %q", len(got), tt.calls, got)
			}
			switch {
			case tt.fails:
				if api.CodeOf(err) != api.Invalid || !strings.Contains(api.Wire(err).Message, "messages[2] is not what I take") {
					t.Errorf("got %v, want the provider's words", err)
				}
			case err != nil || c.Text != "fine":
				t.Errorf("got %+v, %v", c, err)
			}
			if tt.calls == 2 && !strings.Contains(p.sent()[1], "[tool_result:") {
				t.Errorf("the second request has no calls as text: %s", p.sent()[1])
			}
		})
	}
	t.Run("without calls", func(t *testing.T) {
		t.Parallel()
		p := &picky{refuse: func(string) bool { return true }}
		srv := httptest.NewServer(p)
		t.Cleanup(srv.Close)
		w := start(t, &provider{url: srv.URL + "/v1"}, nil)
		if _, _, err := complete(t, w.Bus, request("h2", "hello")); api.CodeOf(err) != api.Invalid || len(p.sent()) != 1 {
			t.Errorf("got %v after %d requests, want the refusal after one", err, len(p.sent()))
		}
	})
}

package router_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/apptest"

	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// responsesStream is an answer in the protocol of responses.
const responsesStream = `data: {"type":"response.output_text.delta","output_index":0,"delta":"yes"}

data: {"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":9,"output_tokens":1}}}

`

// TestConfiguredProviders makes a call to each kind of configured provider and checks the
// path and the key that it receives.
func TestConfiguredProviders(t *testing.T) {
	t.Parallel()
	type received struct{ path, key string }
	calls := make(chan received, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if r.Method == http.MethodGet {
			openaitest.WriteModels(w, openaitest.Model{Pricing: map[string]string{"prompt": "0", "completion": "0"}}, "model-"+name)
			return
		}
		key := r.Header.Get("Authorization")
		if key == "" {
			key = r.Header.Get("X-Api-Key")
		}
		calls <- received{path, key}
		w.Header().Set("Content-Type", "text/event-stream")
		switch {
		case strings.HasSuffix(path, "/responses"):
			_, _ = w.Write([]byte(responsesStream))
		case strings.HasSuffix(path, "/messages"):
			_, _ = w.Write([]byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"yes\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n"))
		default:
			out := openaitest.NewStream(w, "id", "m", 0)
			out.Text("yes")
			out.Finish("stop")
			out.Done()
		}
	}))
	t.Cleanup(srv.Close)
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": srv.URL + "/o/v1", "OPENAI_API_KEY": "key-o", "ANIMA_INFERENCE_ROUTER_OPENAI_API": "responses",
		"CONWAY_API_URL": srv.URL + "/c", "CONWAY_API_KEY": "key-c",
		"ANIMA_INFERENCE_ROUTER_PROVIDERS":     "plain=chat:" + srv.URL + "/p/v1,raw=raw-responses:" + srv.URL + "/r/v1,claude=anthropic:" + srv.URL + "/a",
		"ANIMA_INFERENCE_ROUTER_PROVIDER_KEYS": "plain=key-p,raw=key-r,claude=key-a",
	}}, router.Service)
	for name, want := range map[string]struct {
		provider string
		received
	}{
		"o": {"openai", received{"v1/responses", "Bearer key-o"}},
		"c": {"conway", received{"v1/chat/completions", "key-c"}},
		"p": {"plain", received{"v1/chat/completions", "Bearer key-p"}},
		"r": {"raw", received{"v1/responses", "key-r"}},
		"a": {"claude", received{"v1/messages", "key-a"}},
	} {
		call := request("kind-"+name, "hello")
		call.Model, call.Messages = "model-"+name, []api.ChatMessage{{Role: chat.User, Content: "hello"}}
		c, _, err := complete(t, w.Bus, call)
		if err != nil || c.Text != "yes" || c.Provider != want.provider {
			t.Errorf("%s: got %+v, %v; want an answer of %s", name, c, err, want.provider)
			continue
		}
		if got := <-calls; got != want.received {
			t.Errorf("%s: the provider received %+v, want %+v", name, got, want.received)
		}
	}
}

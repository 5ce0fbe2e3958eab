package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic/anthropictest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// asked are the options of a request that a provider received.
type asked struct{ Format, Effort string }

// shaping runs a provider of a model m in the protocol of OpenAI and one of a model a in
// that of Anthropic, which answer with JSON and send the options of each request.
func shaping(t *testing.T) (string, <-chan asked) {
	t.Helper()
	calls := make(chan asked, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/chat/completions"):
			req, err := openaitest.Decode(r.Body, r.ContentLength)
			if err == nil && req.Effort == "high" {
				err = fmt.Errorf("unsupported parameter: 'reasoning_effort' is not supported with this model")
			}
			if err != nil {
				openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
				return
			}
			calls <- asked{string(req.ResponseFormat), req.Effort}
			out := openaitest.NewStream(w, "id", req.Model, 0)
			out.Text(`{"a":1}`)
			out.Finish("stop")
			out.Done()
		case strings.HasSuffix(r.URL.Path, "/messages"):
			req, err := anthropictest.Decode(r.Body)
			if err != nil {
				anthropictest.WriteError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
				return
			}
			calls <- asked{Format: string(req.Neutral().ResponseFormat)}
			out := anthropictest.NewStream(w, "id", req.Model)
			out.Text(`{"a":1}`)
			out.Finish("stop")
			out.Done()
		case strings.HasPrefix(r.URL.Path, "/a/"):
			anthropictest.WriteModels(w, false, anthropictest.Model{ID: "a", CreatedAt: "2026-01-01T00:00:00Z"})
		default:
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, calls
}

// TestFormats checks that the form of an answer reaches the provider over each surface, in
// each protocol of providers.
func TestFormats(t *testing.T) {
	t.Parallel()
	url, calls := shaping(t)
	w := withBalances(t, start(t, &provider{url: url + "/v1"}, map[string]string{"ANIMA_INFERENCE_ROUTER_PROVIDERS": "claude=anthropic:" + url + "/a"}))
	const schema = `{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}`
	const hi = `[{"role":"user","content":"hi"}]`
	chatForm := func(name string) string {
		return `{"type":"json_schema","json_schema":{"name":"` + name + `","schema":` + schema + `,"strict":true}}`
	}
	for _, c := range []struct{ path, body, name string }{
		{"/v1/chat/completions", `"messages":` + hi + `,"response_format":` + chatForm("n"), "n"},
		{"/v1/responses", `"input":"hi","text":{"format":{"type":"json_schema","name":"n","schema":` + schema + `,"strict":true}}`, "n"},
		{"/anthropic/v1/messages", `"max_tokens":9,"messages":` + hi + `,"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}`, "answer"},
		{"NATS", "", "n"},
	} {
		for model, want := range map[string]string{"m": chatForm(c.name), "a": strings.Replace(chatForm("answer"), `,"strict":true`, "", 1)} {
			var got string
			status := http.StatusOK
			if c.path == "NATS" {
				call := request("format-"+model, "hi")
				call.Model, call.ResponseFormat = model, json.RawMessage(chatForm("n"))
				answer, _, err := complete(t, w.Bus, call)
				if err != nil {
					t.Fatal(err)
				}
				got = answer.Text
			} else {
				status, got = post(t, w, c.path, `{"model":"`+model+`",`+c.body+`}`, "Anima-Agent", "lucky")
			}
			if status != http.StatusOK || !strings.Contains(strings.ReplaceAll(got, `\`, ""), `{"a":1}`) {
				t.Errorf("%s to %s: got %d %s", c.path, model, status, got)
				continue
			}
			if diff := cmp.Diff(asked{Format: want}, <-calls); diff != "" {
				t.Errorf("%s to %s (-want +got):\n%s", c.path, model, diff)
			}
		}
	}
	for path, body := range map[string]string{
		"/v1/chat/completions":   `"messages":` + hi + `,"response_format":{"type":"json_schema","json_schema":{"schema":{}}}`,
		"/v1/responses":          `"input":"hi","text":{"format":{"type":"json_schema","schema":{}}}`,
		"/anthropic/v1/messages": `"max_tokens":9,"messages":` + hi + `,"output_config":{"format":{"type":"json_schema"}}`,
	} {
		if status, got := post(t, w, path, `{"model":"m",`+body+`}`, "Anima-Agent", "lucky"); status != http.StatusBadRequest || !strings.Contains(got, "format") {
			t.Errorf("%s: got %d %s, want 400", path, status, got)
		}
	}
	call := request("format-bad", "hi")
	call.ResponseFormat = json.RawMessage(`{"type":"xml"}`)
	if _, _, err := complete(t, w.Bus, call); api.CodeOf(err) != api.Invalid {
		t.Errorf("NATS: got %v, want %s", err, api.Invalid)
	}
}

// TestEffort checks that the effort of reasoning reaches the provider over each surface, and
// that a model that refuses one is asked again without it, once.
func TestEffort(t *testing.T) {
	t.Parallel()
	url, calls := shaping(t)
	w := withBalances(t, start(t, &provider{url: url + "/v1"}, nil))
	const hi = `[{"role":"user","content":"hi"}]`
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `"messages":` + hi + `,"reasoning_effort":"low"`, "low"},
		{"/v1/responses", `"input":"hi","reasoning":{"effort":"low"}`, "low"},
		{"/anthropic/v1/messages", `"max_tokens":9,"messages":` + hi + `,"output_config":{"effort":"low"}`, "low"},
		{"/v1/chat/completions", `"messages":` + hi + `,"reasoning_effort":"high"`, ""},
		{"/v1/chat/completions", `"messages":` + hi + `,"reasoning_effort":"high"`, ""}, // the model has refused it
		{"/v1/chat/completions", `"messages":` + hi + `,"reasoning_effort":"low"`, "low"},
	} {
		status, got := post(t, w, c.path, `{"model":"m",`+c.body+`}`, "Anima-Agent", "lucky")
		if status != http.StatusOK {
			t.Errorf("%s: got %d %s", c.path, status, got)
			continue
		}
		if got := <-calls; got.Effort != c.want {
			t.Errorf("%s %s: got %q, want %q", c.path, c.body, got.Effort, c.want)
		}
	}
	if status, got := post(t, w, "/v1/responses", `{"model":"m","input":"hi","reasoning":{"effort":"a lot"}}`, "Anima-Agent", "lucky"); status != http.StatusBadRequest {
		t.Errorf("got %d %s, want 400", status, got)
	}
}

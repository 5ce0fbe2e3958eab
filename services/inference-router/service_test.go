package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	router "github.com/anima-run/anima/services/inference-router"

	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

const script = `{"model":"m","aliases":["dear"],"context_window":128000,"rules":[
 {"when":{"last_user":"busy"},"steps":[{"text":"at last","error":{"status":429,"retry_after":1,"times":1}}]},
 {"when":{"last_user":"broken"},"steps":[{"text":"mended","error":{"status":500,"times":1}}]},
 {"when":{"last_user":"refused"},"steps":[{"text":"no","error":{"status":400,"message":"this is wrong"}}]},
 {"when":{"last_user":"locked"},"steps":[{"text":"no","error":{"status":401,"message":"who are you"}}]},
 {"when":{"last_user":"long"},"steps":[{"text":"no","error":{"status":400,"code":"context_length_exceeded","message":"too long"}}]},
 {"when":{"last_user":"slow"},"steps":[{"text":"a text of many words that comes piece by piece by piece by piece","delta_ms":200}]},
 {"when":{"last_user":"quiet"},"steps":[{"text":"late","delay_ms":30000}]},
 {"when":{"last_user":"tool"},"steps":[{"text":"I look.","tool_calls":[{"name":"look","arguments":{"at":"it"}}]}]}
],"default":{"steps":[{"text":"You said: {{.User}}. These are enough words to come in several pieces."}]}}`

// provider is an OpenAI-compatible server that counts its calls.
type provider struct {
	url   string
	calls atomic.Int64
	asked chan struct{} // receives when a call arrives
	gone  chan struct{} // receives when a client disconnects during an answer
}

// simulatedModel returns the handler of the scripted model.
func simulatedModel(t *testing.T) http.Handler {
	t.Helper()
	s, err := simulated.Parse([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	h, err := openaitest.Simulated(s, time.Now, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func serve(t *testing.T) *provider {
	t.Helper()
	h := simulatedModel(t)
	p := &provider{asked: make(chan struct{}, 64), gone: make(chan struct{}, 8)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/chat/completions") {
			p.calls.Add(1)
			select {
			case p.asked <- struct{}{}:
			default: // no test waits for so many
			}
			if r.Header.Get("Authorization") != "Bearer sekret-key" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
		}
		defer func() { // deferred, because the handler panics if the client has disconnected
			if r.Context().Err() != nil {
				p.gone <- struct{}{}
			}
		}()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.url = srv.URL + "/v1"
	return p
}

// start runs the router with one free model of the provider, so that it makes no holds.
// Paid calls need treasury and are tested in e2e.
func start(t *testing.T, p *provider, env map[string]string) *apptest.World {
	t.Helper()
	all := map[string]string{"OPENAI_BASE_URL": p.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000"}
	for k, v := range env {
		all[k] = v
	}
	return apptest.Start(t, apptest.Options{Env: all}, router.Service)
}

// request returns a request for the free model by name; the models of the baseline are
// paid.
func request(id, text string) api.Complete {
	return api.Complete{
		ID: id, Agent: "lucky", Session: "s", Turn: "r.1", Task: api.TaskTurn, Tier: api.TierNormal, Model: "m",
		Messages: []api.ChatMessage{{Role: "system", Content: "be brief"}, {Role: "user", Content: text}},
		Tools:    []api.Tool{{Name: "look", Description: "look at it", Schema: json.RawMessage(`{"type":"object","properties":{}}`)}},
	}
}

func complete(t *testing.T, b *bus.Bus, req api.Complete) (api.Completion, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var said strings.Builder
	c, err := bus.CallStream[api.Delta, api.Completion](ctx, b, req, func(d api.Delta) error {
		said.WriteString(d.Content)
		return nil
	})
	return c, said.String(), err
}

func TestCompletes(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w := start(t, p, nil)
	c, said, err := complete(t, w.Bus, request("c1", "hello"))
	want := "You said: hello. These are enough words to come in several pieces."
	if err != nil || c.Text != want || said != want || c.Model != "m" || c.Provider != "openai" || c.Finish != "stop" || c.InputTokens == 0 || c.OutputTokens == 0 {
		t.Fatalf("got %+v, pieces %q, %v", c, said, err)
	}
	again, said, err := complete(t, w.Bus, request("c1", "something else"))
	if err != nil || again.Text != want || said != "" || p.calls.Load() != 1 {
		t.Errorf("the same id: %+v, pieces %q, %v, %d calls; want the stored answer", again, said, err, p.calls.Load())
	}
	c, _, err = complete(t, w.Bus, request("c2", "tool"))
	if err != nil || c.Finish != "tool_calls" || len(c.ToolCalls) != 1 || c.ToolCalls[0].Name != "look" || c.ToolCalls[0].Arguments != `{"at":"it"}` {
		t.Errorf("a call: %+v, %v", c, err)
	}
}

func TestAsksAgain(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w := start(t, p, nil)
	for text, want := range map[string]string{"busy": "at last", "broken": "mended"} {
		before := p.calls.Load()
		if c, _, err := complete(t, w.Bus, request("again-"+text, text)); err != nil || c.Text != want || p.calls.Load() != before+2 {
			t.Errorf("%s: %+v, %v after %d calls", text, c, err, p.calls.Load()-before)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w := start(t, p, nil)
	odd := request("f-odd", "hello")
	odd.Task = "gossip"
	nobody := request("f-nobody", "hello")
	nobody.Agent = ""
	for name, c := range map[string]struct {
		req    api.Complete
		code   api.Code
		reason string
	}{
		"a wrong request": {request("f-1", "refused"), api.Invalid, api.ReasonRefused},
		"too long":        {request("f-2", "long"), api.Invalid, api.ReasonTooLong},
		"a wrong key":     {request("f-3", "locked"), api.Unavailable, api.ReasonAuth},
		"an unknown task": {odd, api.Unavailable, api.ReasonNoModel},
		"who pays":        {nobody, api.Invalid, ""},
	} {
		_, _, err := complete(t, w.Bus, c.req)
		if api.CodeOf(err) != c.code || c.reason != "" && api.ReasonOf(err) != c.reason {
			t.Errorf("%s: got %v (%s), want %s %s", name, err, api.ReasonOf(err), c.code, c.reason)
		}
		if err != nil && strings.Contains(err.Error(), "sekret") {
			t.Errorf("%s: the key is in the error: %v", name, err)
		}
	}
	if c, _, err := complete(t, w.Bus, request("f-1", "hello")); err != nil || c.Text == "" {
		t.Errorf("after a failure the id is free: %+v, %v", c, err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w := start(t, p, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := bus.CallStream[api.Delta, api.Completion](ctx, w.Bus, request("x1", "slow"), func(api.Delta) error {
		cancel()
		return nil
	})
	if err == nil {
		t.Fatal("the cancelled call was answered")
	}
	select {
	case <-p.gone:
	case <-time.After(20 * time.Second):
		t.Error("the provider was not told")
	}
}

// TestCancelWhileHolding checks that a hold is ended at once if its caller disconnects
// while treasury makes it: it is released, or the prompt is paid if the request was sent
// before the router noticed.
func TestCancelWhileHolding(t *testing.T) {
	t.Parallel()
	p := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	gone, ended := make(chan struct{}), make(chan string, 1)
	treasury := host.Define("treasury", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(ctx context.Context, m api.Hold) (api.HoldState, error) {
			cancel()
			<-gone
			return api.HoldState{ID: m.ID, Agent: m.Agent, Status: api.HoldActive, Amount: m.Amount}, nil
		}), bus.Reply(func(_ context.Context, m api.Release) (api.HoldState, error) {
			ended <- m.ID
			return api.HoldState{ID: m.ID, Status: api.HoldReleased}, nil
		}), bus.Reply(func(_ context.Context, m api.Settle) (api.HoldState, error) {
			ended <- m.ID
			return api.HoldState{ID: m.ID, Status: api.HoldSettled, Settled: m.Amount}, nil
		}))
	})
	b := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": p.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000",
	}}, router.Service, treasury).Bus
	_, err := bus.CallStream[api.Delta, api.Completion](ctx, b, request("x1", "quiet"), func(api.Delta) error { return nil })
	if err == nil {
		t.Fatal("the cancelled call was answered")
	}
	close(gone)
	select {
	case id := <-ended:
		if id != "x1/0" {
			t.Errorf("%q is ended, want x1/0", id)
		}
	case <-time.After(20 * time.Second):
		t.Error("the hold is not ended")
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w := start(t, p, map[string]string{"ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000,dear=1.5/6/8000"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	all, err := bus.Call[api.Models](ctx, w.Bus, api.ListModels{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]api.Model{}
	for _, m := range all.Models {
		found[m.ID] = m
	}
	if m := found["dear"]; !m.Usable || m.InputPrice != 1_500_000 || m.OutputPrice != 6_000_000 || m.ContextWindow != 8000 {
		t.Errorf("dear: %+v", m)
	}
	if m := found["gpt-5.2"]; m.Usable || m.Lifecycle != api.LifeBaseline {
		t.Errorf("a model of another service: got %+v, want a baseline model that is not usable", m)
	}
	for token, want := range map[string]int{w.Token: 200, "wrong": 401} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.HTTP+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != want || want == 200 && !strings.Contains(string(body), `"id":"dear"`) {
			t.Errorf("token %q: %d %s, %v", token, res.StatusCode, body, err)
		}
	}
	for path, want := range map[string]string{
		"dear": `{"id":"dear","object":"model","created":0,"owned_by":"openai"}`, "a/dear": `"code":"model_not_found"`, "gpt-5.2": `"code":"model_not_found"`,
	} {
		status, _, body := send(t, http.MethodGet, w.HTTP+"/v1/models/"+path, "", "Authorization", w.Token)
		if !strings.Contains(body, want) || (status == http.StatusOK) != (path == "dear") {
			t.Errorf("model %s: got %d %s, want %s", path, status, body, want)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]map[string]string{
		"ANIMA_INFERENCE_ROUTER_MODELS":  {"ANIMA_INFERENCE_ROUTER_MODELS": "m=free"},
		"ANIMA_INFERENCE_ROUTER_WORKERS": {"ANIMA_INFERENCE_ROUTER_WORKERS": "0"},
	} {
		err := router.Service.Check(func(k string) (string, bool) { v, ok := env[k]; return v, ok })
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

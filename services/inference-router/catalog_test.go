package router_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
)

// shop is a server with a list of models that changes.
type shop struct {
	mu     sync.Mutex
	models string // entries of the list
	has    string // the only model that it serves; others get 404
	status int    // of the answer to a request for the list; 0: 200
}

// answer sets the status of the list.
func (s *shop) answer(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *shop) set(models, has string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models, s.has = models, has
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/v1/models":
		w.WriteHeader(cmp.Or(s.status, http.StatusOK))
		fmt.Fprintf(w, `{"data":[%s]}`, s.models)
	case "/v1/chat/completions":
		var body struct {
			Model string `json:"model"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Model != s.has {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":{"message":"model not found","code":"model_not_found"}}`)
			return
		}
		fmt.Fprintf(w, `{"model":%q,"choices":[{"message":{"content":"from %s"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`, s.has, s.has)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func listed(t *testing.T, b *bus.Bus) (map[string]api.Model, []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	all, err := bus.Call[api.Models](ctx, b, api.ListModels{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]api.Model{}
	for _, m := range all.Models {
		found[m.ID] = m
	}
	return found, all.Faults
}

// wish returns a request that names no model.
func wish(id string) api.Complete {
	r := request(id, "hello")
	r.Model = ""
	return r
}

// TestModelsAreReadFromTheServer checks that the listed models of a local server are
// offered without any setting, and are free.
func TestModelsAreReadFromTheServer(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(`{"id":"nomic-embed"},{"id":"one","max_model_len":32768},{"id":"gpt-4.1"}`, "one")
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	b := apptest.Start(t, apptest.Options{Env: map[string]string{"OPENAI_BASE_URL": srv.URL + "/v1"}}, router.Service).Bus
	found, faults := listed(t, b)
	if m := found["one"]; !m.Usable || m.InputPrice != 0 || m.ContextWindow != 32768 || len(faults) > 0 {
		t.Errorf("one: %+v, faults %v", m, faults)
	}
	if m := found["gpt-4.1"]; m.InputPrice != 2_000_000 { // the known price applies: the local server may be a gateway
		t.Errorf("gpt-4.1: %+v, want OpenAI's price", m)
	}
	if m := found["nomic-embed"]; m.Usable {
		t.Errorf("nomic-embed: %+v, want a reason", m)
	}
	if m := found["gpt-5-mini"]; m.Usable {
		t.Errorf("a model is offered that is not listed: %+v", m)
	}
	if c, _, err := complete(t, b, wish("c1")); err != nil || c.Text != "from one" || c.Cost != 0 {
		t.Errorf("got %+v, %v", c, err)
	}
	// The list changes: the call that finds the model missing is answered by the new one.
	s.set(`{"id":"two"}`, "two")
	c, _, err := complete(t, b, wish("c2"))
	if err != nil || c.Text != "from two" {
		t.Errorf("after the change: %+v, %v", c, err)
	}
}

// TestListIsMissing checks that a server that answers 404 to a request for its list has the
// models of the settings, unless its list was read before: then they stay, and the list is
// shown as a fault until it is read again.
func TestListIsMissing(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(`{"id":"one"}`, "one")
	s.answer(http.StatusNotFound)
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	b := apptest.Start(t, apptest.Options{Env: map[string]string{"OPENAI_BASE_URL": srv.URL + "/v1", "ANIMA_INFERENCE_ROUTER_MODELS": "one=0/0/8000"}}, router.Service).Bus
	if found, faults := listed(t, b); !found["one"].Usable || found["one"].Lifecycle != api.LifeOperator || len(faults) != 0 {
		t.Errorf("without a list: got %+v, faults %v; want the model of the settings", found["one"], faults)
	}
	s.set(`{"id":"one"},{"id":"two"}`, "two")
	s.answer(0)
	answerTo[api.Models](t, b, api.RefreshModels{})
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented} {
		s.answer(status)
		answerTo[api.Models](t, b, api.RefreshModels{})
		found, faults := listed(t, b)
		if !found["two"].Usable || len(faults) != 1 || !strings.Contains(faults[0], srv.URL) {
			t.Errorf("status %d after a list: got %+v, faults %v; want the listed model and the fault", status, found["two"], faults)
		}
	}
	s.answer(0)
	answerTo[api.Models](t, b, api.RefreshModels{})
	if found, faults := listed(t, b); !found["two"].Usable || len(faults) != 0 {
		t.Errorf("with the list again: got %+v, faults %v", found["two"], faults)
	}
}

// TestServerComesUpLater checks that the models of a server appear when it starts after
// the router.
func TestServerComesUpLater(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	b := apptest.Start(t, apptest.Options{Env: map[string]string{"OLLAMA_HOST": addr}}, router.Service).Bus
	_, _, err = complete(t, b, wish("c1"))
	if api.ReasonOf(err) != api.ReasonNoModel || !strings.Contains(err.Error(), addr) || !strings.Contains(api.Wire(err).Next, "start the server") {
		t.Errorf("got %v, next %q; want the address and what to do", err, api.Wire(err).Next)
	}
	if _, faults := listed(t, b); len(faults) != 1 || !strings.Contains(faults[0], addr) {
		t.Errorf("faults: %v", faults)
	}
	if ln, err = lc.Listen(t.Context(), "tcp", addr); err != nil {
		t.Fatal(err)
	}
	s := &shop{}
	s.set(`{"id":"late"}`, "late")
	srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: s, ReadHeaderTimeout: time.Second}}
	srv.Start()
	t.Cleanup(srv.Close)
	c, _, err := complete(t, b, wish("c2"))
	if err != nil || c.Text != "from late" || c.Provider != "ollama" {
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestUnknownPricesElsewhere checks that a model of a remote server needs a price, from
// the list or from the settings.
func TestUnknownPricesElsewhere(t *testing.T) {
	t.Parallel()
	s := &shop{}
	s.set(`{"id":"mystery"},{"id":"told"},{"id":"a/priced","pricing":{"prompt":"0.000001","completion":"0.000002"}},{"id":"openai/gpt-5-mini","pricing":{"prompt":"0","completion":"0"}}`, "openai/gpt-5-mini")
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	b := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": srv.URL + "/v1", "ANIMA_INFERENCE_ROUTER_LOCAL": "no", "ANIMA_INFERENCE_ROUTER_MODELS": "told=1/2/8000,wrong=0/0/8000",
	}}, router.Service).Bus
	found, _ := listed(t, b)
	if m := found["mystery"]; m.Usable || !strings.Contains(m.Why, "price unknown") || !strings.Contains(m.Why, "ANIMA_INFERENCE_ROUTER_MODELS") {
		t.Errorf("mystery: %+v", m)
	}
	if m := found["told"]; !m.Usable || m.InputPrice != 1_000_000 || m.ContextWindow != 8000 {
		t.Errorf("told: %+v", m)
	}
	if m := found["a/priced"]; !m.Usable || m.InputPrice != 1_000_000 || m.OutputPrice != 2_000_000 {
		t.Errorf("a/priced: %+v", m)
	}
	if m := found["wrong"]; m.Usable || !strings.Contains(m.Why, "does not list it") {
		t.Errorf("wrong: %+v", m)
	}
	if c, _, err := complete(t, b, wish("c1")); err != nil || c.Model != "openai/gpt-5-mini" { // a model of the matrix, found by OpenRouter's name
		t.Errorf("got %+v, %v", c, err)
	}
}

// TestModelOfTwoProviders checks that of two models with the same name that of the first
// provider is used, unless it cannot be called there.
func TestModelOfTwoProviders(t *testing.T) {
	t.Parallel()
	first, second := &shop{}, &shop{}
	first.set(`{"id":"acme"}`, "acme") // without a price
	second.set(priced, "acme")
	env := map[string]string{"ANIMA_INFERENCE_ROUTER_LOCAL": "no"}
	for name, s := range map[string]*shop{"OPENAI_BASE_URL": first, "ANIMA_INFERENCE_ROUTER_PROVIDERS": second} {
		srv := httptest.NewServer(s)
		t.Cleanup(srv.Close)
		env[name] = srv.URL + "/v1"
	}
	env["ANIMA_INFERENCE_ROUTER_PROVIDERS"] = "second=chat:" + env["ANIMA_INFERENCE_ROUTER_PROVIDERS"]
	w := apptest.Start(t, apptest.Options{Env: env}, router.Service, newBooks().service())
	usable := func() (names []string) {
		for _, m := range answerTo[api.Models](t, w.Bus, api.RefreshModels{}).Models {
			if m.ID == "acme" && m.Usable {
				names = append(names, m.Provider)
			}
		}
		return names
	}
	for i, c := range []struct{ models, want string }{{`{"id":"acme"}`, "second"}, {priced, "openai"}, {"", "second"}} {
		first.set(c.models, "acme")
		if got := usable(); len(got) != 1 || got[0] != c.want {
			t.Errorf("list %d: it can be called at %v, want %s", i, got, c.want)
		}
		call := request(fmt.Sprint("two-", i), "hello")
		call.Model = "acme"
		if answer, _, err := complete(t, w.Bus, call); err != nil || answer.Provider != c.want {
			t.Errorf("list %d: got %+v, %v; want an answer of %s", i, answer, err, c.want)
		}
	}
	if m := answerTo[api.Model](t, w.Bus, api.RemoveModel{Model: "acme", Provider: "openai"}); m.Vanished == 0 {
		t.Errorf("removed: got %+v, want the model that vanished", m)
	}
	if got := metricLine(t, w, `anima_inference_models_vanished{gen_ai_provider_name="openai"`); !strings.HasSuffix(got, " 0") {
		t.Errorf("metric after the removal: got %q, want 0", got)
	}
}

// TestDeadlineWhileListsAreRead checks that a call whose time ends while the lists of models
// are read for it is not made.
func TestDeadlineWhileListsAreRead(t *testing.T) {
	t.Parallel()
	var deadline, calls atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodGet {
			calls.Add(1)
			fmt.Fprint(w, `{"model":"m","choices":[{"message":{"content":"late"},"finish_reason":"stop"}]}`)
			return
		}
		if at := deadline.Load(); at > 0 {
			<-time.After(time.Until(time.UnixMicro(at)))
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		fmt.Fprint(w, `{"data":[]}`)
	}))
	t.Cleanup(srv.Close)
	b := apptest.Start(t, apptest.Options{Env: map[string]string{"OPENAI_BASE_URL": srv.URL + "/v1"}}, router.Service).Bus
	req := wish("late")
	req.Deadline = time.Now().Add(500 * time.Millisecond).UnixMicro()
	deadline.Store(req.Deadline)
	if c, _, err := complete(t, b, req); api.ReasonOf(err) != api.ReasonTimeout || calls.Load() != 0 {
		t.Errorf("got %+v, %v after %d attempts; want the end of its time and no attempt", c, err, calls.Load())
	}
}

package router_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	router "github.com/anima-run/anima/services/inference-router"

	"github.com/anima-run/anima/services/inference-router/internal/health"
)

// failing is an OpenAI-compatible server that answers the n-th attempt, from 1, with fault
// while that returns true.
func failing(t *testing.T, fault func(n int64, out raw) bool) *provider {
	t.Helper()
	h := simulatedModel(t)
	p := &provider{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") || !fault(p.calls.Add(1), raw{w}) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	p.url = srv.URL + "/v1"
	return p
}

// TestTotalOutage checks a provider that fails all calls: the attempts at it are at most
// 1.1 times the calls and the burst of its budget more, each call ends with a typed error
// that says when to repeat it, and calls succeed again when the provider does.
func TestTotalOutage(t *testing.T) {
	t.Parallel()
	const calls, callers = 100, 10
	for name, fault := range map[string]func(raw){
		"503": func(o raw) { o.fail(503, "down") },
		"529": func(o raw) { o.fail(529, "overloaded") },
		"500": func(o raw) { o.fail(500, "oops") },
		"cut": func(raw) { cut() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var up atomic.Bool
			p := failing(t, func(_ int64, out raw) bool {
				if up.Load() {
					return false
				}
				fault(out)
				return true
			})
			w := start(t, p, map[string]string{"ANIMA_INFERENCE_ROUTER_BREAKER": "2s"})
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := range calls / callers {
						_, _, err := ask(t, w.Bus, request(fmt.Sprintf("out-%d-%d", caller, i), "hello"))
						e := api.Wire(err)
						if e.Code != api.Unavailable || e.Reason != api.ReasonProvider && e.Reason != api.ReasonAttempts || e.Reason == api.ReasonProvider && e.RetryAfter <= 0 {
							t.Errorf("got %s %s with RetryAfter %d: %s", e.Code, e.Reason, e.RetryAfter, e.Message)
						}
					}
				})
			}
			all.Wait()
			attempts := p.calls.Load()
			t.Logf("%d attempts for %d calls", attempts, calls)
			if 10*attempts > 11*calls+10*health.Burst {
				t.Errorf("%d attempts for %d calls", attempts, calls)
			}
			up.Store(true)
			late := time.After(30 * time.Second)
			for i, good := 0, 0; ; i++ {
				c, _, err := ask(t, w.Bus, request(fmt.Sprintf("back-%d", i), "hello"))
				if err == nil && c.Text != "" {
					if good++; good == 2 { // the probe, and a call after it
						return
					}
					continue
				}
				select {
				case <-time.After(time.Duration(api.Wire(err).RetryAfter) * time.Millisecond):
				case <-late:
					t.Fatalf("30 s after the outage: %v", err)
				}
			}
		})
	}
}

// TestRetryBudget checks the bound on the attempts for a provider that fails four of five
// attempts, so that its breaker does not open.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	p := failing(t, func(n int64, out raw) bool {
		if n%5 == 0 {
			return false
		}
		out.fail(500, "oops")
		return true
	})
	w := start(t, p, nil)
	const calls = 60
	denied := 0
	for i := range calls {
		_, _, err := ask(t, w.Bus, request(fmt.Sprintf("budget-%d", i), "hello"))
		if e := api.Wire(err); err != nil && strings.Contains(e.Message, "not repeated") {
			if denied++; e.Reason != api.ReasonProvider || e.RetryAfter <= 0 {
				t.Errorf("got %s with RetryAfter %d: %s", e.Reason, e.RetryAfter, e.Message)
			}
		}
	}
	attempts := p.calls.Load()
	t.Logf("%d attempts for %d calls, %d calls not repeated", attempts, calls, denied)
	if 10*attempts > 11*calls+10*health.Burst || attempts < calls+health.Burst || denied == 0 {
		t.Errorf("%d attempts for %d calls, %d calls not repeated", attempts, calls, denied)
	}
}

// TestOpenBreakerGoesOn checks that the next model is called without an attempt at one
// that has failed five times in a row.
func TestOpenBreakerGoesOn(t *testing.T) {
	t.Parallel()
	one := answering(t, func(_ int64, out raw, _ *http.Request) { out.fail(503, "down") })
	two := answeringFor(t, `{"id":"other"}`, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("fine"), chunkStop, chunkDone) })
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": one.url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000", "OLLAMA_HOST": strings.TrimSuffix(two.url, "/v1"),
	}}, router.Service)
	for i := range 10 {
		c, _, err := ask(t, w.Bus, request(fmt.Sprintf("on-%d", i), "hello"))
		if err != nil || c.Text != "fine" || c.Provider != "ollama" {
			t.Fatalf("call %d: got %+v, %v", i, c, err)
		}
	}
	if a, b := one.calls.Load(), two.calls.Load(); a != health.MaxFailures || b != 10 {
		t.Errorf("%d attempts at the provider that fails and %d at the other, want %d and 10", a, b, health.MaxFailures)
	}
}

// TestExplanationHasPauses checks that an explanation passes over a model that calls pass
// over, because its breaker is open or its provider asks to wait, and says why; and that it
// chooses none if calls are refused.
func TestExplanationHasPauses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		calls, status int
		after         string
		why           string
	}{
		"breaker": {health.MaxFailures, 503, "", "provider openai answered with status 503; not called for another "},
		"wait":    {1, 429, "40", "provider openai answered with status 429; not called for another "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := answering(t, func(_ int64, out raw, _ *http.Request) {
				if c.after != "" {
					out.w.Header().Set("Retry-After", c.after)
				}
				out.fail(c.status, "down")
			})
			two := answeringFor(t, `{"id":"other"}`, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("fine"), chunkStop, chunkDone) })
			env := map[string]string{
				"OPENAI_BASE_URL": one.url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000", "ANIMA_INFERENCE_ROUTER_ATTEMPTS": "1",
			}
			alone := apptest.Start(t, apptest.Options{Env: maps.Clone(env)}, router.Service)
			env["OLLAMA_HOST"] = strings.TrimSuffix(two.url, "/v1")
			both := apptest.Start(t, apptest.Options{Env: env}, router.Service)
			for w, chosen := range map[*apptest.World]string{alone: "", both: "other"} {
				before := answerTo[api.Route](t, w.Bus, api.ExplainRoute{Tier: api.TierNormal, Model: "m"})
				if before.Chosen != "m" {
					t.Errorf("before the failures: got %+v, want m", before)
				}
				for i := range c.calls {
					if answer, _, err := ask(t, w.Bus, request(fmt.Sprintf("pause-%d", i), "hello")); err == nil {
						t.Fatalf("got %+v of a provider that fails", answer)
					}
				}
				answer, _, err := ask(t, w.Bus, request("pause", "hello"))
				if (err == nil) != (chosen != "") || answer.Model != chosen {
					t.Fatalf("got %+v, %v; want an answer of %q", answer, err, chosen)
				}
				after := answerTo[api.Route](t, w.Bus, api.ExplainRoute{Tier: api.TierNormal, Model: "m"})
				if m := after.Candidates[0]; after.Chosen != chosen || m.Model != "m" || m.Usable || !strings.HasPrefix(m.Why, c.why) {
					t.Errorf("after the failures: got %+v, want %q and %q of m", after, chosen, c.why)
				}
			}
		})
	}
}

// TestRetryAfterHoldsForAll checks that no caller calls a model before the time that its
// provider gave one of them.
func TestRetryAfterHoldsForAll(t *testing.T) {
	t.Parallel()
	p := failing(t, func(n int64, out raw) bool {
		if n > 1 {
			return false
		}
		out.w.Header().Set("Retry-After", "30")
		out.fail(429, "slow down")
		return true
	})
	w := start(t, p, nil)
	for i := range 5 {
		_, _, err := ask(t, w.Bus, request(fmt.Sprintf("slow-%d", i), "hello"))
		e := api.Wire(err)
		if e.Code != api.Unavailable || e.Reason != api.ReasonProvider || e.RetryAfter < 20_000 || e.RetryAfter > 31_000 {
			t.Errorf("call %d: got %s %s with RetryAfter %d: %s", i, e.Code, e.Reason, e.RetryAfter, e.Message)
		}
		if !strings.Contains(e.Message, "status 429") || strings.Contains(e.Message, "slow down") != (i == 0) {
			t.Errorf("call %d: got %q, want the status, and the words of the provider only for its own caller", i, e.Message)
		}
	}
	if got := p.calls.Load(); got != 1 {
		t.Errorf("%d attempts, want one", got)
	}
}

// TestRefusalsKeepTheBreakerClosed checks that refusals of single requests do not keep
// others from a model.
func TestRefusalsKeepTheBreakerClosed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 403, 404, 413} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			const refused = 2 * health.MaxFailures
			p := failing(t, func(n int64, out raw) bool {
				if n > refused {
					return false
				}
				out.fail(status, "no")
				return true
			})
			w := start(t, p, nil)
			for i := range refused {
				if _, _, err := ask(t, w.Bus, request(fmt.Sprintf("no-%d", i), "hello")); err == nil {
					t.Fatal("got an answer")
				}
			}
			if c, _, err := ask(t, w.Bus, request("yes", "hello")); err != nil || c.Text == "" || p.calls.Load() != refused+1 {
				t.Errorf("got %+v, %v after %d attempts; want an answer after %d", c, err, p.calls.Load(), refused+1)
			}
		})
	}
}

// TestTransportSendsOnce checks that a request is not sent again on another connection
// when the server closes a kept connection after it has received the request.
func TestTransportSendsOnce(t *testing.T) {
	t.Parallel()
	p := failing(t, func(n int64, _ raw) bool {
		if n == 2 {
			cut()
		}
		return false
	})
	w := start(t, p, map[string]string{"ANIMA_INFERENCE_ROUTER_ATTEMPTS": "1"})
	if _, _, err := ask(t, w.Bus, request("kept", "hello")); err != nil {
		t.Fatal(err)
	}
	if c, _, err := ask(t, w.Bus, request("once", "hello")); err == nil || p.calls.Load() != 2 {
		t.Errorf("got %+v, %v after %d requests in all, want an error after 2", c, err, p.calls.Load())
	}
}

// showsOpen reports whether the metrics of a router show an open breaker.
func showsOpen(t *testing.T, w *apptest.World) bool {
	t.Helper()
	res, err := http.Get(w.Ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^anima_inference_breaker\{.*gen_ai_request_model="m".*\} 2$`).Match(page)
}

// TestRoutersShareTheirHealth runs two routers on one NATS server: after the failures of
// calls at one of them, the other one refuses a call without an attempt, with status 503
// and the time to wait, and answers again when the model does.
func TestRoutersShareTheirHealth(t *testing.T) {
	t.Parallel()
	var up atomic.Bool
	p := failing(t, func(_ int64, out raw) bool {
		if !up.Load() {
			out.fail(503, "down")
		}
		return !up.Load()
	})
	server, data := apptest.Server(t), t.TempDir()
	router := func() *apptest.World {
		return apptest.Start(t, apptest.Options{Server: server, Data: data, Env: map[string]string{
			"OPENAI_BASE_URL": p.url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000", "ANIMA_INFERENCE_ROUTER_BREAKER": "10s",
		}}, router.Service)
	}
	one, two := withBalances(t, router()), router()
	post := func(w *apptest.World) (status int, after string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.HTTP+"/v1/chat/completions",
			strings.NewReader(`{"model":"m","user":"lucky","messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+w.Token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode, res.Header.Get("Retry-After")
	}
	for range health.MaxFailures { // some of them are repeated
		if status, _ := post(one); status != http.StatusServiceUnavailable {
			t.Fatalf("got status %d while the provider is down", status)
		}
	}
	late := time.After(30 * time.Second)
	for again := time.Tick(time.Millisecond); !showsOpen(t, two); {
		select {
		case <-again:
		case <-late:
			t.Fatal("the other router does not report an open breaker")
		}
	}
	found, _ := listed(t, one.Bus)
	if m := found["m"]; m.Breaker != "open" || m.BreakerUntil == 0 || !strings.Contains(m.BreakerReason, "503") || !m.Usable {
		t.Errorf("the list of models has %+v, want an open breaker with its end and cause", m)
	}
	status, after := post(two)
	if n, err := strconv.Atoi(after); status != http.StatusServiceUnavailable || err != nil || n < 1 || n > 10 {
		t.Errorf("the other router: got status %d, Retry-After %q; want 503 and up to 10 s", status, after)
	}
	if got := p.calls.Load(); got != health.MaxFailures {
		t.Errorf("%d attempts, want %d, all by the first router", got, health.MaxFailures)
	}
	up.Store(true)
	for _, w := range []*apptest.World{two, one} { // the state of a probe takes a moment to arrive
		late = time.After(30 * time.Second)
		for again := time.Tick(50 * time.Millisecond); ; {
			if status, _ = post(w); status == http.StatusOK {
				break
			}
			select {
			case <-again:
			case <-late:
				t.Fatalf("after the outage: got status %d", status)
			}
		}
	}
}

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/inference-router/openaitest"
	"github.com/anima-run/anima/services/treasury"
)

// spendingServer runs a provider whose answers have as many tokens as the call allows.
func spendingServer(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			openaitest.WriteModels(w, openaitest.Model{}, "m")
			return
		}
		req, err := openaitest.Decode(r.Body, r.ContentLength)
		if err != nil {
			openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
			return
		}
		out := openaitest.NewStream(w, "c", "m", 0)
		out.Text("yes")
		out.Finish("length")
		out.Usage(openaitest.Usage{Input: req.Estimate(), Output: req.MaxTokens})
		out.Done()
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

// TestBudgetVectors checks the vectors V-16 with treasury and the router. An output token
// costs 80 micro-USD and the prompt is free, so that an estimate of 2 cents is 250 tokens, which
// the router does not lower further to fit a limit.
func TestBudgetVectors(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": spendingServer(t), "OPENAI_API_KEY": "key", "ANIMA_TREASURY_FAUCET": "true",
		"ANIMA_INFERENCE_ROUTER_MODELS": "m=0/80/1000000",
	}}, router.Service, treasury.Service)
	const unlimited, perToken = api.Unlimited, 80
	for i, c := range []struct {
		vector  string
		window  api.Window
		limit   api.Micros // of the window when the call is made
		spent   int64      // cents before it, in the same window
		reason  string     // "": the call is made
		waits   bool       // the refusal says when the window opens
		session string
	}{
		{"per-call 1: estimate 2 → budget_exceeded", api.WindowCall, api.Cent, 0, api.ReasonCallLimit, false, "s"},
		{"per-call 2: estimate 2 → ok", api.WindowCall, 2 * api.Cent, 0, "", false, "s"},
		{"hourly 100 with 150 spent → refused", api.WindowHour, 100 * api.Cent, 150, api.ReasonHourLimit, true, "s"},
		{"session 5 with 4 spent and large prompt → refused", api.WindowSession, 5 * api.Cent, 4, api.ReasonSessionLimit, false, "s"},
		{"session 5, 4 spent in another session → ok", api.WindowSession, 5 * api.Cent, 4, "", false, "other"},
		{"day 100 with 150 spent → refused", api.WindowDay, 100 * api.Cent, 150, api.ReasonDayLimit, true, "s"},
		{"0 = unlimited", api.WindowHour, unlimited, 150, "", false, "s"},
	} {
		t.Run(c.vector, func(t *testing.T) {
			t.Parallel()
			agent := fmt.Sprint("payer", i)
			ask := func(id, session string, cents int64) (api.Completion, error) {
				return bus.CallStream[api.Delta, api.Completion](t.Context(), w.Bus, api.Complete{
					ID: agent + id, Agent: agent, Session: session, Turn: id, Task: api.TaskTurn, Tier: api.TierHigh, Model: "m",
					MaxTokens: cents * int64(api.Cent) / perToken, Messages: []api.ChatMessage{{Role: "user", Content: "hello"}},
				}, func(api.Delta) error { return nil })
			}
			money(t, w.Bus, agent)
			limit(t, w.Bus, agent, c.window, 1000*api.Cent)
			for n := int64(0); n < c.spent; {
				cents := min(c.spent-n, 15) // 1,875 tokens, within the limit of the cell
				if _, err := ask(fmt.Sprint("/before", n), "s", cents); err != nil {
					t.Fatalf("before: %v", err)
				}
				n += cents
			}
			limit(t, w.Bus, agent, c.window, c.limit)
			got, err := ask("/call", c.session, 2)
			e := api.Wire(err)
			switch {
			case c.reason == "":
				if err != nil || got.Cost != 2*api.Cent {
					t.Errorf("got a cost of %s, %v; want 2 cents", got.Cost, err)
				}
			case err == nil || e.Code != api.Denied || e.Reason != c.reason || (e.RetryAfter > 0) != c.waits || e.RetryAfter > (24*time.Hour).Milliseconds():
				t.Errorf("got %s, %v; want Denied with %s and a time to wait: %v", got.Cost, err, c.reason, c.waits)
			}
		})
	}
	// A balance that cannot be read is not a low one: the call is routed like that of a
	// normal agent, and treasury decides whether it is paid.
	money(t, w.Bus, "unread")
	answer, err := bus.CallStream[api.Delta, api.Completion](t.Context(), w.Bus, api.Complete{
		ID: "unread", Agent: "unread", Session: "s", Turn: "t", Task: api.TaskTurn, Tier: api.TierUnknown, Model: "m", MaxTokens: 250,
		Messages: []api.ChatMessage{{Role: "user", Content: "hello"}},
	}, func(api.Delta) error { return nil })
	if err != nil || answer.Model != "m" {
		t.Errorf("unknown balance: got %+v, %v; want an answer of m", answer, err)
	}
}

// money opens an account with 100 dollars.
func money(t *testing.T, b *bus.Bus, agent string) {
	t.Helper()
	if _, err := bus.Call[api.Account](t.Context(), b, api.OpenAccount{Agent: agent}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Call[api.Posted](t.Context(), b, api.Deposit{ID: "birth-" + agent, Agent: agent, Amount: 100 * api.Dollar, Source: "faucet"}); err != nil {
		t.Fatal(err)
	}
}

// limit sets the limit of one window.
func limit(t *testing.T, b *bus.Bus, agent string, window api.Window, amount api.Micros) {
	t.Helper()
	now, err := bus.Call[api.AgentLimits](t.Context(), b, api.GetLimits{Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	_, err = bus.Call[api.AgentLimits](t.Context(), b, api.SetLimits{
		ID: fmt.Sprintf("%s-%d", agent, now.Revision), Agent: agent, Revision: now.Revision,
		Limits: api.Limits{Windows: []api.WindowLimit{{Window: window, Category: "inference", Amount: &amount}}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

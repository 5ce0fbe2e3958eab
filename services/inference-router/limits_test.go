package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	router "github.com/anima-run/anima/services/inference-router"
)

// TestLimits checks that a refusal of treasury for a limit of the agent arrives at the
// callers with its reason: over NATS as the error of treasury, over HTTP as the error
// object of the protocol. A window that opens again has the status 429 and the time to
// wait, and a limit that does not has 402.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	b, desk := newBooks(), &keyDesk{}
	w := withBalances(t, apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": s.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000",
	}}, router.Service, b.service(), desk.service()))
	key := desk.issue("lucky", api.KeyScopes()...)
	for _, c := range []struct {
		reason     string
		after      int64 // ms until the window opens
		status     int
		retryAfter string
	}{
		{api.ReasonCallLimit, 0, http.StatusPaymentRequired, ""},
		{api.ReasonTurnLimit, 0, http.StatusPaymentRequired, ""},
		{api.ReasonSessionLimit, 0, http.StatusPaymentRequired, ""},
		{api.ReasonLineageLimit, 0, http.StatusPaymentRequired, ""},
		{api.ReasonInsufficient, 0, http.StatusPaymentRequired, ""},
		{api.ReasonLimit, 0, http.StatusPaymentRequired, ""}, // the ceiling of the tier
		{api.ReasonHourLimit, 89_500, http.StatusTooManyRequests, "90"},
		{api.ReasonDayLimit, 7_200_000, http.StatusTooManyRequests, "7200"},
		{api.ReasonVelocity, 1, http.StatusTooManyRequests, "1"},
	} {
		refusal := &api.Error{Code: api.Denied, Reason: c.reason, Message: "the payment exceeds a limit", Next: "wait", RetryAfter: c.after}
		b.refusing(func(m api.Message) error {
			if _, ok := m.(api.Hold); ok {
				return refusal
			}
			return nil
		})
		for route, body := range modelRoutes("m") {
			for _, streamed := range []string{body, strings.Replace(body, "{", `{"stream":true,`, 1)} {
				got := fetch(t, w, route, streamed, "Authorization", key)
				word, code := "insufficient_quota", c.reason
				if c.reason == api.ReasonInsufficient {
					code = "insufficient_quota"
				}
				if strings.Contains(route, "/anthropic/") {
					word, code = map[int]string{402: "billing_error", 429: "rate_limit_error"}[c.status], ""
				}
				if got.status != c.status || got.Error.Type != word || got.Error.Code != code || got.header.Get("Retry-After") != c.retryAfter {
					t.Errorf("%s, %s: got %d, Retry-After %q, %s; want %d, %q, type %s, code %q",
						c.reason, route, got.status, got.header.Get("Retry-After"), got.body, c.status, c.retryAfter, word, code)
				}
				// The official clients repeat a 429 at once or after Retry-After; a call that
				// no repetition can pay for must not be repeated.
				if want := "false"; api.OverLimit(c.reason) && got.header.Get("X-Should-Retry") != want {
					t.Errorf("%s, %s: got X-Should-Retry %q, want %s", c.reason, route, got.header.Get("X-Should-Retry"), want)
				}
				if !strings.Contains(got.Error.Message, refusal.Message) || !strings.Contains(got.Error.Message, "wait") {
					t.Errorf("%s, %s: got %q, want the cause and what to do", c.reason, route, got.Error.Message)
				}
			}
		}
		_, _, err := ask(t, w.Bus, request("limit-"+c.reason, "hello"))
		if e := api.Wire(err); err == nil || e.Code != api.Denied || e.Reason != c.reason || e.RetryAfter != c.after {
			t.Errorf("%s over NATS: got %v, want %v", c.reason, err, refusal)
		}
	}
	if n := s.calls.Load(); n != 0 {
		t.Errorf("got %d calls of the provider without a hold, want none", n)
	}
}

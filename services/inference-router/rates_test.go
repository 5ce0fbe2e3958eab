package router_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestRates checks that the second call of a minute is not made when the provider allows
// one, and that its caller is told when to repeat it.
func TestRates(t *testing.T) {
	t.Parallel()
	up := serve(t)
	w := start(t, up, map[string]string{"ANIMA_INFERENCE_ROUTER_RATES": "openai=1/0"})
	if _, _, err := complete(t, w.Bus, request("r1", "hello")); err != nil {
		t.Fatal(err)
	}
	_, _, err := complete(t, w.Bus, request("r2", "hello"))
	if retry := api.Wire(err).RetryAfter; api.ReasonOf(err) != api.ReasonProvider || retry < 30_000 || retry > 60_000 {
		t.Errorf("got %v, want a provider error with a time to wait of about a minute, not %d ms", err, retry)
	}
	if n := up.calls.Load(); n != 1 {
		t.Errorf("the provider got %d calls, want 1", n)
	}
}

// TestTokenRate checks that the rate of tokens counts what the calls used: a first call
// takes its output limit, of which the answer uses little.
func TestTokenRate(t *testing.T) {
	t.Parallel()
	up := serve(t)
	w := start(t, up, map[string]string{"ANIMA_INFERENCE_ROUTER_RATES": "openai=0/5000"})
	for _, id := range []string{"t1", "t2", "t3"} {
		req := request(id, "hello")
		req.MaxTokens = 4000
		if _, _, err := complete(t, w.Bus, req); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
}

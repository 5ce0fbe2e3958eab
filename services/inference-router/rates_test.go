package router_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"

	"github.com/anima-run/anima/services/inference-router/internal/health"
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

// TestTokensOfAnEndedAttempt checks that the rate of tokens counts the prompt of an attempt
// that ended before an answer, because the provider has counted it.
func TestTokensOfAnEndedAttempt(t *testing.T) {
	t.Parallel()
	s := answering(t, func(n int64, out raw, r *http.Request) {
		if n == 1 {
			hang(r)
			return
		}
		out.events(chunkText("fine"), chunkStop, chunkDone)
	})
	w := start(t, s.provider, map[string]string{"ANIMA_INFERENCE_ROUTER_RATES": "openai=0/6000"})
	long := func(id string) api.Complete {
		req := request(id, strings.Repeat("word ", 4000)) // 5,000 tokens
		req.MaxTokens = 100
		return req
	}
	ended := long("ended")
	ended.Deadline = time.Now().Add(300 * time.Millisecond).UnixMicro()
	if c, _, err := ask(t, w.Bus, ended); api.ReasonOf(err) != api.ReasonTimeout {
		t.Fatalf("got %+v, %v; want the end of its time", c, err)
	}
	_, _, err := ask(t, w.Bus, long("next"))
	if retry := api.Wire(err).RetryAfter; api.ReasonOf(err) != api.ReasonProvider || retry < 30_000 || s.calls.Load() != 1 {
		t.Errorf("got %v after %d attempts, want a provider error with a time to wait of more than 30 s, not %d ms", err, s.calls.Load(), retry)
	}
}

// refusePoor has the books refuse the holds of the agent poor.
func refusePoor(b *books) {
	b.refusing(func(m api.Message) error {
		if h, ok := m.(api.Hold); ok && h.Agent == "poor" {
			return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "too little is left"}
		}
		return nil
	})
}

// askPoor makes a call of the agent poor, which has to be refused for its credits.
func askPoor(t *testing.T, w *apptest.World, id string) {
	t.Helper()
	req := request(id, "hello")
	req.Agent = "poor"
	if _, _, err := ask(t, w.Bus, req); api.ReasonOf(err) != api.ReasonInsufficient {
		t.Fatalf("%s: got %v, want %s", id, err, api.ReasonInsufficient)
	}
}

// TestRefusedCallsTakeNoRate checks that calls that treasury refuses leave the rate of
// requests to others.
func TestRefusedCallsTakeNoRate(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("fine"), chunkStop, chunkDone) })
	w, b := paid(t, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_RATES": "openai=2/0"})
	refusePoor(b)
	for i := range 3 {
		askPoor(t, w, fmt.Sprint("poor-", i))
	}
	if c, _, err := ask(t, w.Bus, request("rich", "hello")); err != nil || c.Text != "fine" {
		t.Errorf("after calls that were not made: got %+v, %v", c, err)
	}
}

// TestRefusedCallsPayNoRetries checks that calls that treasury refuses do not fill the budget
// of retries of a provider that fails four of five attempts.
func TestRefusedCallsPayNoRetries(t *testing.T) {
	t.Parallel()
	s := answering(t, func(n int64, out raw, _ *http.Request) {
		if n%5 == 0 {
			out.events(chunkText("fine"), chunkStop, chunkDone)
			return
		}
		out.fail(http.StatusInternalServerError, "oops")
	})
	w, b := paid(t, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000"})
	refusePoor(b)
	const calls = 20
	answered := 0
	for i := range calls {
		for n := range health.Burst {
			askPoor(t, w, fmt.Sprintf("poor-%d-%d", i, n))
		}
		if _, _, err := ask(t, w.Bus, request(fmt.Sprint("rich-", i), "hello")); err == nil {
			answered++
		}
	}
	got := s.calls.Load()
	t.Logf("%d attempts for %d calls, of which %d are answered", got, calls, answered)
	if 10*got > 11*calls+10*health.Burst {
		t.Errorf("%d attempts for %d calls", got, calls)
	}
}

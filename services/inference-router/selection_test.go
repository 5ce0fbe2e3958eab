package router_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestExplainedRouteIsCalled checks that the model of an explanation is the model that a
// call with the same request uses, and that its cost is the amount of the hold.
func TestExplainedRouteIsCalled(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	w, b := paid(t, s.url, nil)
	for _, c := range []struct {
		id, requested, chosen, why string
		max                        int64
	}{
		{"e1", "", "m", "", 0},
		{"e2", "n", "n", "", 100},
		{"e3", "gpt-9", "m", "gpt-9: not registered", 0},
	} {
		call := request(c.id, "hello")
		call.Model, call.MaxTokens, call.Tools = c.requested, c.max, nil
		const prompt = 4 + 2 + 4 + 2 // "be brief" and "hello", with a message's tokens each
		route, err := bus.Call[api.Route](t.Context(), w.Bus, api.ExplainRoute{Tier: call.Tier, Model: c.requested, PromptTokens: prompt, MaxTokens: c.max})
		if err != nil || route.Chosen != c.chosen || route.Available != -1 || c.why != "" && (route.Candidates[0].Model+": "+route.Candidates[0].Why) != c.why {
			t.Fatalf("%s: got %+v, %v; want %s", c.id, route, err, c.chosen)
		}
		answer, _, err := ask(t, w.Bus, call)
		if err != nil || answer.Model != route.Chosen {
			t.Errorf("%s: got %s, %v; want %s as explained", c.id, answer.Model, err, route.Chosen)
		}
		b.mu.Lock()
		held := b.holds[c.id+"/0"].Amount
		b.mu.Unlock()
		for _, m := range route.Candidates {
			if m.Model == route.Chosen && m.Cost != held {
				t.Errorf("%s: explained %s, held %s", c.id, m.Cost, held)
			}
		}
	}
	for name, m := range map[string]api.ExplainRoute{
		"task": {Task: "gossip"}, "tier": {Tier: "rich"}, "tokens": {MaxTokens: -1},
	} {
		if _, err := bus.Call[api.Route](t.Context(), w.Bus, m); api.CodeOf(err) != api.Invalid {
			t.Errorf("a wrong %s: got %v, want %s", name, err, api.Invalid)
		}
	}
}

// TestFewerTokensBeforeRefusal checks that a call whose hold is refused by treasury is made
// with a lower output limit once no other model is left.
func TestFewerTokensBeforeRefusal(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	w, b := paid(t, s.url, nil)
	var asked []string
	b.refusing(func(m api.Message) error {
		if h, ok := m.(api.Hold); ok {
			asked = append(asked, h.ID)
			if h.Amount > 5000 { // of micro-USD: 4,096 tokens of output cost 16,384, and 1,024 cost 4,096
				return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "too little is left"}
			}
		}
		return nil
	})
	call := request("fewer", "hello")
	call.Tools = nil
	answer, _, err := ask(t, w.Bus, call)
	if err != nil || answer.Model != "m" || s.calls.Load() != 1 {
		t.Errorf("got %+v, %v after %d calls, want an answer of m", answer, err, s.calls.Load())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff("fewer/0 fewer/1 fewer/0", strings.Join(asked, " ")); diff != "" {
		t.Errorf("holds (-want +got):\n%s", diff)
	}
}

// TestRefusedKeyEndsDegradation checks that a model whose hold was refused is not called with
// fewer tokens after its provider has refused the key.
func TestRefusedKeyEndsDegradation(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.fail(http.StatusUnauthorized, "who are you") })
	w, b := paid(t, s.url, nil)
	b.refusing(func(m api.Message) error {
		if h, ok := m.(api.Hold); ok && strings.HasSuffix(h.ID, "/0") && h.Amount > 5000 {
			return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "too little is left"}
		}
		return nil
	})
	if c, _, err := ask(t, w.Bus, request("key", "hello")); api.ReasonOf(err) != api.ReasonInsufficient || s.calls.Load() != 1 {
		t.Errorf("got %+v, %v after %d calls; want the refusal of the hold after one", c, err, s.calls.Load())
	}
}

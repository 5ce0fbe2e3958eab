package loop

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// TestCheckBalances tests that a check of balances ends at a balance that is unavailable,
// and that the next check continues after that agent.
func TestCheckBalances(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	var mu sync.Mutex
	var asked []string
	available := true
	serve(t, b, bus.Reply(func(_ context.Context, m api.GetBalance) (api.Balance, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, m.Agent)
		if !available {
			return api.Balance{}, &api.Error{Code: api.Unavailable, Message: "the database is down"}
		}
		return api.Balance{Agent: m.Agent}, nil
	}))
	h := onStore(t, b)
	for _, id := range []string{"a", "b", "c"} {
		h.apply(t, id, false)
		if _, err := h.store.ApplyBalance(t.Context(), id, 0, deathAfter, h.now().UnixMicro()); err != nil {
			t.Fatal(err)
		}
	}
	after := ""
	for _, step := range []struct {
		name      string
		available bool
		want      []string
	}{
		{"all", true, []string{"a", "b", "c"}},
		{"treasury is down", false, []string{"a"}},
		{"still down", false, []string{"b"}},
		{"up again", true, []string{"c"}},
		{"from the start", true, []string{"a", "b", "c"}},
	} {
		mu.Lock()
		asked, available = nil, step.available
		mu.Unlock()
		after = h.checkBalances(t.Context(), after)
		if !slices.Equal(asked, step.want) {
			t.Errorf("%s: asked for %v, want %v", step.name, asked, step.want)
		}
	}
}

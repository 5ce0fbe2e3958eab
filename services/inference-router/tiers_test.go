package router_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	router "github.com/anima-run/anima/services/inference-router"
)

// TestTierOfSettlement checks that calls over HTTP do not ask treasury for the balance
// again after a settlement, and that calls without a key have rows of their own.
func TestTierOfSettlement(t *testing.T) {
	t.Parallel()
	b := newBooks()
	var balances atomic.Int64
	asked := host.Define("social", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(_ context.Context, m api.GetBalance) (api.Balance, error) {
			balances.Add(1)
			return api.Balance{Agent: m.Agent, Available: api.Dollar, Tier: api.TierNormal}, nil
		}))
	})
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": answersAtOnce(t).url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000,n=1/4/128000",
	}}, router.Service, b.service(), asked)
	const calls = 5
	for i := range calls {
		status, body := post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "Anima-Agent", "lucky")
		if status != http.StatusOK {
			t.Fatalf("call %d: status %d: %s", i, status, body)
		}
	}
	// More than one request for the balance is allowed: the machine may be slow.
	if n := balances.Load(); n < 1 || n == calls {
		t.Errorf("%d requests for the balance for %d calls, want one for those of %s", n, calls, "2 s")
	}
	if settled, _, active, _ := b.sums(); settled != calls || active != 0 {
		t.Errorf("%d calls are settled and %d holds are active, want %d and none", settled, active, calls)
	}
}

package treasury_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor/executortest"

	"github.com/anima-run/anima/services/treasury"
	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
	"github.com/anima-run/anima/services/treasury/internal/conway/conwaytest"
)

// TestTriggeredTopUps checks requests of other services to buy credits, on a dev chain: one
// that depends on the tier, many at the same time after a refusal, which buy once, and
// those that cannot be fulfilled.
func TestTriggeredTopUps(t *testing.T) {
	t.Parallel()
	w, _ := behind(t, chaintest.Start(t, devchain.Options{}), map[string]string{"ANIMA_TREASURY_TOPUP_URL": "self"})
	fund(t, w.Bus, api.Dollar)
	if got := ask[api.TopUpTriggered](t, w.Bus, api.TriggerTopUp{Agent: "lucky", Cause: "test", Refused: true}); got.Bought || !strings.Contains(got.Why, "$0.00 of USDC") {
		t.Errorf("without USDC: got %+v, want nothing bought", got)
	}
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 12 * api.Dollar})
	if got := ask[api.TopUpTriggered](t, w.Bus, api.TriggerTopUp{Agent: "lucky", Cause: "test"}); got.Bought || got.Credits != api.Dollar || got.Why == "" {
		t.Errorf("at the tier normal: got %+v, want nothing bought", got)
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			got, err := bus.Call[api.TopUpTriggered](t.Context(), w.Bus, api.TriggerTopUp{Agent: "lucky", Cause: "test", Refused: true})
			if err != nil || !got.Bought || got.Credits != 6*api.Dollar {
				t.Errorf("refused: got %+v, %v; want the credits of one purchase", got, err)
			}
		})
	}
	all.Wait()
	ps := ask[api.Payments](t, w.Bus, api.ListPayments{Agent: "lucky"}).Payments
	if b := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"}); len(ps) != 1 || b.Available != 6*api.Dollar || b.USDC != 7*api.Dollar {
		t.Errorf("after 16 requests: got %d payments and %+v, want one", len(ps), b)
	}
	// The purchase is an exchange: only the dollar of credits and the USDC came from outside.
	if e := ask[api.Economics](t, w.Bus, api.GetEconomics{Agents: []string{"lucky"}}); len(e.Spent) != 0 || e.Exchange != 0 || e.Profit != 0 || e.Deposits != 13*api.Dollar || e.Runway != -1 {
		t.Errorf("report: got %+v, want deposits of 13 dollars and nothing spent", e)
	}
	refused(t, w.Bus, api.TriggerTopUp{Agent: "nobody", Cause: "test"}, api.NotFound, "")
	refused(t, w.Bus, api.TopUp{ID: "three", Agent: "nobody", USD: 5}, api.NotFound, "")
	refused(t, w.Bus, api.TriggerTopUp{Agent: "lucky"}, api.Invalid, "")
	refused(t, w.Bus, api.TriggerTopUp{Agent: "lucky", Cause: "test", Missing: -1}, api.Invalid, "")
	alone := start(t, apptest.Options{Env: development})
	refused(t, alone.Bus, api.TriggerTopUp{Agent: "lucky", Cause: "test"}, api.Denied, api.ReasonNoChain)
}

// TestSandboxBuysCredits checks that an order of a sandbox that the agent cannot pay buys
// the missing credits with USDC of the dev chain, and is then made once; and that one that
// costs more than the wallet has is refused.
func TestSandboxBuysCredits(t *testing.T) {
	t.Parallel()
	p, s := chaintest.Start(t, devchain.Options{}), conwaytest.Start(t, 100_000)
	env := maps.Clone(development)
	maps.Copy(env, map[string]string{
		"ANIMA_TREASURY_RPC_URL": p.URL.Reveal(), "ANIMA_TREASURY_NETWORK": "dev", "ANIMA_TREASURY_CHAIN_POLL": "10ms", "ANIMA_TREASURY_TOPUP_URL": "self",
		"ANIMA_TREASURY_CONWAY_URL": s.URL, "ANIMA_TREASURY_CONWAY_KEY": conwaytest.Key,
	})
	w := apptest.Start(t, apptest.Options{Env: env}, treasury.Service, executortest.Policy())
	fund(t, w.Bus, api.Dollar)
	rent := func(turn, args string) (string, error) {
		t.Helper()
		m := executortest.Allowed(t, api.Invocation{Agent: "lucky", Turn: turn, Tool: "create_sandbox", Args: json.RawMessage(args)})
		got, err := bus.Call[api.Returned](t.Context(), w.Bus, api.CallTreasuryTool{Invocation: m})
		return got.Text, err
	}
	if text, err := rent("k0", `{}`); err == nil || !strings.Contains(err.Error(), "available and needs $5.00") {
		t.Errorf("without USDC: got %q, %v; want what is missing", text, err)
	}
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 9 * api.Dollar})
	var all sync.WaitGroup
	for range 4 { // the same call, repeated and at the same time
		all.Go(func() {
			if text, err := rent("k1", `{}`); err != nil || !strings.Contains(text, "rented the sandbox sb_1") {
				t.Errorf("rent: got %q, %v", text, err)
			}
		})
	}
	all.Wait()
	ps := ask[api.Payments](t, w.Bus, api.ListPayments{Agent: "lucky"}).Payments
	b := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"})
	if _, boxes, _ := s.Balance(); len(ps) != 1 || boxes != 1 || b.Available != api.Dollar || b.Held != 0 || b.USDC != 4*api.Dollar {
		t.Errorf("got %d payments, %d sandboxes and %+v; want one of each, and a dollar left", len(ps), boxes, b)
	}
	if text, err := rent("k2", `{}`); err == nil || !strings.Contains(fmt.Sprint(err), "available and needs $5.00") {
		t.Errorf("with too little USDC: got %q, %v; want what is missing", text, err)
	}
	if r := ask[api.LedgerReport](t, w.Bus, api.VerifyLedger{}); !r.OK {
		t.Errorf("verify: got %+v, want no fault", r)
	}
}

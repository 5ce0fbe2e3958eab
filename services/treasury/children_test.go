package treasury_test

import (
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
)

// family opens accounts for lucky, its child kid, and the stranger bob.
func family(t *testing.T, b *bus.Bus) {
	t.Helper()
	fund(t, b, 4*api.Dollar)
	for _, agent := range []string{"kid", "bob"} {
		ask[api.Account](t, b, api.OpenAccount{Agent: agent})
	}
	adopt(t, b, "lucky", 0)
}

func adopt(t *testing.T, b *bus.Bus, parent string, revision int64) {
	t.Helper()
	ask[api.AgentLimits](t, b, api.SetLimits{ID: fmt.Sprint("adopt-", revision), Agent: "kid", Limits: api.Limits{Parent: parent}, Revision: revision})
}

// TestFundChildTool gives credits to a child once for a call, at most half of them, and
// nothing to an agent that is not a child.
func TestFundChildTool(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, executortest.Policy()).Bus
	family(t, b)
	give := func(index int, child string, cents int) api.CallTreasuryTool {
		return api.CallTreasuryTool{Invocation: allowedAt(t, index, "fund_child", fmt.Sprintf(`{"child_id":%q,"amount_cents":%d}`, child, cents))}
	}
	for range 2 {
		if got := ask[api.Returned](t, b, give(0, "Kid", 150)).Text; got != "gave $1.50 to kid; $2.50 are left" {
			t.Errorf("said %q", got)
		}
	}
	refused(t, b, give(1, "bob", 10), api.Denied, api.ReasonNoParent)
	refused(t, b, give(2, "stranger", 10), api.Denied, api.ReasonNoParent)
	refused(t, b, give(3, "lucky", 10), api.Denied, api.ReasonNoParent)
	refused(t, b, give(4, "kid", 126), api.Denied, "")
	refused(t, b, give(5, "kid", 300), api.Denied, api.ReasonInsufficient)
	refused(t, b, give(6, "../kid", 10), api.Denied, api.ReasonNoParent)
	refused(t, b, give(0, "kid", 10), api.Conflict, "")
	// The limits of the parent apply.
	ask[api.AgentLimits](t, b, api.SetLimits{
		ID: "limit", Agent: "lucky", Limits: api.Limits{Windows: []api.WindowLimit{{Category: api.CategoryTransfer, Window: api.WindowCall, Amount: new(20 * api.Cent)}}},
	})
	refused(t, b, give(7, "kid", 21), api.Denied, api.ReasonCallLimit)
	adopt(t, b, "bob", 1)
	refused(t, b, give(8, "kid", 10), api.Denied, api.ReasonNoParent)
	for agent, want := range map[string]api.Micros{"lucky": 250 * api.Cent, "kid": 150 * api.Cent, "bob": 0} {
		if got := ask[api.Balance](t, b, api.GetBalance{Agent: agent}); got.Available != want || got.Held != 0 {
			t.Errorf("%s has %s and %s held, want %s", agent, got.Available, got.Held, want)
		}
	}
}

// TestReturnCredits makes returns that a child has signed: once each, also when they are
// presented again or at the same time, and none that the child has not signed like this.
func TestReturnCredits(t *testing.T) {
	t.Parallel()
	w := start(t, apptest.Options{})
	b := w.Bus
	family(t, b)
	ask[api.Posted](t, b, api.Deposit{ID: "kid", Agent: "kid", Amount: 3 * api.Dollar, Source: "faucet"})
	sign := func(id string, amount api.Micros) api.ReturnCredits {
		return ask[api.ReturnCredits](t, b, api.SignReturn{ID: id, Child: "Kid", Amount: amount})
	}
	one := sign("one", api.Dollar)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			got, err := bus.Call[api.CreditsReturned](t.Context(), b, one)
			if err != nil || got.Parent != "lucky" || got.Left != 2*api.Dollar {
				t.Errorf("return: got %+v, %v", got, err)
			}
		})
	}
	all.Wait()

	change := func(r api.ReturnCredits, f func(*api.ReturnCredits)) api.ReturnCredits { f(&r); return r }
	fresh := sign("two", api.Dollar)
	ask[api.AgentLimits](t, b, api.SetLimits{ID: "bob", Agent: "bob", Limits: api.Limits{Parent: "lucky"}})
	bob := ask[api.ReturnCredits](t, b, api.SignReturn{ID: "two", Child: "bob", Amount: api.Dollar})
	for what, m := range map[string]api.ReturnCredits{
		"another amount":                        change(fresh, func(r *api.ReturnCredits) { r.Amount++ }),
		"another id":                            change(fresh, func(r *api.ReturnCredits) { r.ID = "three" }),
		"another signer":                        change(fresh, func(r *api.ReturnCredits) { r.Signature = bob.Signature }),
		"another child":                         change(fresh, func(r *api.ReturnCredits) { r.Child = "bob" }),
		"a later window":                        change(fresh, func(r *api.ReturnCredits) { r.ValidBefore++ }),
		"no signature":                          change(fresh, func(r *api.ReturnCredits) { r.Signature = "" }),
		"a long signature":                      change(fresh, func(r *api.ReturnCredits) { r.Signature += "00" }),
		"the same id, another amount, unsigned": change(one, func(r *api.ReturnCredits) { r.Amount = 1 }),
		"a window of a year":                    change(fresh, func(r *api.ReturnCredits) { r.ValidBefore += 365 * 86400 }),
	} {
		if _, err := bus.Call[api.CreditsReturned](t.Context(), b, m); api.ReasonOf(err) != api.ReasonNotSigned {
			t.Errorf("%s: got %v, want it refused", what, err)
		}
	}
	refused(t, b, sign("one", 2*api.Dollar), api.Conflict, "") // signed, and its id is taken
	refused(t, b, sign("too much", 3*api.Dollar), api.Denied, api.ReasonInsufficient)
	refused(t, b, change(fresh, func(r *api.ReturnCredits) { r.ValidBefore = 1 }), api.Denied, api.ReasonExpired)
	refused(t, b, api.SignReturn{ID: "x", Child: "lucky", Amount: 1}, api.Denied, api.ReasonNoParent)
	refused(t, b, api.SignReturn{ID: "x", Child: "nobody", Amount: 1}, api.NotFound, "")
	refused(t, b, api.SignReturn{ID: "", Child: "kid", Amount: 1}, api.Invalid, "")
	refused(t, b, api.SignReturn{ID: "x", Child: "kid"}, api.Invalid, "")
	adopt(t, b, "bob", 1) // a return to the earlier parent
	refused(t, b, fresh, api.Denied, api.ReasonNotSigned)
	for agent, want := range map[string]api.Micros{"lucky": 5 * api.Dollar, "kid": 2 * api.Dollar} {
		if got := ask[api.Balance](t, b, api.GetBalance{Agent: agent}); got.Available != want || got.Held != 0 {
			t.Errorf("%s has %s and %s held, want %s", agent, got.Available, got.Held, want)
		}
	}
	if r := ask[api.LedgerReport](t, b, api.VerifyLedger{}); !r.OK {
		t.Errorf("verify: %+v", r)
	}
}

// TestCheckUSDCTool reads the balance of the chain with its block; while the chain cannot
// be read it says so, and never 0.
func TestCheckUSDCTool(t *testing.T) {
	t.Parallel()
	p := chaintest.Start(t, devchain.Options{Interval: -1})
	env := maps.Clone(development)
	maps.Copy(env, map[string]string{
		"ANIMA_TREASURY_RPC_URL": p.URL.Reveal(), "ANIMA_TREASURY_NETWORK": "dev", "ANIMA_TREASURY_CHAIN_POLL": "10ms",
	})
	b := apptest.Start(t, apptest.Options{Env: env}, treasury.Service, executortest.Policy()).Bus
	fund(t, b, api.Dollar)
	call := func(tool, args string) api.CallTreasuryTool {
		return api.CallTreasuryTool{Invocation: allowed(t, tool, args)}
	}
	p.Set(chaintest.Refuses)
	refused(t, b, call("check_usdc_balance", `{}`), api.Unavailable, api.ReasonChain)
	p.Set(chaintest.Works)
	w := ask[api.FundedUSDC](t, b, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 5 * api.Dollar})
	said := ""
	for !strings.Contains(said, "$5.00 of USDC on dev") {
		said = ask[api.Returned](t, b, call("check_usdc_balance", `{}`)).Text
	}
	if !strings.Contains(said, w.Address) || !strings.Contains(said, "at block ") || !strings.HasSuffix(said, "; the ledger has $5.00, of which $0.00 is held") {
		t.Errorf("said %q", said)
	}
	p.Set(chaintest.Refuses)
	for !strings.HasPrefix(said, "the chain cannot be read now") {
		said = ask[api.Returned](t, b, call("check_usdc_balance", `{}`)).Text
	}
	if !strings.Contains(said, "had $5.00 of USDC") || strings.Contains(said, chaintest.Password) {
		t.Errorf("said %q, want the last known balance without the address of the RPC", said)
	}
	refused(t, b, call("topup_credits", `{"amount_usd":5}`), api.Denied, api.ReasonNoChain) // no seller
}

// TestAbsentTools checks that each tool that needs what is not configured says so.
func TestAbsentTools(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, executortest.Policy()).Bus
	fund(t, b, api.Dollar)
	for tool, args := range map[string]string{
		"check_usdc_balance": `{}`, "topup_credits": `{"amount_usd":5}`, "x402_fetch": `{"url":"https://example.com"}`,
		"create_sandbox": `{}`, "list_sandboxes": `{}`, "delete_sandbox": `{"sandbox_id":"a"}`, "expose_port": `{"port":80}`, "remove_port": `{"port":80}`,
		"search_domains": `{"query":"a"}`, "register_domain": `{"domain":"a.com"}`, "manage_dns": `{"action":"list","domain":"a.com"}`,
	} {
		_, err := bus.Call[api.Returned](t.Context(), b, api.CallTreasuryTool{Invocation: allowed(t, tool, args)})
		if e := api.Wire(err); e == nil || e.Code != api.Denied || e.Next == "" {
			t.Errorf("%s: got %v, want Denied with what to do", tool, err)
		}
	}
}

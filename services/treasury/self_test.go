package treasury_test

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
)

// balanceWhen asks for the balance of lucky until it fits.
func balanceWhen(t *testing.T, b *bus.Bus, what string, fits func(api.Balance) bool) api.Balance {
	t.Helper()
	for end := time.Now().Add(waitWallet); ; {
		got := ask[api.Balance](t, b, api.GetBalance{Agent: "lucky"})
		if fits(got) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("balance: got %+v, want %s within %s", got, what, waitWallet)
		}
	}
}

// TestBuysFromItself checks that an agent at a low tier buys credits from its own
// treasury as soon as its wallet has USDC: above the limit of a payment to others, which
// does not count it. The ledger, the chain and the receipt agree.
func TestBuysFromItself(t *testing.T) {
	t.Parallel()
	w, _ := behind(t, chaintest.Start(t, devchain.Options{}), map[string]string{"ANIMA_TREASURY_TOPUP_URL": "self", "ANIMA_TREASURY_CHAIN_LAZY": "true"})
	fund(t, w.Bus, 20*api.Cent)
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 12 * api.Dollar})
	got := balanceWhen(t, w.Bus, "credits for 5 dollars", func(b api.Balance) bool { return b.Available == 520*api.Cent && b.USDCHeld == 0 })
	if got.USDC != 7*api.Dollar || got.Tier != api.TierHigh {
		t.Errorf("balance: got %+v, want 7 dollars of USDC and the tier high", got)
	}
	ps := ask[api.Payments](t, w.Bus, api.ListPayments{Agent: "lucky"}).Payments
	if len(ps) != 1 || ps[0].State != api.PaymentSettled || ps[0].Amount != 5*api.Dollar || ps[0].Transaction == "" {
		t.Errorf("payments: got %+v, want one for 5 dollars with its transaction", ps)
	}
	for _, u := range ask[api.AgentLimits](t, w.Bus, api.GetLimits{Agent: "lucky"}).Usage {
		if u.Spent != 0 || u.Count != 0 {
			t.Errorf("limits: got %+v, want that no limit counts an exchange", u)
		}
	}
	if r := ask[api.Reconciliation](t, w.Bus, api.ReconcileLedger{}); !r.OK {
		t.Errorf("reconcile: got %+v, want agreement", r)
	}
	if r := ask[api.LedgerReport](t, w.Bus, api.VerifyLedger{}); !r.OK {
		t.Errorf("verify: got %+v, want no fault", r)
	}
}

// TestPoorAgentsLeaveTheChainAlone checks that an agent at a low tier without USDC in the
// ledger does not start a lazy chain.
func TestPoorAgentsLeaveTheChainAlone(t *testing.T) {
	t.Parallel()
	w, p := onchain(t, map[string]string{"ANIMA_TREASURY_TOPUP_URL": "self", "ANIMA_TREASURY_CHAIN_LAZY": "true"})
	fund(t, w.Bus, 20*api.Cent)
	refused(t, w.Bus, api.TopUp{ID: "one", Agent: "lucky", USD: 5}, api.Denied, api.ReasonInsufficient)
	if n := p.Calls(); n != 0 {
		t.Errorf("requests to the chain: got %d, want none", n)
	}
}

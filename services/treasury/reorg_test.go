package treasury_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
)

// mining makes blocks until stop is called.
func mining(t *testing.T, p *chaintest.Proxy) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { wait.Every(ctx, 100*time.Millisecond, func() { p.Commit() }) })
	return func() { cancel(); running.Wait() }
}

// before returns the hash of the block before a transaction.
func before(t *testing.T, p *chaintest.Proxy, tx string) common.Hash {
	t.Helper()
	r, err := p.Client().TransactionReceipt(t.Context(), common.HexToHash(tx))
	if err != nil {
		t.Fatal(err)
	}
	h, err := p.Client().HeaderByHash(t.Context(), r.BlockHash)
	if err != nil {
		t.Fatal(err)
	}
	return h.ParentHash
}

// replace replaces the blocks after parent by as many others, without their transactions.
func replace(t *testing.T, p *chaintest.Proxy, parent common.Hash) {
	t.Helper()
	height := func() uint64 {
		n, err := p.Client().BlockNumber(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	was := height()
	if err := p.Fork(parent); err != nil {
		t.Fatal(err)
	}
	p.Drop()
	for height() < was {
		p.Commit()
	}
}

// paymentWhen asks for the payment p1 until it has a state and some of its money is held.
func paymentWhen(t *testing.T, b *bus.Bus, state api.PaymentState, held api.Micros) api.Payment {
	t.Helper()
	for end := time.Now().Add(waitWallet); ; {
		p, has := ask[api.Payment](t, b, api.GetPayment{ID: "p1"}), ask[api.Balance](t, b, api.GetBalance{Agent: "lucky"})
		if p.State == state && has.USDCHeld == held {
			return p
		}
		if time.Now().After(end) {
			t.Fatalf("payment: got %s (%s) with %s held, want %s with %s within %s", p.State, p.Reason, has.USDCHeld, state, held, waitWallet)
		}
	}
}

// TestReorganizedPayment removes the block with the settlement of a payment from the
// chain. The money is held again, and paid when the transaction is in another block. The
// ledger agrees with the chain in between.
func TestReorganizedPayment(t *testing.T) {
	t.Parallel()
	w, p := onchain(t, map[string]string{
		"ANIMA_TREASURY_X402_PRIVATE": "true", "ANIMA_TREASURY_MAX_X402_PAYMENT_CENTS": "1000", "ANIMA_TREASURY_CHAIN_RECONCILE": "1h",
	})
	seller := ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "bob"})
	ask[api.Account](t, w.Bus, api.OpenAccount{Agent: "lucky"})
	ask[api.FundedUSDC](t, w.Bus, api.FundUSDC{ID: "one", Agent: "lucky", Amount: 12 * api.Dollar})
	agrees := func(when string, available, held api.Micros) {
		t.Helper()
		b := ask[api.Balance](t, w.Bus, api.GetBalance{Agent: "lucky"})
		if b.USDC != available || b.USDCHeld != held {
			t.Errorf("%s: got %s and %s held, want %s and %s", when, b.USDC, b.USDCHeld, available, held)
		}
		r := ask[api.Reconciliation](t, w.Bus, api.ReconcileLedger{Agent: "lucky"})
		if want := available + held; !r.OK || r.Accounts[0].Ledger != want || r.Accounts[0].Chain != want {
			t.Errorf("%s: got %+v, want %s in the ledger and on the chain", when, r, want)
		}
		if v := ask[api.LedgerReport](t, w.Bus, api.VerifyLedger{}); !v.OK {
			t.Errorf("%s: verify: %+v", when, v)
		}
	}
	stop := mining(t, p)
	paid := ask[api.Payment](t, w.Bus, api.Pay{ID: "p1", Agent: "lucky", URL: w.HTTP + "/pay/5/" + seller.Address})
	stop()
	if paid.State != api.PaymentSettled || len(paid.Body) == 0 {
		t.Fatalf("paid: got %+v", paid)
	}
	agrees("paid", 7*api.Dollar, 0)
	parent := before(t, p, paid.Transaction)
	tx, _, err := p.Client().TransactionByHash(t.Context(), common.HexToHash(paid.Transaction))
	if err != nil {
		t.Fatal(err)
	}

	replace(t, p, parent)
	if got := paymentWhen(t, w.Bus, api.PaymentUnknown, 5*api.Dollar); string(got.Body) != string(paid.Body) {
		t.Errorf("removed: got %+v, want the answer %s", got, paid.Body)
	}
	agrees("removed", 7*api.Dollar, 5*api.Dollar)

	if err := p.Client().SendTransaction(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	p.Commit()
	paymentWhen(t, w.Bus, api.PaymentSettled, 0)
	agrees("in another block", 7*api.Dollar, 0)

	replace(t, p, parent) // the transaction never comes back
	paymentWhen(t, w.Bus, api.PaymentUnknown, 5*api.Dollar)
	agrees("removed for good", 7*api.Dollar, 5*api.Dollar)
	again := ask[api.Payment](t, w.Bus, api.Pay{ID: "p1", Agent: "lucky", URL: w.HTTP + "/pay/5/" + seller.Address})
	if string(again.Body) != string(paid.Body) {
		t.Errorf("repeated: got %+v, want the answer %s", again, paid.Body)
	}
}

package pay_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// wants compares the state of the payment p1 and of its n-th hold.
func (w *world) wants(t *testing.T, when string, state api.PaymentState, n int, hold string, due bool) {
	t.Helper()
	got, err := w.store.Payment(t.Context(), "p1")
	if err != nil || got.State != state || string(got.Answer.Body) != "secret 1" || (got.NextAt > 0) != due {
		t.Errorf("%s: got %+v, %v; want %s, due %t", when, got, err, state, due)
	}
	id := "x402/p1"
	if n > 1 {
		id = fmt.Sprintf("x402.%d/p1", n)
	}
	w.money.mu.Lock()
	defer w.money.mu.Unlock()
	if w.money.holds[id] != hold || len(w.money.holds) != n {
		t.Errorf("%s: got the holds %v, want %d, the last one %s", when, w.money.holds, n, hold)
	}
}

func (w *world) reconcile(t *testing.T, p *pay.Payer, seconds int64) {
	t.Helper()
	w.later.Add(seconds)
	if _, err := p.Reconcile(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReorganization removes the transaction of a settled payment from the chain: once it
// comes back in another block, once it is settled again, and once it never is.
func TestReorganization(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		w.chain.Open(true)
		if _, err := p.Pay(t.Context(), w.request("/paid")); err != nil {
			t.Fatal(err)
		}
		stored, err := w.store.Payment(t.Context(), "p1")
		if err != nil {
			t.Fatal(err)
		}
		w.reconcile(t, p, 10)
		w.wants(t, "before", api.PaymentSettled, 1, "settled", true)
		w.chain.Reorganize(true)
		w.reconcile(t, p, 10)
		w.wants(t, "in another block", api.PaymentSettled, 1, "settled", true)

		w.chain.Reorganize(false)
		w.chain.Fail(errors.New("connection refused"))
		w.reconcile(t, p, 10)
		w.wants(t, "without a chain", api.PaymentSettled, 1, "settled", true)
		w.chain.Fail(nil)
		if err := p.Recheck(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.reconcile(t, p, 0)
		w.wants(t, "removed", api.PaymentUnknown, 2, "held", true)
		if got, err := p.Pay(t.Context(), w.request("/paid")); err != nil || string(got.Answer.Body) != "secret 1" {
			t.Errorf("repeated: got %+v, %v", got, err)
		}
		header := http.Header{}
		header.Set(stored.Header, stored.Value)
		sent, ok, err := x402.ReadPayment(header)
		if !ok || err != nil {
			t.Fatalf("the authorization: %t, %v", ok, err)
		}
		if _, ok, err := w.chain.Transfer(t.Context(), sent.Authorization, sent.Signature); !ok || err != nil {
			t.Fatalf("submitted again: got %t, %v", ok, err)
		}
		w.reconcile(t, p, 10)
		w.wants(t, "settled again", api.PaymentSettled, 2, "settled", true)

		w.chain.Reorganize(false)
		w.reconcile(t, p, 10)
		w.wants(t, "removed again", api.PaymentUnknown, 3, "held", true)
		w.reconcile(t, p, 3600)
		w.wants(t, "after its window", api.PaymentExpired, 3, "released", false)
	})
}

// TestNodeBehind checks that a settlement is not undone by a node that does not have its
// block yet.
func TestNodeBehind(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		w.chain.Open(true)
		if _, err := p.Pay(t.Context(), w.request("/paid")); err != nil {
			t.Fatal(err)
		}
		for _, behind := range []bool{true, false} {
			w.chain.Behind(behind)
			w.reconcile(t, p, 60)
			w.wants(t, fmt.Sprint("behind ", behind), api.PaymentSettled, 1, "settled", true)
		}
	})
}

// TestFinalSettlement checks that a payment is not due any more once its block is final.
func TestFinalSettlement(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		p := w.payerOf(t, nil)
		if _, err := p.Pay(t.Context(), w.request("/paid")); err != nil {
			t.Fatal(err)
		}
		w.wants(t, "paid", api.PaymentSettled, 1, "settled", true)
		w.reconcile(t, p, 10)
		w.wants(t, "final", api.PaymentSettled, 1, "settled", false)
		if err := p.Recheck(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wants(t, "after a reorganization", api.PaymentSettled, 1, "settled", false)
	})
}

// TestCrashesOfReorganization stops the process at each step of the change of a payment
// whose settlement was removed. Another process completes it: the money is held once, and
// released once the window has ended.
func TestCrashesOfReorganization(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after=%t", after), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *world) {
				w.chain.Open(true)
				for n := int64(1); ; n++ {
					w.money.mu.Lock()
					clear(w.money.holds)
					w.money.mu.Unlock()
					p := w.payerOf(t, nil)
					r := w.request("/paid")
					r.ID = fmt.Sprintf("p%d", n)
					if _, err := p.Pay(t.Context(), r); err != nil {
						t.Fatal(err)
					}
					w.chain.Reorganize(false)
					m := &mortal{after: after}
					m.left.Store(n)
					first := w.payerOf(t, func(o *pay.Options) { o.Store, o.Money = mortalStore{o.Store, m}, mortalMoney{o.Money, m} })
					w.later.Add(10)
					_, _ = first.Reconcile(t.Context()) // stopped
					stopped := m.left.Load() <= 0
					for range 4 {
						w.reconcile(t, p, 1200)
					}
					got, err := w.store.Payment(t.Context(), r.ID)
					w.money.mu.Lock()
					holds := fmt.Sprint(w.money.holds)
					w.money.mu.Unlock()
					want := fmt.Sprintf("map[x402.2/%s:released x402/%s:settled]", r.ID, r.ID)
					if err != nil || got.State != api.PaymentExpired || !got.Posted || got.NextAt != 0 || holds != want {
						t.Errorf("step %d: got %+v, %v, holds %s, want expired, %s", n, got, err, holds, want)
					}
					if !stopped {
						if n < 4 {
							t.Errorf("the process was stopped at %d steps only", n-1)
						}
						return
					}
				}
			})
		})
	}
}

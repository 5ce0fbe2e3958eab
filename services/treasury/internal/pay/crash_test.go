package pay_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

var errDead = errors.New("the process has stopped")

// mortal stops a process at its n-th step: from then on nothing that it does has an
// effect. With after, the n-th step itself has its effect.
type mortal struct {
	left  atomic.Int64
	after bool
}

// step reports whether the next step has an effect, and whether its caller learns of it.
func (m *mortal) step() (effect, answer bool) {
	left := m.left.Add(-1)
	return left > 0 || left == 0 && m.after, left > 0
}

func pass(m *mortal, f func() error) error {
	effect, answer := m.step()
	if effect {
		if err := f(); err != nil {
			return err
		}
	}
	if !answer {
		return errDead
	}
	return nil
}

type mortalStore struct {
	pay.Store
	*mortal
}

func (s mortalStore) ClaimPayment(ctx context.Context, p pay.Payment) (stored pay.Payment, claimed bool, err error) {
	err = pass(s.mortal, func() (err error) {
		stored, claimed, err = s.Store.ClaimPayment(ctx, p)
		return err
	})
	return stored, claimed, err
}

func (s mortalStore) SavePayment(ctx context.Context, p pay.Payment, claim int64) error {
	return pass(s.mortal, func() error { return s.Store.SavePayment(ctx, p, claim) })
}

type mortalMoney struct {
	pay.Money
	*mortal
}

func (m mortalMoney) Hold(ctx context.Context, p *pay.Payment, host string, expires int64) error {
	return pass(m.mortal, func() error { return m.Money.Hold(ctx, p, host, expires) })
}

func (m mortalMoney) Settle(ctx context.Context, p *pay.Payment) error {
	return pass(m.mortal, func() error { return m.Money.Settle(ctx, p) })
}

func (m mortalMoney) Release(ctx context.Context, p *pay.Payment, reason string) error {
	return pass(m.mortal, func() error { return m.Money.Release(ctx, p, reason) })
}

func (m mortalMoney) Reopen(ctx context.Context, p *pay.Payment, expires int64) error {
	return pass(m.mortal, func() error { return m.Money.Reopen(ctx, p, expires) })
}

type mortalSigner struct {
	pay.Signer
	*mortal
}

func (s mortalSigner) Sign(ctx context.Context, agent string, a x402.Authorization, t x402.Terms, now time.Time) (sig x402.Signature, err error) {
	err = pass(s.mortal, func() (err error) {
		sig, err = s.Signer.Sign(ctx, agent, a, t, now)
		return err
	})
	return sig, err
}

// TestFrozenAfterTheHold stops the process after it has held the money. The agent is frozen
// before the payment is continued. The money is free when the window has ended.
func TestFrozenAfterTheHold(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *world) {
		m := &mortal{after: true}
		m.left.Store(3) // the claim, the offer and the hold
		first := w.payerOf(t, func(o *pay.Options) { o.Store, o.Money = mortalStore{o.Store, m}, mortalMoney{o.Money, m} })
		if _, err := first.Pay(t.Context(), w.request("/paid")); !errors.Is(err, errDead) || w.money.state("p1") != "held" {
			t.Fatalf("first: got %v, hold %q, want it held", err, w.money.state("p1"))
		}
		if err := w.store.EndClaims(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.money.refusal = &api.Error{Code: api.Denied, Reason: api.ReasonFrozen, Message: "the USDC is frozen"}
		p := w.payerOf(t, nil)
		if got, err := p.Pay(t.Context(), w.request("/paid")); api.ReasonOf(err) != api.ReasonFrozen {
			t.Errorf("frozen: got %+v, %v", got, err)
		}
		w.later.Add(600)
		if n, err := p.Reconcile(t.Context()); n != 1 || err != nil || w.money.state("p1") != "released" {
			t.Errorf("after the window: got %d, %v, hold %s, want it released", n, err, w.money.state("p1"))
		}
	})
}

// TestCrashAtEveryStep stops the paying process before and after each of its steps. Then
// another process continues: by the same request within the window, or by reconciliation
// after it. In the first case there is one payment and its answer. In the second there is
// at most one payment, and the hold agrees with the chain.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for _, repeated := range []bool{true, false} {
			t.Run(fmt.Sprintf("after=%t,repeated=%t", after, repeated), func(t *testing.T) {
				t.Parallel()
				each(t, func(t *testing.T, w *world) {
					stopped := 0
					for n := int64(1); ; n++ {
						m := &mortal{after: after}
						m.left.Store(n)
						first := w.payerOf(t, func(o *pay.Options) {
							o.Store, o.Money, o.Signer = mortalStore{o.Store, m}, mortalMoney{o.Money, m}, mortalSigner{o.Signer, m}
						})
						r := w.request("/paid")
						r.ID = fmt.Sprintf("p%d", n)
						before, runs := w.chain.Transfers(), w.runs.Load()
						_, _ = first.Pay(t.Context(), r) // stopped
						if m.left.Load() > 0 {
							break
						}
						stopped++
						second := w.payerOf(t, nil)
						state, ok := w.finish(t, second, r, repeated)
						paid := w.chain.Transfers() - before
						hold := w.money.state(r.ID)
						switch {
						case !ok:
							t.Errorf("step %d: no outcome", n)
						case repeated && (state != api.PaymentSettled || paid != 1 || w.runs.Load()-runs != 1 || hold != "settled"):
							t.Errorf("step %d: got %s, %d transfers, %d runs, hold %s", n, state, paid, w.runs.Load()-runs, hold)
						case state == api.PaymentSettled && (paid != 1 || hold != "settled"),
							state == api.PaymentExpired && (paid != 0 || hold == "held" || hold == "settled"):
							t.Errorf("step %d: got %s, %d transfers, hold %s", n, state, paid, hold)
						}
					}
					if stopped < 8 {
						t.Errorf("the process was stopped at %d steps only", stopped)
					}
				})
			})
		}
	}
}

// finish lets the claim of the stopped process end and continues its payment. ok is false
// if there is no outcome.
func (w *world) finish(t *testing.T, p *pay.Payer, r pay.Request, repeated bool) (state api.PaymentState, ok bool) {
	t.Helper()
	if repeated {
		// The claim lasts longer than the window of the seller, so the process that
		// continues has a clock of its own; the claim is ended by hand.
		w.free(t, r.ID)
		got, err := p.Pay(t.Context(), r)
		if err != nil || string(got.Answer.Body) == "" {
			t.Errorf("%s: got %+v, %v", r.ID, got, err)
		}
		w.free(t, r.ID)
		for range 2 { // a hold that was not ended, and a block that is final
			w.later.Add(10)
			if _, err := p.Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
		}
	} else {
		for range 4 {
			w.later.Add(1200)
			if _, err := p.Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	got, err := w.store.Payment(t.Context(), r.ID)
	if api.CodeOf(err) == api.NotFound {
		return "", !repeated // it was never stored
	}
	if err != nil {
		t.Fatal(err)
	}
	if !repeated && got.State == api.PaymentIntended && got.Network == "" {
		return got.State, true // nothing was held
	}
	return got.State, got.Posted && got.NextAt == 0
}

// free ends the claim of a process that has stopped.
func (w *world) free(t *testing.T, id string) {
	t.Helper()
	got, err := w.store.Payment(t.Context(), id)
	if api.CodeOf(err) == api.NotFound {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	claim := got.BusyUntil
	got.BusyUntil = 0
	if err := w.store.SavePayment(t.Context(), got, claim); err != nil {
		t.Fatal(err)
	}
}

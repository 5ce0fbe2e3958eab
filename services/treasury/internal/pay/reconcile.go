package pay

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Times of the reconciliation. An authorization has ended for certain when a block is
// expiryMargin seconds past its window: a block that replaces the last ones is not
// earlier by more than that.
const (
	expiryMargin = 60
	recheck      = 2 * time.Second
	longest      = 10 * time.Minute
	atOnce       = 32
)

// Reconcile continues the payments that are due: those without an outcome, by the chain,
// and those whose hold has to end. It returns the number of payments that have their
// outcome now. Replicas may call it at the same time. If the process stops, the payments
// are due again when its claims have ended.
func (p *Payer) Reconcile(ctx context.Context) (int, error) {
	ids, err := p.o.Store.DuePayments(ctx, p.o.Now().UnixMicro(), atOnce)
	if err != nil {
		return 0, err
	}
	ended := 0
	for _, id := range ids {
		if ctx.Err() != nil {
			return ended, ctx.Err()
		}
		done, err := p.reconcile(ctx, id)
		if err != nil {
			p.o.Log.WarnContext(ctx, "payment not reconciled", "payment", id, "err", err)
		}
		if done {
			ended++
		}
	}
	return ended, nil
}

func (p *Payer) reconcile(ctx context.Context, id string) (ended bool, err error) {
	now := p.o.Now()
	stored, claimed, err := p.o.Store.ClaimPayment(ctx, Payment{ID: id, UpdatedAt: now.UnixMicro(), BusyUntil: now.Add(claimTime).UnixMicro()})
	if err != nil || !claimed {
		return false, err
	}
	w := &work{Payer: p, Payment: stored}
	defer w.leave(ctx)
	if w.State == api.PaymentSettled && w.Posted {
		return false, w.confirm(ctx)
	}
	if !w.final() {
		if err := w.again(ctx); err != nil {
			w.later()
			return false, err
		}
		if err := w.decide(ctx); err != nil {
			w.later()
			return false, err
		}
	}
	if w.final() {
		w.post(ctx)
		return w.Posted, nil
	}
	w.later()
	return false, nil
}

// later sets the time of the next attempt, which doubles with each.
func (w *work) later() {
	w.Attempts = min(w.Attempts+1, 30)
	wait := min(longest, recheck<<min(w.Attempts, 10))
	w.NextAt = w.o.Now().Add(wait).UnixMicro()
}

// decide gives a payment its outcome if the chain has it.
func (w *work) decide(ctx context.Context) error {
	if w.Value == "" { // nothing is signed, so nothing can be paid
		if w.o.Now().Unix() < w.ValidBefore {
			return nil
		}
		w.Reason = "it was interrupted before it was signed"
		return w.save(ctx, api.PaymentExpired)
	}
	used, at, err := w.state(ctx)
	switch {
	case err != nil:
		return err
	case used:
		w.Reason, w.Block = "", at
		return w.save(ctx, api.PaymentSettled)
	case at.Time.Unix() > w.ValidBefore+expiryMargin:
		return w.save(ctx, api.PaymentExpired)
	}
	return nil
}

// post ends the hold of a payment that has its outcome. The outcome is stored before, so a
// process that stops here leaves a row that is due. A failure is repeated later.
func (w *work) post(ctx context.Context) {
	if w.Posted {
		w.NextAt = 0
		return
	}
	err := failpoint.Do(ctx, failpoint.TreasuryPayPost, func(ctx context.Context) error {
		if err := w.again(ctx); err != nil {
			return err
		}
		if w.State == api.PaymentSettled {
			return w.o.Money.Settle(ctx, &w.Payment)
		}
		return w.o.Money.Release(ctx, &w.Payment, string(w.State)+": "+w.Reason)
	})
	if err != nil {
		w.o.Log.ErrorContext(ctx, "hold of a payment not ended, retrying", "payment", w.ID, "state", w.State, "err", err)
		w.later()
		return
	}
	w.Posted, w.NextAt = true, 0 // stored when the claim ends
	if w.State == api.PaymentSettled && w.Block.Number > 0 {
		w.later()
	}
}

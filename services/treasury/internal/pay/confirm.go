package pay

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/chain"
)

// confirm compares a paid payment with the chain until the block of its settlement is
// final. A reorganization may include the transaction in another block, or remove it: then
// the payment is unknown again, as it was before the chain had it.
func (w *work) confirm(ctx context.Context) error {
	n, ok := w.o.Networks.Find(w.Network)
	if !ok {
		w.later()
		return fmt.Errorf("the network %s is not configured", w.Network)
	}
	part, final, err := w.o.Chain.Stands(ctx, n, w.Block)
	switch {
	case err != nil:
		w.later()
		return err
	case final:
		w.NextAt = 0
		return nil
	case part:
		w.later()
		return nil
	}
	used, at, err := w.state(ctx)
	if err != nil {
		w.later()
		return err
	}
	switch {
	case used:
		w.Block = at
		w.later()
		return nil
	case at.Number < w.Block.Number: // a node that is behind, or a chain that has not grown to that height again
		w.later()
		return nil
	}
	return w.reopen(ctx)
}

const removed = "a reorganization of the chain has removed the settlement"

// reopen gives a payment back the state in which the chain decides. The row is written
// first: if the process stops before the ledger has changed, [work.again] changes it,
// because the payment is due and not posted.
func (w *work) reopen(ctx context.Context) error {
	w.Reopened++
	w.Posted, w.Block, w.NextAt = false, chain.Block{}, w.o.Now().UnixMicro()
	w.Reason = removed
	w.o.Log.WarnContext(ctx, removed, "payment", w.ID, "agent", w.Agent, "amount", w.Amount)
	if err := w.save(ctx, api.PaymentUnknown); err != nil {
		return err
	}
	err := w.again(ctx)
	w.later()
	return err
}

// again has the money of a payment held whose settlement was removed. It may be repeated,
// and is done before the hold ends.
func (w *work) again(ctx context.Context) error {
	if w.Reopened == 0 {
		return nil
	}
	return w.o.Money.Reopen(ctx, &w.Payment, w.o.Now().Add(holdTime).UnixMicro())
}

// Recheck compares the payments whose settlements are not final with the chain at once. It
// is called after a reorganization, which the next attempt would notice up to ten minutes
// later.
func (p *Payer) Recheck(ctx context.Context) error {
	return p.o.Store.RecheckPayments(ctx, p.o.Now().UnixMicro())
}

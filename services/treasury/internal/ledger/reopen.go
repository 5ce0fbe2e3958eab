package ledger

import (
	"cmp"
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// ReopenRequest holds the arguments of [Ledger.Reopen].
type ReopenRequest struct {
	Hold      string // is settled
	As        string // the hold that has its money afterwards
	ExpiresAt int64  // of As
	Reason    string
	Parent    string
}

func (r *ReopenRequest) check() error {
	return cmp.Or(checkID("hold", r.Hold), checkID("hold", r.Hold+suffixSettle+suffixReversal), checkID("hold", r.As), checkText("reason", r.Reason))
}

// Reopen undoes the settlement of a hold that the chain has undone, and holds what was
// paid again, in one commit: nobody can spend the money in between. The limits count the
// first hold only, until its windows end. Repeating it returns the current state of the
// new hold. Errors: NotFound, Conflict (the hold is not settled), Invalid (it has paid an
// agent).
func (l *Ledger) Reopen(ctx context.Context, r ReopenRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	// A transaction never changes, so it can be read before the operation.
	t, err := l.store.Transaction(ctx, r.Hold+suffixSettle)
	if err != nil {
		return HoldState{}, err
	}
	keys := reversalKeys(&t)
	keys.Holds, keys.NewHolds = []string{r.Hold}, []string{r.As}
	return submit(ctx, l, keys, func(b *batch) (HoldState, error) { return b.reopen(&t, r) })
}

// reopen posts the reversal without regard to debts, so that the new hold finds the money.
func (b *batch) reopen(t *Transaction, r ReopenRequest) (HoldState, error) {
	h, err := b.find(r.Hold)
	if err != nil {
		return HoldState{}, err
	}
	if as, ok := b.state.Holds[r.As]; ok {
		if as.Agent != h.Agent || as.Asset != h.Asset || as.Amount != h.Settled {
			return HoldState{}, conflict(r.As, "is already the id of another hold")
		}
		return b.stateOf(as)
	}
	switch {
	case h.Status != api.HoldSettled || h.Settled == 0:
		return HoldState{}, conflict(r.Hold, "has paid nothing")
	case ownerOf(h.Payee) != "":
		return HoldState{}, refusal(api.Invalid, "only payments to the outside are undone by a chain", "%q has paid %s", clip(r.Hold), h.Payee)
	}
	_, err = b.move(Transaction{
		ID: t.ID + suffixReversal, Kind: KindReversal, Agent: h.Agent, Memo: r.Reason, Turn: h.Turn, Parent: r.Parent,
		Lines: []Line{{Account: h.Payee, Amount: -h.Settled}, {Account: AvailableIn(h.Asset, h.Agent), Amount: h.Settled}},
	})
	if err != nil {
		return HoldState{}, err
	}
	return b.hold(HoldRequest{
		ID: r.As, Agent: h.Agent, Asset: h.Asset, Amount: h.Settled, Category: h.Category, ExpiresAt: r.ExpiresAt, Payee: h.Payee, Parent: r.Parent,
		Exchange: true, // it was admitted and counted
	})
}

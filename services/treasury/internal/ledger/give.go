package ledger

import (
	"cmp"
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// GiveRequest holds the arguments of [Ledger.Give]: credits that an agent gives to
// another one.
type GiveRequest struct {
	ID      string
	From    string
	To      string
	Amount  api.Micros
	Turn    string
	Session string
	By      api.PrincipalKind // principal of the turn; "": unknown
	Memo    string
	Parent  string
	// HalfAtMost refuses more than half of the available credits, so that an agent cannot
	// give away what keeps it running.
	HalfAtMost bool
}

// Given is the result of [Ledger.Give].
type Given struct {
	Left api.Micros // available credits of the giver right after the transfer
	Seq  int64      // of the settlement
	At   int64
}

func (r *GiveRequest) check() error {
	var self error
	if r.From == r.To {
		self = refusal(api.Invalid, "name another recipient", "agent %q cannot pay itself", clip(r.From))
	}
	h := r.holdRequest(0)
	return cmp.Or(checkOwnID(r.ID), self, checkAgent(r.To), h.check(), checkText("memo", r.Memo))
}

func (r *GiveRequest) holdRequest(now int64) HoldRequest {
	return HoldRequest{ID: r.ID, Agent: r.From, Amount: r.Amount, Category: api.CategoryTransfer, Turn: r.Turn, Session: r.Session, By: r.By, Payee: Available(r.To), ExpiresAt: now + 1, Parent: r.Parent}
}

// Give transfers credits on behalf of an agent: a hold, to which the limits of the agent
// apply, and its settlement, in one commit. Repeating it returns the first result. Errors:
// as [Ledger.Hold], and Denied for more than half of the credits.
func (l *Ledger) Give(ctx context.Context, r GiveRequest) (Given, error) {
	if err := r.check(); err != nil {
		return Given{}, err
	}
	keys := Keys{
		Accounts: append(accountsIn(api.Credits, r.From), accountsIn(api.Credits, r.To)...),
		NewHolds: []string{r.ID}, NewTransactions: []string{r.ID + suffixHold, r.ID + suffixSettle},
	}
	h := r.holdRequest(0)
	pay := h.payment()
	l.limiter.hint(&keys, &pay)
	g, err := submit(ctx, l, keys, func(b *batch) (Given, error) { return b.give(r) })
	if api.ReasonOf(err) == api.ReasonApproval {
		err = cmp.Or(l.ask(ctx, &pay, r.ID), err)
	}
	return g, err
}

// give decides everything that could refuse the settlement before it makes the hold,
// because the two are one operation.
func (b *batch) give(r GiveRequest) (Given, error) {
	payee := Available(r.To)
	if done, ok := b.state.Transactions[r.ID+suffixSettle]; ok {
		h := b.state.Holds[r.ID]
		if h.Agent != r.From || h.Amount != r.Amount || h.Settled != r.Amount || h.Payee != payee || h.Category != "transfer" || done.Memo != r.Memo {
			return Given{}, conflict(r.ID, "is already the id of another transfer")
		}
		return b.given(done)
	}
	from, err := b.balance(r.From)
	if err != nil {
		return Given{}, err
	}
	if _, err := b.balance(r.To); err != nil {
		return Given{}, err
	}
	if _, ok := b.state.Holds[r.ID]; ok {
		return Given{}, conflict(r.ID, "is already the id of a hold")
	}
	if r.HalfAtMost && r.Amount <= from.Available && 2*r.Amount > from.Available {
		return Given{}, refusal(api.Denied, "give at most "+(from.Available/2).String(), "%s is more than half of the %s that are available", r.Amount, from.Available)
	}
	if _, err := b.hold(r.holdRequest(b.now)); err != nil {
		return Given{}, err
	}
	if _, err := b.settle(SettleRequest{ID: r.ID, Amount: r.Amount, Payee: payee, Memo: r.Memo, Parent: r.Parent}); err != nil {
		return Given{}, err
	}
	return b.given(b.state.Transactions[r.ID+suffixSettle])
}

// given reads the balance from the transaction of the hold, which debited the giver.
func (b *batch) given(t Transaction) (Given, error) {
	g := Given{Seq: t.Seq, At: t.At}
	for _, l := range b.state.Transactions[t.ID[:len(t.ID)-len(suffixSettle)]+suffixHold].Lines {
		if l.Account == Available(t.Agent) {
			g.Left = l.Balance
		}
	}
	return g, nil
}

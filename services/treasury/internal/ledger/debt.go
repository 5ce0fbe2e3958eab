package ledger

import (
	"cmp"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// owing divides lines on available accounts between the account and the debt of its
// agent: a credit repays the debt first, and a debit that the balance does not cover is
// recorded as debt, so that an available account never is below zero. It is for
// transactions that state what has happened elsewhere and thus cannot be refused:
// deposits, purchases and reversals. Operations that spend do not use it.
func (b *batch) owing(lines []Line) []Line {
	var all []Line
	for _, l := range lines {
		asset := AssetOf(l.Account)
		agent := ownerOf(l.Account)
		if agent == "" || l.Account != AvailableIn(asset, agent) {
			all = append(all, l)
			continue
		}
		debt := Line{Account: DebtIn(asset, agent)}
		if l.Amount > 0 {
			debt.Amount = min(l.Amount, -b.state.Accounts[debt.Account].Balance)
		} else {
			debt.Amount = min(0, b.state.Accounts[l.Account].Balance+l.Amount)
		}
		l.Amount -= debt.Amount
		all = append(all, debt, l)
	}
	return merge(all)
}

// merge adds the lines of each account, in the order of its first line, and drops those
// of zero.
func merge(lines []Line) []Line {
	var all []Line
	for _, l := range lines {
		i := slices.IndexFunc(all, func(m Line) bool { return m.Account == l.Account })
		if i < 0 {
			all = append(all, l)
			continue
		}
		all[i].Amount += l.Amount // at most a few amounts, each within MaxMicros
	}
	return slices.DeleteFunc(all, func(l Line) bool { return l.Amount == 0 })
}

// effect returns the amounts of lines by account, with a debt counted on the available
// account: it depends only on the request, not on the debt at the time.
func effect(lines []Line) map[string]api.Micros {
	sums := make(map[string]api.Micros, len(lines))
	for _, l := range lines {
		account := l.Account
		if agent := debtorOf(account); agent != "" {
			account = AvailableIn(AssetOf(account), agent)
		}
		sums[account] += l.Amount
	}
	return sums
}

// ReverseRequest holds the arguments of [Ledger.Reverse].
type ReverseRequest struct {
	ID     string // of the transaction to reverse
	Reason string
	Parent string
}

func (r *ReverseRequest) check() error {
	return cmp.Or(checkID("id", r.ID), checkID("id", r.ID+suffixReversal), checkText("reason", r.Reason))
}

// reversalKeys returns the rows that the reversal of t reads.
func reversalKeys(t *Transaction) Keys {
	keys := Keys{NewTransactions: []string{t.ID + suffixReversal}}
	for _, l := range t.Lines {
		asset, agent := AssetOf(l.Account), cmp.Or(ownerOf(l.Account), debtorOf(l.Account))
		if agent == "" {
			keys.Accounts = append(keys.Accounts, l.Account)
			continue
		}
		keys.Accounts = append(append(keys.Accounts, accountsIn(asset, agent)...), DebtIn(asset, agent))
	}
	return keys
}

// reverse posts the opposite of t, which must be stored, under its id with a suffix, so
// that a transaction is reversed at most once. What t took from a hold returns to the
// available account, because the hold has ended. A reversal is not refused for lack of
// funds: what an agent has spent already becomes its debt.
func (b *batch) reverse(t *Transaction, r ReverseRequest) (Transaction, error) {
	switch t.Kind {
	case KindDeposit, KindPurchase, KindSettle:
	case KindHold, KindRelease, KindExpire, KindTransfer, KindReversal:
		fallthrough
	default:
		return Transaction{}, refusal(api.Invalid, "reverse a deposit, a purchase or a settlement", "%q is a %s, which cannot be reversed", clip(t.ID), t.Kind)
	}
	var lines []Line
	for _, l := range t.Lines {
		account := l.Account
		if agent := cmp.Or(ownerOf(account), debtorOf(account)); agent != "" {
			account = AvailableIn(AssetOf(account), agent)
		}
		lines = append(lines, Line{Account: account, Amount: -l.Amount})
	}
	if lines = merge(lines); len(lines) == 0 {
		return Transaction{}, refusal(api.Invalid, "there is nothing to reverse", "%q has moved nothing", clip(t.ID))
	}
	return b.move(Transaction{
		ID: t.ID + suffixReversal, Kind: KindReversal, Agent: t.Agent, Memo: r.Reason, Turn: t.Turn, Parent: r.Parent,
		Lines: b.owing(lines),
	})
}

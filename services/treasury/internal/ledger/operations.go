package ledger

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// Open creates the accounts of an agent unless they exist. Errors: Invalid.
func (l *Ledger) Open(ctx context.Context, agent string) error {
	if err := checkAgent(agent); err != nil {
		return err
	}
	return l.store.Open(ctx, agent)
}

// Hold reserves an amount. Repeating it returns the current state of the hold. Errors:
// Denied with ReasonInsufficient or a reason of [api.OverLimit], NotFound, Conflict,
// Invalid.
func (l *Ledger) Hold(ctx context.Context, r HoldRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	keys := Keys{Accounts: accountsIn(r.Asset, r.Agent), NewHolds: []string{r.ID}}
	pay := r.payment()
	l.limiter.hint(&keys, &pay)
	s, err := submit(ctx, l, keys, func(b *batch) (HoldState, error) { return b.hold(r) })
	if api.ReasonOf(err) == api.ReasonApproval {
		err = cmp.Or(l.ask(ctx, &pay, r.ID), err)
	}
	return s, err
}

// Settle pays an amount from a hold and returns the rest to the agent. Errors: NotFound,
// Conflict, Invalid.
func (l *Ledger) Settle(ctx context.Context, r SettleRequest) (HoldState, error) {
	if err := r.check(); err != nil {
		return HoldState{}, err
	}
	return submit(ctx, l, r.keys(), func(b *batch) (HoldState, error) { return b.settle(r) })
}

// SettleMany settles each request as [Ledger.Settle] does, in one commit. It returns the
// results in the order of the requests, and the balances of the agents whose holds were
// found, sorted by agent. The error is one after which a retry with the same ids helps;
// errors of a single request are in its [Settlement].
func (l *Ledger) SettleMany(ctx context.Context, rs []SettleRequest) ([]Settlement, []Balance, error) {
	var keys Keys
	for i := range rs {
		if rs[i].check() == nil {
			keys.Add(rs[i].keys())
		}
	}
	type outcome struct {
		all   []Settlement
		funds []Balance
	}
	got, err := submit(ctx, l, keys, func(b *batch) (o outcome, err error) {
		o.all, o.funds = b.settleAll(rs)
		return o, nil
	})
	if err == nil || len(rs) == 1 || api.CodeOf(err) == api.Unavailable || ctx.Err() != nil {
		return got.all, got.funds, err
	}
	// The store may have failed because of a single settlement.
	funds := map[string]Balance{}
	all := make([]Settlement, 0, len(rs))
	for i := range rs {
		one, of, err := l.SettleMany(ctx, rs[i:i+1])
		switch {
		case err == nil:
			all = append(all, one[0])
		case api.CodeOf(err) == api.Unavailable || ctx.Err() != nil:
			return nil, nil, err
		default:
			all = append(all, Settlement{Err: err})
		}
		for _, f := range of {
			funds[f.Agent] = f
		}
	}
	var sorted []Balance
	for _, agent := range slices.Sorted(maps.Keys(funds)) {
		sorted = append(sorted, funds[agent])
	}
	return all, sorted, nil
}

// Release releases a hold; parent is the traceparent of the request. A hold that was
// released or has expired is left unchanged. Errors: NotFound, Conflict, Invalid.
func (l *Ledger) Release(ctx context.Context, id, reason, parent string) (HoldState, error) {
	if err := cmp.Or(checkID("hold", id), checkText("reason", reason)); err != nil {
		return HoldState{}, err
	}
	return submit(ctx, l, Keys{Holds: []string{id}}, func(b *batch) (HoldState, error) { return b.release(id, reason, parent) })
}

// Deposit credits an agent from an external account, in the asset of that account. It
// repays the debt of the agent first. The caller decides whether the source is allowed.
// Errors: Invalid, NotFound, Conflict.
func (l *Ledger) Deposit(ctx context.Context, r DepositRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	asset := AssetOf(r.Source)
	keys := Keys{Accounts: append(accountsIn(asset, r.Agent), DebtIn(asset, r.Agent), r.Source), NewTransactions: []string{r.ID}}
	return submit(ctx, l, keys, func(b *batch) (Transaction, error) { return b.deposit(r) })
}

// Transfer moves credits between agents for the operator: no limits apply. Errors: as
// [Ledger.Hold].
func (l *Ledger) Transfer(ctx context.Context, r TransferRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	keys := Keys{Accounts: append(accountsIn(api.Credits, r.From), accountsIn(api.Credits, r.To)...), NewTransactions: []string{r.ID}}
	return submit(ctx, l, keys, func(b *batch) (Transaction, error) { return b.transfer(r) })
}

// expireAtOnce is the most holds that one operation of [Ledger.Expire] releases.
const expireAtOnce = 256

// Expire releases the active holds whose time has passed later than after, in Unix
// microseconds (0: all of them), and returns their number. Replicas may call it
// concurrently.
func (l *Ledger) Expire(ctx context.Context, after int64) (int, error) {
	for total := 0; ; {
		ids, err := l.store.Due(ctx, after, l.opts.Now().UnixMicro(), expireAtOnce)
		if err != nil || len(ids) == 0 {
			return total, err
		}
		n, err := submit(ctx, l, Keys{Holds: ids}, func(b *batch) (int, error) { return b.expire(ids) })
		total += n
		if err != nil || n == 0 {
			return total, err // n == 0: another replica has released them
		}
	}
}

// Purchase sells credits for USDC. Errors: Invalid, NotFound, Conflict.
func (l *Ledger) Purchase(ctx context.Context, r PurchaseRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	return submit(ctx, l, r.keys(), func(b *batch) (Transaction, error) { return b.purchase(r) })
}

// Reverse posts the opposite of a deposit, a purchase or a settlement. Errors: NotFound,
// Invalid (a transaction of another kind), Conflict (reversed with another reason).
func (l *Ledger) Reverse(ctx context.Context, r ReverseRequest) (Transaction, error) {
	if err := r.check(); err != nil {
		return Transaction{}, err
	}
	// A transaction never changes, so it can be read before the operation.
	t, err := l.store.Transaction(ctx, r.ID)
	if err != nil {
		return Transaction{}, err
	}
	return submit(ctx, l, reversalKeys(&t), func(b *batch) (Transaction, error) { return b.reverse(&t, r) })
}

// Reversed reports whether a transaction was reversed.
func (l *Ledger) Reversed(ctx context.Context, id string) (bool, error) {
	_, err := l.store.Transaction(ctx, id+suffixReversal)
	if api.CodeOf(err) == api.NotFound {
		return false, nil
	}
	return err == nil, err
}

// Balance returns the balance of an agent. Errors: NotFound.
func (l *Ledger) Balance(ctx context.Context, agent string) (Balance, error) {
	return l.store.Balance(ctx, agent)
}

// Limits of lists: the default of package api, and a maximum that keeps an answer below
// the 1 MiB limit of NATS with memos of any size.
const (
	defaultLimit = 100
	maxLimit     = 250
)

func bounded(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}

// Holds lists holds, oldest first: the active ones unless the filter has another status,
// 100 unless it has another limit, and at most 250.
func (l *Ledger) Holds(ctx context.Context, f HoldFilter) ([]HoldState, error) {
	if f.Status == "" {
		f.Status = api.HoldActive
	}
	f.Limit = bounded(f.Limit)
	return l.store.Holds(ctx, f)
}

// Spent returns the sums of an agent's holds of a category for a turn: the settled
// amounts, and the amounts still held.
func (l *Ledger) Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error) {
	return l.store.Spent(ctx, agent, turn, category)
}

// Transactions lists the transactions of an agent ("": of all) after a sequence number,
// with the limits of [Ledger.Holds], and reports whether there are more.
func (l *Ledger) Transactions(ctx context.Context, agent string, after int64, limit int) ([]Transaction, bool, error) {
	limit = bounded(limit)
	ts, err := l.store.Transactions(ctx, agent, after, limit+1)
	if len(ts) > limit {
		return ts[:limit], true, err
	}
	return ts, false, err
}

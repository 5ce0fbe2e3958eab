package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Report is the result of [Ledger.Verify].
type Report struct {
	Transactions int64
	Accounts     int64
	ActiveHolds  int64
	Head         Hash
	Faults       []string // at most 100, and a last line with the number of further faults
}

const (
	maxFaults    = 100
	verifyAtOnce = 1000 // transactions in memory
)

// Verify recomputes the chain, each running balance, each account and each hold from the
// transactions and compares them with the stored state. Of a hold it compares agent, asset,
// amount, turn, status, both times, and what was paid to whom; its category, its expiry and
// the payee that it names before a payment are in no transaction. It does not block writers.
// Differences are faults in the report, not an error. progress, which may be nil, is
// called with the number of verified transactions, after each thousand, and with the
// number of all at the start; its error ends the verification.
//
// The memory depends on the number of accounts and active holds, not on that of
// transactions.
func (l *Ledger) Verify(ctx context.Context, progress func(done, all int64) error) (Report, error) {
	head, err := l.store.Head(ctx)
	if err != nil {
		return Report{}, err
	}
	a := audit{balances: map[string]Account{}, active: map[string]Hold{}, ended: map[api.HoldStatus]Tally{}}
	for {
		ts, err := l.store.Transactions(ctx, "", a.head.Seq, verifyAtOnce)
		if err != nil {
			return Report{}, err
		}
		for i := range ts {
			a.transaction(&ts[i])
		}
		if err := l.compareEnded(ctx, &a); err != nil {
			return Report{}, err
		}
		if len(ts) < verifyAtOnce {
			break
		}
		if progress != nil {
			if err := progress(a.head.Seq, max(head.Seq, a.head.Seq)); err != nil {
				return Report{}, err
			}
		}
	}
	s, err := l.store.Snapshot(ctx, a.head.Seq)
	if err != nil {
		return Report{}, err
	}
	for i := range s.Transactions {
		a.transaction(&s.Transactions[i])
	}
	if err := l.compareEnded(ctx, &a); err != nil {
		return Report{}, err
	}
	a.compare(s)
	if a.more > 0 {
		a.faults = append(a.faults, fmt.Sprintf("and %d more faults", a.more))
	}
	return Report{
		Transactions: a.count, Accounts: int64(len(s.Accounts)), ActiveHolds: int64(len(s.Active)),
		Head: s.Head.Hash, Faults: a.faults,
	}, nil
}

// compareEnded compares the holds that ended in the last transactions with the stored
// ones. These do not change any more, so they need not be read at one point in time.
func (l *Ledger) compareEnded(ctx context.Context, a *audit) error {
	for some := range slices.Chunk(a.justEnded, verifyAtOnce) {
		ids := make([]string, len(some))
		for i := range some {
			ids[i] = some[i].ID
		}
		stored, err := l.store.HoldsByID(ctx, ids)
		if err != nil {
			return err
		}
		for i := range some {
			a.compareHold(stored[some[i].ID], some[i])
		}
	}
	a.justEnded = nil
	return nil
}

// audit is the state of the ledger computed from the transactions alone.
type audit struct {
	head     Head
	count    int64
	balances map[string]Account
	active   map[string]Hold
	ended    map[api.HoldStatus]Tally
	faults   []string
	more     int

	justEnded []Hold // in transactions since the last comparison
}

func (a *audit) fault(format string, args ...any) {
	if len(a.faults) == maxFaults {
		a.more++
		return
	}
	a.faults = append(a.faults, fmt.Sprintf(format, args...))
}

func (a *audit) transaction(t *Transaction) {
	name := fmt.Sprintf("transaction %d (%s)", t.Seq, t.ID)
	if want := a.head.Seq + 1; t.Seq != want {
		a.fault("%s: number %d is missing before it", name, want)
	}
	if t.Previous != a.head.Hash {
		a.fault("%s: its previous hash is not the hash of the transaction before it", name)
	}
	if t.Sum() != t.Hash {
		a.fault("%s: its content does not match its hash", name)
	}
	if fault := t.balanced(); fault != "" && (t.Kind != KindLimits || len(t.Lines) > 0) {
		a.fault("%s: %s", name, fault)
	}
	a.head = Head{Seq: t.Seq, Hash: t.Hash} // the stored hash, so that one fault is reported once
	a.count++

	owners := map[string]bool{}
	for _, l := range t.Lines {
		acc := a.balances[l.Account]
		next, ok := api.Add(acc.Balance, l.Amount)
		if !ok || next != l.Balance {
			a.fault("%s: the balance of %s should be %d and is stored as %d", name, l.Account, next, l.Balance)
		}
		owner := ownerOf(l.Account)
		if owner != "" && next < 0 {
			a.fault("%s: %s falls below zero", name, l.Account)
		}
		if next > 0 && debtorOf(l.Account) != "" {
			a.fault("%s: %s rises above zero", name, l.Account)
		}
		acc.Balance = next
		if owner == "" {
			acc.Entries++
		} else {
			owners[owner] = true
		}
		a.balances[l.Account] = acc
	}
	for agent := range owners {
		acc := a.balances[Available(agent)]
		acc.Entries++
		a.balances[Available(agent)] = acc
	}
	a.hold(name, t)
}

// hold applies a transaction to the state of its hold.
func (a *audit) hold(name string, t *Transaction) {
	amount := func(account string) api.Micros {
		for _, l := range t.Lines {
			if l.Account == account {
				return l.Amount
			}
		}
		return 0
	}
	asset, held := api.Credits, amount(Held(t.Agent))
	if held == 0 {
		asset, held = api.USDC, amount(HeldIn(api.USDC, t.Agent))
	}
	var status api.HoldStatus
	suffix := suffixRelease
	switch t.Kind {
	case KindDeposit, KindTransfer, KindReversal, KindLimits:
		return
	case KindHold:
		id := strings.TrimSuffix(t.ID, suffixHold)
		if _, there := a.active[id]; there || held <= 0 {
			a.fault("%s: it does not begin a valid hold", name)
		}
		a.active[id] = Hold{ID: id, Agent: t.Agent, Turn: t.Turn, Asset: asset, Amount: held, Status: api.HoldActive, CreatedAt: t.At}
		return
	case KindPurchase:
		if !strings.HasSuffix(t.ID, suffixSettle) {
			return // not paid from a hold
		}
		status, suffix = api.HoldSettled, suffixSettle
	case KindSettle:
		status, suffix = api.HoldSettled, suffixSettle
	case KindRelease:
		status = api.HoldReleased
	case KindExpire:
		status = api.HoldExpired
	default:
		a.fault("%s: %q is not a kind of transaction", name, t.Kind)
		return
	}
	id := strings.TrimSuffix(t.ID, suffix)
	h, ok := a.active[id]
	if !ok || h.Agent != t.Agent || h.Asset != asset || h.Amount != -held {
		a.fault("%s: it ends a hold that was not active with this amount", name)
	}
	delete(a.active, id)
	tally := a.ended[status]
	tally.Holds++
	tally.Amount += h.Amount
	if status == api.HoldSettled {
		h.Settled = h.Amount - amount(AvailableIn(asset, t.Agent))
		tally.Settled += h.Settled
		h.Payee = payeeOf(t, asset)
	}
	a.ended[status] = tally
	if ok {
		h.Status, h.EndedAt = status, t.At
		a.justEnded = append(a.justEnded, h)
	}
}

// payeeOf returns the account that a settlement pays, "" if it pays nothing. After it the
// lines of a purchase have the credits.
func payeeOf(t *Transaction, asset api.Asset) string {
	for _, l := range t.Lines {
		if l.Amount > 0 && l.Account != AvailableIn(asset, t.Agent) {
			return l.Account
		}
	}
	return ""
}

// compareHold compares a stored hold with the computed one.
func (a *audit) compareHold(got, want Hold) {
	if got.ID != want.ID {
		a.fault("hold %s is %s by the transactions and is not stored", want.ID, want.Status)
		return
	}
	if want.Payee == "" {
		got.Payee = "" // it is only named
	}
	for _, f := range []struct {
		name      string
		got, want any
	}{
		{"status", got.Status, want.Status},
		{"agent", got.Agent, want.Agent},
		{"turn", got.Turn, want.Turn},
		{"asset", got.Asset, want.Asset},
		{"amount", int64(got.Amount), int64(want.Amount)},
		{"settled amount", int64(got.Settled), int64(want.Settled)},
		{"payee", got.Payee, want.Payee},
		{"begin", got.CreatedAt, want.CreatedAt},
		{"end", got.EndedAt, want.EndedAt},
	} {
		if f.got != f.want {
			a.fault("hold %s: its %s should be %v and is stored as %v", want.ID, f.name, f.want, f.got)
		}
	}
}

// compare compares the stored state with the computed one.
func (a *audit) compare(s Snapshot) {
	if s.Head != a.head {
		a.fault("the chain should end at %d %s and is stored with the end %d %s", a.head.Seq, a.head.Hash, s.Head.Seq, s.Head.Hash)
	}
	if s.Loose != 0 {
		a.fault("%d stored lines belong to no transaction", s.Loose)
	}
	for _, got := range s.Accounts {
		want := a.balances[got.ID]
		if got.Balance != want.Balance || got.Entries != want.Entries {
			a.fault("the balance of %s should be %d after %d transactions and is stored as %d after %d",
				got.ID, want.Balance, want.Entries, got.Balance, got.Entries)
		}
		delete(a.balances, got.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(a.balances)) {
		a.fault("account %s is not stored", id)
	}
	for _, got := range s.Active {
		if want, ok := a.active[got.ID]; ok {
			a.compareHold(got, want)
		} else {
			a.fault("hold %s is stored as active with %d of %q, and the transactions have no such hold", got.ID, got.Amount, got.Agent)
		}
		delete(a.active, got.ID)
	}
	for _, id := range slices.Sorted(maps.Keys(a.active)) {
		a.fault("hold %s is active by the transactions and is not stored as active", id)
	}
	for _, status := range []api.HoldStatus{api.HoldSettled, api.HoldReleased, api.HoldExpired} {
		if got, want := s.Ended[status], a.ended[status]; got != want {
			a.fault("%s holds: %+v are stored, the transactions have %+v", status, got, want)
		}
	}
}

package ledger

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// batch is the working state of a group of operations. Each operation sees the effects of
// the earlier ones; a refused one has no effect. It is not safe for concurrent use.
type batch struct {
	state State
	now   int64

	posted   []Transaction
	accounts map[string]bool // ids of changed accounts
	holds    []string        // ids of changed holds, in order of their first change
	tiers    []TierChange

	limits limiting
}

func newBatch(s State, now int64, l *limiter) *batch {
	return &batch{state: s, now: now, accounts: map[string]bool{}, limits: limiting{limiter: l}}
}

// changes returns the effects of the group. Accounts are sorted by id, so that two
// replicas update them in the same order and cannot deadlock.
func (b *batch) changes() Changes {
	if !b.limits.need.Empty() {
		return Changes{Need: b.limits.need}
	}
	c := Changes{
		Head: b.state.Head, Transactions: b.posted, Tiers: b.tiers,
		Tallies: b.limits.tallies, Approvals: b.limits.used, Limited: b.limits.changed,
	}
	for id := range b.accounts {
		c.Accounts = append(c.Accounts, b.state.Accounts[id])
	}
	slices.SortFunc(c.Accounts, func(a, b Account) int { return cmp.Compare(a.ID, b.ID) })
	for _, id := range b.holds {
		c.Holds = append(c.Holds, b.state.Holds[id])
	}
	return c
}

// balance returns the credits of an agent in the working state. Errors: NotFound.
func (b *batch) balance(agent string) (Balance, error) {
	a, ok := b.state.Accounts[Available(agent)]
	if !ok {
		return Balance{}, UnknownAgent(agent)
	}
	return Balance{Agent: agent, Available: a.Balance, Held: b.state.Accounts[Held(agent)].Balance, Entries: a.Entries}, nil
}

// has reports whether an agent has an account. Its accounts of USDC are stored with their
// first transaction.
func (b *batch) has(agent string) bool {
	_, ok := b.state.Accounts[Available(agent)]
	return ok
}

// keep records the new state of a hold.
func (b *batch) keep(h Hold) {
	if !slices.Contains(b.holds, h.ID) {
		b.holds = append(b.holds, h.ID)
	}
	b.state.Holds[h.ID] = h
}

// post adds a transaction, or returns an error and changes nothing. It enforces the
// invariants of the ledger for all operations.
func (b *batch) post(t Transaction) (Transaction, error) {
	if fault := t.balanced(); fault != "" && t.Kind != KindLimits {
		return t, fmt.Errorf("transaction %s: %s", t.ID, fault)
	}
	var owners []string
	for i, l := range t.Lines {
		owner := ownerOf(l.Account)
		a, ok := b.state.Accounts[l.Account]
		if owner != "" && (!ok && Required(l.Account) || AssetOf(l.Account) != api.Credits && !b.has(owner)) {
			return t, UnknownAgent(owner)
		}
		next, ok := api.Add(a.Balance, l.Amount)
		if !ok {
			return t, refusal(api.Invalid, "move less", "%s would hold more than %d micro-USD", l.Account, api.MaxMicros)
		}
		if owner != "" {
			if next < 0 {
				return t, insufficient(owner, AssetOf(l.Account), a.Balance, -l.Amount)
			}
			if !slices.Contains(owners, owner) {
				owners = append(owners, owner)
			}
		}
		t.Lines[i].Balance = next
	}
	before := make([]Balance, len(owners))
	for i, agent := range owners {
		balance, err := b.balance(agent)
		if err != nil {
			return t, err
		}
		before[i] = balance
	}

	t.Seq, t.At, t.Trace = b.state.Head.Seq+1, b.now, traceID(t.Parent)
	t.Previous = b.state.Head.Hash
	t.Hash = t.Sum()
	b.state.Head = Head{Seq: t.Seq, Hash: t.Hash}
	for _, l := range t.Lines {
		a := b.state.Accounts[l.Account]
		a.ID, a.Balance = l.Account, l.Balance
		if ownerOf(l.Account) == "" {
			a.Entries++
		}
		b.state.Accounts[l.Account] = a
		b.accounts[l.Account] = true
	}
	for i, agent := range owners {
		id := Available(agent)
		a := b.state.Accounts[id]
		a.Entries++
		b.state.Accounts[id] = a
		b.accounts[id] = true
		b.announceTier(before[i], t)
	}
	b.posted = append(b.posted, t)
	b.state.Transactions[t.ID] = t
	return t, nil
}

func (b *batch) announceTier(before Balance, t Transaction) {
	after := Balance{
		Available: b.state.Accounts[Available(before.Agent)].Balance,
		Held:      b.state.Accounts[Held(before.Agent)].Balance,
	}
	if before.Tier() == after.Tier() {
		return
	}
	b.tiers = append(b.tiers, TierChange{
		Agent: before.Agent, From: before.Tier(), To: after.Tier(), Balance: after.Available + after.Held,
		Seq: t.Seq, At: t.At, Cause: t.Hash, Parent: t.Parent,
	})
}

func insufficient(agent string, asset api.Asset, available, wanted api.Micros) error {
	of, next := "", "anima agent fund "+clip(agent)+" 5, or wait until what it holds is released"
	if asset == api.USDC {
		of, next = " of USDC", "send USDC to the address of the agent's wallet, or wait until what it holds is released"
	}
	return &api.Error{
		Code: api.Denied, Reason: api.ReasonInsufficient,
		Message: fmt.Sprintf("agent %q has %s%s available and needs %s", clip(agent), available, of, wanted), Next: next,
	}
}

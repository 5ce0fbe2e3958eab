package ledger

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// page is the working state of a group of operations. Each operation sees the effects of
// the earlier ones; a refused one has no effect. It is not safe for concurrent use.
type page struct {
	state State
	now   int64

	posted   []Transaction
	accounts map[string]bool // ids of changed accounts
	holds    []string        // ids of changed holds, in order of their first change
	tiers    []TierChange
}

func newPage(s State, now int64) *page {
	return &page{state: s, now: now, accounts: map[string]bool{}}
}

// changes returns the effects of the group. Accounts are sorted by id, so that two
// replicas update them in the same order and cannot deadlock.
func (p *page) changes() Changes {
	c := Changes{Head: p.state.Head, Transactions: p.posted, Tiers: p.tiers}
	for id := range p.accounts {
		c.Accounts = append(c.Accounts, p.state.Accounts[id])
	}
	slices.SortFunc(c.Accounts, func(a, b Account) int { return cmp.Compare(a.ID, b.ID) })
	for _, id := range p.holds {
		c.Holds = append(c.Holds, p.state.Holds[id])
	}
	return c
}

// balance returns the balance of an agent in the working state. Errors: NotFound.
func (p *page) balance(agent string) (Balance, error) {
	a, ok := p.state.Accounts[Available(agent)]
	if !ok {
		return Balance{}, UnknownAgent(agent)
	}
	return Balance{Agent: agent, Available: a.Balance, Held: p.state.Accounts[Held(agent)].Balance, Entries: a.Entries}, nil
}

// keep records the new state of a hold.
func (p *page) keep(h Hold) {
	if !slices.Contains(p.holds, h.ID) {
		p.holds = append(p.holds, h.ID)
	}
	p.state.Holds[h.ID] = h
}

// post adds a transaction, or returns an error and changes nothing. It enforces the
// invariants of the ledger for all operations.
func (p *page) post(t Transaction) (Transaction, error) {
	if fault := t.balanced(); fault != "" {
		return t, fmt.Errorf("transaction %s: %s", t.ID, fault)
	}
	var owners []string
	for i, l := range t.Lines {
		owner := ownerOf(l.Account)
		a, ok := p.state.Accounts[l.Account]
		if !ok && owner != "" {
			return t, UnknownAgent(owner)
		}
		next, ok := api.Add(a.Balance, l.Amount)
		if !ok {
			return t, &api.Error{
				Code: api.Invalid, Message: fmt.Sprintf("%s would hold more than %d micro-USD", l.Account, api.MaxMicros),
				Next: "move less",
			}
		}
		if owner != "" {
			if next < 0 {
				return t, insufficient(owner, a.Balance, -l.Amount)
			}
			if !slices.Contains(owners, owner) {
				owners = append(owners, owner)
			}
		}
		t.Lines[i].Balance = next
	}
	before := make([]Balance, len(owners))
	for i, agent := range owners {
		b, err := p.balance(agent)
		if err != nil {
			return t, err
		}
		before[i] = b
	}

	t.Seq, t.At, t.Trace = p.state.Head.Seq+1, p.now, traceID(t.Parent)
	t.Previous = p.state.Head.Hash
	t.Hash = t.Sum()
	p.state.Head = Head{Seq: t.Seq, Hash: t.Hash}
	for _, l := range t.Lines {
		a := p.state.Accounts[l.Account]
		a.ID, a.Balance = l.Account, l.Balance
		if ownerOf(l.Account) == "" {
			a.Entries++
		}
		p.state.Accounts[l.Account] = a
		p.accounts[l.Account] = true
	}
	for i, agent := range owners {
		id := Available(agent)
		a := p.state.Accounts[id]
		a.Entries++
		p.state.Accounts[id] = a
		p.accounts[id] = true
		p.announceTier(before[i], t)
	}
	p.posted = append(p.posted, t)
	p.state.Transactions[t.ID] = t
	return t, nil
}

func (p *page) announceTier(before Balance, t Transaction) {
	after := Balance{
		Available: p.state.Accounts[Available(before.Agent)].Balance,
		Held:      p.state.Accounts[Held(before.Agent)].Balance,
	}
	if before.Tier() == after.Tier() {
		return
	}
	p.tiers = append(p.tiers, TierChange{
		Agent: before.Agent, From: before.Tier(), To: after.Tier(), Balance: after.Available + after.Held,
		Seq: t.Seq, At: t.At, Cause: t.Hash, Parent: t.Parent,
	})
}

func insufficient(agent string, available, wanted api.Micros) error {
	return &api.Error{
		Code: api.Denied, Reason: api.ReasonInsufficient,
		Message: fmt.Sprintf("agent %q has %s available and needs %s", clip(agent), available, wanted),
		Next:    "anima agent fund " + clip(agent) + " 5, or wait until what it holds is released",
	}
}

package ledger

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// Economics is the result of [Ledger.Economics]: what a group of agents earned and spent
// in a period, in both assets together. Payments between members of the group cancel out.
type Economics struct {
	Spent        map[string]api.Micros // paid from holds, by category
	Earned       api.Micros            // paid by agents outside the group, from holds
	TransfersIn  api.Micros
	TransfersOut api.Micros
	Deposits     api.Micros // from outside the ledger, with credits that others paid
	Exchange     api.Micros // credits bought, minus the USDC paid for them
	Reversed     api.Micros // change by reversals

	Turns    int64      // turns that paid something
	TurnCost api.Micros // what they paid
	Ended    map[api.HoldStatus]Tally
	Buckets  []Bucket
	First    int64 // time of the first transaction in the period, 0 if there is none
	Balance  api.Micros
}

// Bucket is a part of the period, from At to the next one.
type Bucket struct {
	At     int64 // Unix microseconds
	Spent  api.Micros
	Income api.Micros // earned and received by transfers and deposits
}

// Period is a range of time, in Unix microseconds: from Since, before Until.
type Period struct {
	Since, Until int64
	Buckets      int // into how many equal parts it is divided, at least 1
}

// economicsAtOnce is the number of transactions in memory.
const economicsAtOnce = 1000

// Economics adds up the transactions of a group of agents in a period. wallets are the
// addresses of their wallets, in lower case: credits that one of them has paid are bought
// with the USDC of the group. The memory depends on the number of turns in the period, not
// on that of transactions. Errors: NotFound.
func (l *Ledger) Economics(ctx context.Context, agents []string, wallets map[string]bool, p Period) (Economics, error) {
	s := summary{members: map[string]bool{}, wallets: wallets, period: p, turns: map[string]bool{}}
	for _, agent := range agents {
		s.members[agent] = true
	}
	s.Spent, s.Ended, s.Buckets = map[string]api.Micros{}, map[api.HoldStatus]Tally{}, make([]Bucket, p.Buckets)
	for i := range s.Buckets {
		s.Buckets[i].At = p.Since + int64(i)*(p.Until-p.Since)/int64(p.Buckets)
	}
	from, err := l.PointAt(ctx, p.Since-1)
	if err != nil {
		return Economics{}, err
	}
	for _, agent := range agents {
		b, err := l.store.Balance(ctx, agent)
		if err != nil {
			return Economics{}, err
		}
		s.Balance += b.Available + b.Held
		if err := s.read(ctx, l.store, agent, from.Seq); err != nil {
			return Economics{}, err
		}
	}
	s.Turns = int64(len(s.turns))
	return s.Economics, nil
}

// summary adds transactions up.
type summary struct {
	Economics
	members map[string]bool
	wallets map[string]bool
	period  Period
	turns   map[string]bool
}

// read adds the transactions of an agent after a number, except for those that another
// member's list has, too, and that are counted there.
func (s *summary) read(ctx context.Context, store Store, agent string, after int64) error {
	for {
		ts, err := store.Transactions(ctx, agent, after, economicsAtOnce)
		if err != nil {
			return err
		}
		var holds []string
		for i := range ts {
			if ts[i].Kind == KindSettle {
				holds = append(holds, holdOf(&ts[i]))
			}
		}
		categories, err := store.Categories(ctx, holds)
		if err != nil {
			return err
		}
		for i := range ts {
			t := &ts[i]
			if t.At >= s.period.Until {
				return nil
			}
			if t.Agent == agent || !s.members[t.Agent] {
				s.add(t, categories[holdOf(t)])
			}
		}
		if len(ts) < economicsAtOnce {
			return nil
		}
		after = ts[len(ts)-1].Seq
	}
}

// holdOf returns the id of the hold that t settles.
func holdOf(t *Transaction) string {
	if n := len(t.ID) - len(suffixSettle); n > 0 && t.ID[n:] == suffixSettle {
		return t.ID[:n]
	}
	return ""
}

// net returns how a transaction changes what the members own and owe.
func (s *summary) net(t *Transaction) (credits, usdc api.Micros) {
	for _, l := range t.Lines {
		agent := ownerOf(l.Account)
		if agent == "" {
			agent = debtorOf(l.Account)
		}
		if !s.members[agent] {
			continue
		}
		if AssetOf(l.Account) == api.USDC {
			usdc += l.Amount
		} else {
			credits += l.Amount
		}
	}
	return credits, usdc
}

func (s *summary) add(t *Transaction, category string) {
	if s.First == 0 || t.At < s.First {
		s.First = t.At
	}
	i := int((t.At - s.period.Since) * int64(len(s.Buckets)) / (s.period.Until - s.period.Since))
	bucket := &s.Buckets[min(max(i, 0), len(s.Buckets)-1)]
	credits, usdc := s.net(t)
	net := credits + usdc
	income := func(to *api.Micros) {
		*to += net
		bucket.Income += net
	}
	switch t.Kind {
	case KindLimits: // moves no money
	case KindSettle:
		s.settled(t, net, category, bucket)
	case KindTransfer:
		if net > 0 {
			income(&s.TransfersIn)
		} else {
			s.TransfersOut -= net
			bucket.Spent -= net
		}
	case KindDeposit:
		income(&s.Deposits)
	case KindPurchase:
		if usdc == 0 && !s.wallets[payerOf(t)] { // paid from outside the group
			income(&s.Deposits)
		} else {
			s.Exchange += net
		}
	case KindReversal:
		s.Reversed += net
	case KindRelease, KindExpire:
		status := api.HoldReleased
		if t.Kind == KindExpire {
			status = api.HoldExpired
		}
		tally := s.Ended[status]
		tally.Holds++
		for _, l := range t.Lines {
			tally.Amount += max(l.Amount, 0)
		}
		s.Ended[status] = tally
	case KindHold:
	}
}

// settled adds a settlement: of a member, or in favour of one.
func (s *summary) settled(t *Transaction, net api.Micros, category string, bucket *Bucket) {
	if !s.members[t.Agent] {
		s.Earned += net
		bucket.Income += net
		return
	}
	if category == CategoryExchange { // for credits, which are another transaction
		s.Exchange += net
	} else {
		s.Spent[category] -= net // 0 if the payee is a member
		bucket.Spent -= net
	}
	tally := s.Ended[api.HoldSettled]
	tally.Holds++
	tally.Settled -= net
	for _, l := range t.Lines {
		tally.Amount -= min(l.Amount, 0)
	}
	s.Ended[api.HoldSettled] = tally
	if t.Turn != "" && net < 0 {
		s.turns[t.Turn] = true
		s.TurnCost -= net
	}
}

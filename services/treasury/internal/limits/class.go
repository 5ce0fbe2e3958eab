package limits

import "github.com/anima-run/anima/pkg/api"

// Class is the class of a payment's sums: its category, and whether the turn that pays
// serves a peer.
type Class uint8

// The classes. Those of peers have the bit classPeer.
const (
	classInference Class = iota
	classTransfer
	classX402
	classOther
	classPeer Class = 4
	classes         = 8
)

// ClassOf returns the class of a payment. An unknown category is other. Only the
// principals peer and external are peers: "" is a caller that names none.
func ClassOf(category string, by api.PrincipalKind) Class {
	c := classOther
	switch category {
	case api.CategoryInference:
		c = classInference
	case api.CategoryTransfer:
		c = classTransfer
	case api.CategoryX402:
		c = classX402
	}
	if by == api.Peer || by == api.External {
		c |= classPeer
	}
	return c
}

// in reports whether payments of the class count for the limits of a category; "" is all
// categories.
func (c Class) in(category string) bool {
	switch category {
	case "":
		return true
	case api.CategoryPeer:
		return c&classPeer != 0
	}
	return c&^classPeer == ClassOf(category, "")
}

// Sum is a number of payments and their amount.
type Sum struct {
	Amount   api.Micros
	Payments int64
}

// Tally holds the sums of a turn, a session or a payee, by class. Settled is the number of
// payments that were settled with an amount. The zero value is empty.
type Tally struct {
	Sums    [classes]Sum
	Settled int64
}

// Add adds a payment.
func (t Tally) Add(c Class, amount api.Micros) Tally {
	t.Sums[c].Amount += amount
	t.Sums[c].Payments++
	return t
}

// Take subtracts a part of a payment that was counted before. A payment of which nothing
// is paid is not counted any more.
func (t Tally) Take(c Class, amount api.Micros, paid bool) Tally {
	t.Sums[c].take(amount, paid)
	if paid {
		t.Settled++
	}
	return t
}

// take subtracts an amount, and the payment unless it was paid. Sums are never negative: a
// previous release may have begun the payment without counting it.
func (s *Sum) take(amount api.Micros, paid bool) {
	s.Amount = max(0, s.Amount-amount)
	if !paid {
		s.Payments = max(0, s.Payments-1)
	}
}

// Of returns the sum of the classes of a category.
func (t *Tally) Of(category string) Sum {
	var all Sum
	for c := range t.Sums {
		if Class(c).in(category) { //nolint:gosec // below 8
			all.Amount += t.Sums[c].Amount
			all.Payments += t.Sums[c].Payments
		}
	}
	return all
}

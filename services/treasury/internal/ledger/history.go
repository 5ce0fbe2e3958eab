package ledger

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// Point is a point in the history of the ledger: after transaction Seq, which was posted
// at At. The zero value is the empty ledger.
type Point struct {
	Seq int64
	At  int64 // Unix microseconds
}

// PointAt returns the last point whose time is not after at. The times of transactions do
// not decrease as long as one process writes; where the clocks of two replicas differ,
// the point is one between a transaction before at and one after it.
func (l *Ledger) PointAt(ctx context.Context, at int64) (Point, error) {
	head, err := l.store.Head(ctx)
	if err != nil {
		return Point{}, err
	}
	var p Point
	for low, high := int64(1), head.Seq; low <= high; { // transactions below low are not after at, those above high are
		middle := low + (high-low)/2
		t, err := l.store.Time(ctx, middle)
		switch {
		case err != nil:
			return Point{}, err
		case t <= at:
			p, low = Point{Seq: middle, At: t}, middle+1
		default:
			high = middle - 1
		}
	}
	return p, nil
}

// PointOf returns the point after a transaction, by its number; 0 is the empty ledger.
// Errors: Invalid, if the ledger is shorter.
func (l *Ledger) PointOf(ctx context.Context, seq int64) (Point, error) {
	if seq == 0 {
		return Point{}, nil
	}
	at, err := l.store.Time(ctx, seq)
	if api.CodeOf(err) == api.NotFound {
		head, err := l.store.Head(ctx)
		if err != nil {
			return Point{}, err
		}
		return Point{}, refusal(api.Invalid, "anima ledger entries lists the transactions", "the ledger has the transactions 1 to %d, not %d", head.Seq, seq)
	}
	return Point{Seq: seq, At: at}, err
}

// BalanceAt returns the balance of an agent at a point, without Entries. It is zero before
// the first transaction of the agent. Errors: NotFound.
func (l *Ledger) BalanceAt(ctx context.Context, agent string, p Point) (Balance, error) {
	if err := checkAgent(agent); err != nil {
		return Balance{}, err
	}
	return l.store.BalanceAt(ctx, agent, p.Seq)
}

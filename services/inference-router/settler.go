package router

import (
	"context"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// settler sends settlements to treasury, one group at a time: a settlement that comes
// alone is sent at once, those that come while a group is under way make the next one.
// It has no goroutine: the caller that is there first sends for all, then hands the next
// group to one of its callers.
type settler struct {
	send func(group []*settlement) // sets what came of each

	mu      sync.Mutex
	waiting []*settlement
	sending bool
}

// settlement is one call of [settler.settle].
type settlement struct {
	ctx   context.Context //nolint:containedctx // of the call that is paid, while it waits
	what  api.Settle
	leads chan bool // one value: true, its caller sends the next group; false, it was sent

	funds *api.Funds
	err   error
}

// settle pays what was held. It returns the agent's funds afterwards, nil if treasury
// does not tell them. It may wait for as long as two groups take.
func (s *settler) settle(ctx context.Context, what api.Settle) (*api.Funds, error) {
	x := &settlement{ctx: ctx, what: what, leads: make(chan bool, 1)}
	s.mu.Lock()
	s.waiting = append(s.waiting, x)
	leads := !s.sending
	s.sending = true
	s.mu.Unlock()
	if leads || <-x.leads {
		s.lead(x)
	}
	return x.funds, x.err
}

// lead sends all that wait, x among them.
func (s *settler) lead(x *settlement) {
	s.mu.Lock()
	group := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, y := range group {
		y.err = errNotSent
	}
	defer func() { // also when send panics: others wait
		for _, y := range group {
			if y != x {
				y.leads <- false
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sending = len(s.waiting) > 0; s.sending {
			s.waiting[0].leads <- true
		}
	}()
	s.send(group)
}

// errNotSent is what a settlement comes to that was in a group when its sending broke off.
var errNotSent = &api.Error{Code: api.Unavailable, Message: "the settlement was not sent", Next: "ask again", RetryAfter: 1000}

// payAll sends a group of settlements.
func (h *handlers) payAll(group []*settlement) {
	var all sync.WaitGroup
	for _, x := range group[1:] {
		all.Go(func() { h.payOne(x) })
	}
	h.payOne(group[0])
	all.Wait()
}

func (h *handlers) payOne(x *settlement) {
	_, x.err = failpoint.Value(x.ctx, failpoint.RouterSettle, func(ctx context.Context) (api.HoldState, error) {
		return bus.Call[api.HoldState](ctx, h.bus, x.what)
	})
}

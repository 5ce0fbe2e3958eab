package router

import (
	"context"
	"sync"
	"time"

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

// lead sends those that wait, x first.
func (s *settler) lead(x *settlement) {
	s.mu.Lock()
	n := min(len(s.waiting), api.MaxSettlements)
	group := s.waiting[:n:n]
	s.waiting = s.waiting[n:]
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

// pastTreasury is how long settlements are sent one by one after no treasury took them
// together: one of a release before may be the only one there is.
const pastTreasury = 30 * time.Second

// togetherWithin bounds how long a treasury is looked for that takes settlements together.
const togetherWithin = time.Second

// payAll sends a group of settlements, in one request if treasury takes it so.
func (h *handlers) payAll(group []*settlement) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(group[0].ctx), afterwards)
	defer cancel()
	if h.now().UnixMicro() >= h.singly.Load() {
		err := h.payTogether(ctx, group)
		if err == nil {
			return
		}
		if api.ReasonOf(err) != api.ReasonNoAnswer {
			for _, x := range group {
				x.err = err
			}
			return
		}
		h.singly.Store(h.now().Add(pastTreasury).UnixMicro())
	}
	var all sync.WaitGroup
	for _, x := range group {
		all.Go(func() {
			_, x.err = failpoint.Value(ctx, failpoint.RouterSettle, func(context.Context) (api.HoldState, error) {
				return bus.Call[api.HoldState](x.ctx, h.bus, x.what)
			})
		})
	}
	all.Wait()
}

// payTogether sends a group in one request. Its error is one of the request: nothing is
// known of any settlement then.
func (h *handlers) payTogether(ctx context.Context, group []*settlement) error {
	m := api.SettleMany{Settlements: make([]api.Settlement, len(group))}
	for i, x := range group {
		m.Settlements[i] = api.Settlement{
			ID: x.what.ID, Amount: x.what.Amount, Payee: x.what.Payee, Memo: x.what.Memo, TraceParent: bus.TraceParent(x.ctx),
		}
	}
	done, err := failpoint.Value(ctx, failpoint.RouterSettle, func(ctx context.Context) (api.Settled, error) {
		return h.settleMany(ctx, m)
	})
	if err != nil {
		return err
	}
	if len(done.Results) != len(group) {
		return api.Errorf(api.Internal, "treasury answers %d of %d settlements", len(done.Results), len(group))
	}
	for i, x := range group {
		switch r := done.Results[i]; {
		case r.Hold != nil:
			x.err, x.funds = nil, fundsOf(done, r.Hold.Agent)
		case r.Error != nil:
			x.err = r.Error
		}
	}
	return nil
}

// settleMany asks treasury. A question that no treasury takes ends sooner than one that is
// taken and not answered.
func (h *handlers) settleMany(ctx context.Context, m api.SettleMany) (api.Settled, error) {
	first, cancel := context.WithTimeout(ctx, togetherWithin)
	defer cancel()
	done, err := bus.Call[api.Settled](first, h.bus, m)
	if err == nil || api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) == api.ReasonNoAnswer {
		return done, err
	}
	return bus.Call[api.Settled](ctx, h.bus, m)
}

// fundsOf are an agent's funds in an answer of treasury.
func fundsOf(done api.Settled, agent string) *api.Funds {
	for _, f := range done.Funds {
		if f.Agent == agent {
			return &f.Funds
		}
	}
	return nil
}

package router

import (
	"context"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// settler sends settlements to treasury in groups.
type settler struct{ gatherer[*settlement] }

// settlement is one call of [settler.settle] in progress.
type settlement struct {
	ctx  context.Context //nolint:containedctx // context of the call that is paid, kept while the settlement waits
	what api.Settle

	funds *api.Funds
	err   error
}

// settle settles a hold. It returns the agent's funds afterwards, nil if treasury does
// not report them.
func (s *settler) settle(ctx context.Context, what api.Settle) (*api.Funds, error) {
	x := &settlement{ctx: ctx, what: what, err: errNotSent}
	s.do(x)
	return x.funds, x.err
}

// errNotSent is the error of a settlement that was in a group whose send panicked before
// it set a result.
var errNotSent = &api.Error{Code: api.Unavailable, Message: "the settlement was not sent", Next: "retry", RetryAfter: 1000}

// singleFor is how long settlements are sent one by one after no replica of treasury
// accepted a [api.SettleMany]: the only replica may be of the previous release.
const singleFor = 30 * time.Second

// batchTimeout is how long the first request of [api.SettleMany] may take; see
// [handlers.settleMany].
const batchTimeout = time.Second

// sendSettlements sends a group of settlements in one request, or one by one if no
// replica of treasury accepts the request.
func (h *handlers) sendSettlements(group []*settlement) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(group[0].ctx), finishTimeout)
	defer cancel()
	if h.now().UnixMicro() >= h.singleUntil.Load() {
		err := h.sendBatch(ctx, group)
		if err == nil {
			return
		}
		if api.ReasonOf(err) != api.ReasonNoAnswer {
			for _, x := range group {
				x.err = err
			}
			return
		}
		h.singleUntil.Store(h.now().Add(singleFor).UnixMicro())
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

// sendBatch sends a group in one request. An error is of the request as a whole: the
// outcome of each settlement is then unknown.
func (h *handlers) sendBatch(ctx context.Context, group []*settlement) error {
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
		return api.Errorf(api.Internal, "treasury returned %d of %d settlement results", len(done.Results), len(group))
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

// settleMany sends the request with a timeout of [batchTimeout], so that a request that
// no replica accepts fails early. If a replica accepted it and did not answer in time, it
// is sent again with the full timeout.
func (h *handlers) settleMany(ctx context.Context, m api.SettleMany) (api.Settled, error) {
	first, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	done, err := bus.Call[api.Settled](first, h.bus, m)
	if err == nil || api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) == api.ReasonNoAnswer {
		return done, err
	}
	return bus.Call[api.Settled](ctx, h.bus, m)
}

// fundsOf returns the agent's funds from an answer of treasury, nil if they are not in
// it.
func fundsOf(done api.Settled, agent string) *api.Funds {
	for _, f := range done.Funds {
		if f.Agent == agent {
			return &f.Funds
		}
	}
	return nil
}

package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// answer returns the answer of a stored call. It passes the answer to early first, then
// settles the call and returns the answer with the agent's funds. A call that costs
// nothing has no early answer. The error is a Conflict when the call belongs to another
// agent, or to another request with the same key.
//
// The settlement continues when the caller's context ends. A crash before the settlement
// leaves an active hold of a stored call; it is settled by the next request with the same
// id, by [api.Confirm] or by [handlers.settleLeftovers].
func (h *handlers) answer(ctx context.Context, req callRequest, p sqlstore.StoredCall, early func(api.Completion)) (api.Completion, error) {
	if err := req.checkRepeated(p.Call.Agent, p.Call.Request); err != nil {
		return api.Completion{}, err
	}
	answer := p.Answer
	if p.Hold == "" {
		return answer, nil
	}
	_ = failpoint.Do(ctx, failpoint.RouterAnswer, func(context.Context) error { early(answer); return nil })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	var err error
	answer.Funds, err = h.settle(ctx, p)
	return answer, err
}

// confirm settles a stored call for a caller that has the answer but no settlement.
func (h *handlers) confirm(ctx context.Context, m api.Confirm) (api.Completion, error) {
	p, found, err := h.store.Find(ctx, m.ID)
	if err == nil && !found {
		err = &api.Error{Code: api.NotFound, Message: "no answer to call " + m.ID + " is stored", Next: "make the call"}
	}
	if err != nil {
		return api.Completion{}, err
	}
	return h.answer(ctx, callRequest{Complete: api.Complete{ID: m.ID, Agent: m.Agent}}, p, func(api.Completion) {})
}

// holdTime is how long a hold lasts unless it is ended.
const holdTime = 10 * time.Minute

// hold holds credits. It reports whether this request made the hold, or may have made it:
// false means that the hold existed before.
func (h *handlers) hold(ctx context.Context, point failpoint.Point, m api.Hold) (state api.HoldState, own bool, err error) {
	expires := h.now().Add(holdTime).UnixMicro()
	state, err = failpoint.Value(ctx, point, func(ctx context.Context) (api.HoldState, error) {
		m.Category, m.ExpiresAt = api.CategoryInference, expires
		return bus.Call[api.HoldState](ctx, h.bus, m)
	})
	return state, state.ExpiresAt == expires || state.ExpiresAt == 0, err
}

// settle settles a stored call from its hold and returns the agent's funds afterwards;
// see [settler.settle]. It is idempotent. If treasury fails and the caller does not
// retry, [handlers.settleLeftovers] settles the call.
func (h *handlers) settle(ctx context.Context, p sqlstore.StoredCall) (*api.Funds, error) {
	funds, err := h.settleStored(ctx, p)
	if err != nil {
		h.unpaid.add(p.Hold)
		h.signalUnsettled()
	}
	return funds, err
}

// settleStored is [handlers.settle] without another attempt.
func (h *handlers) settleStored(ctx context.Context, p sqlstore.StoredCall) (*api.Funds, error) {
	funds, err := h.pay(ctx, p, p.Hold)
	if api.CodeOf(err) == api.Conflict && p.Call.Cost > 0 {
		if _, lost, ferr := h.store.FailedByHold(ctx, p.Hold); ferr == nil && lost {
			return nil, nil // another replica took this attempt for lost and paid the whole hold
		}
		funds, err = h.settleLate(ctx, p)
	}
	if funds != nil {
		h.tiers.set(p.Call.Agent, funds.Tier, h.now())
	}
	return funds, err
}

// signalUnsettled signals [handlers.settleLeftovers] that there may be unsettled holds.
func (h *handlers) signalUnsettled() {
	select {
	case h.unsettled <- struct{}{}:
	default: // a signal is pending
	}
}

func (h *handlers) pay(ctx context.Context, p sqlstore.StoredCall, hold string) (*api.Funds, error) {
	return h.settler.settle(ctx, api.Settle{ID: hold, Amount: p.Call.Cost, Payee: payeePrefix + p.Call.Provider, Memo: p.Call.Model})
}

// lateMark is in the id of a hold that [handlers.settleLate] makes, after that of the first
// hold.
const lateMark = "/late"

// settleLate settles a stored call after its hold has ended without a settlement: the
// hold expired before the call was requested again, or another replica failed at the same
// call and released it. It makes a new hold, with an id derived from the id of the first
// one, so the call is paid once.
func (h *handlers) settleLate(ctx context.Context, p sqlstore.StoredCall) (*api.Funds, error) {
	for n := range maxHolds {
		id := p.Hold + lateMark + strconv.Itoa(n)
		state, _, err := h.hold(ctx, failpoint.RouterHold, api.Hold{
			ID: id, Agent: p.Call.Agent, Amount: p.Call.Cost, Turn: p.Call.Turn, Session: p.Call.Session, Payee: payeePrefix + p.Call.Provider, Owed: true,
		})
		switch {
		case err != nil:
			return nil, err
		case state.Status == api.HoldSettled:
			return nil, nil
		case state.Status == api.HoldActive:
			return h.pay(ctx, p, id)
		}
	}
	return nil, api.Errorf(api.Conflict, "call %s is stored and cannot be settled", p.Call.ID)
}

// endFailed ends the hold of a failed attempt: it settles the cost of the partial answer,
// or releases the hold if there is no cost.
func (h *handlers) endFailed(ctx context.Context, f sqlstore.FailedAttempt) error {
	var err error
	if f.Call.Cost > 0 {
		_, err = bus.Call[api.HoldState](ctx, h.bus, api.Settle{ID: f.Hold, Amount: f.Call.Cost, Payee: payeePrefix + f.Call.Provider, Memo: api.MemoBroken})
	} else {
		_, err = bus.Call[api.HoldState](ctx, h.bus, api.Release{ID: f.Hold, Reason: "provider failed"})
	}
	return err
}

// settleLeftovers settles active holds of stored calls, failed attempts and lost attempts,
// which a crash or an unavailable treasury left, and the stored calls whose settlement has
// failed in this process. It runs a pass when the service starts,
// after each signal of [handlers.signalUnsettled], and every [sweepEvery]. A pass that
// fails is repeated after 2 s.
func (h *handlers) settleLeftovers(ctx context.Context) error {
	for {
		pause := time.NewTimer(sweepEvery)
		if err := h.settleOnce(ctx); err != nil && ctx.Err() == nil {
			if api.CodeOf(err) != api.Unavailable {
				h.log.ErrorContext(ctx, "leftover holds not settled, retrying", "err", err)
			}
			pause.Reset(2 * time.Second)
		}
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		case <-h.unsettled:
			pause.Stop()
		}
	}
}

// settleOnce makes one pass over the oldest active holds of model calls. Those on which no call
// was made are released last: the list is older than their end.
func (h *handlers) settleOnce(ctx context.Context) error {
	holds, err := bus.Call[api.Holds](ctx, h.bus, api.ListHolds{Category: api.CategoryInference, Limit: 250})
	if err != nil {
		return err
	}
	return errors.Join(h.sweep(ctx, holds.Holds), h.settleUnpaid(ctx), h.releaseUnsure(ctx))
}

// unpaid holds the ids of the holds of stored calls whose settlement failed in this process.
// Such a hold may expire before treasury can be reached again: then it is in no list, and
// the caller does not repeat a call over HTTP whose answer it has. The zero value is ready
// to use.
type unpaid struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (u *unpaid) add(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ids == nil {
		u.ids = map[string]bool{}
	}
	u.ids[id] = true
}

func (u *unpaid) remove(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.ids, id)
}

func (u *unpaid) all() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Keys(u.ids))
}

// settleUnpaid settles the stored calls of unpaid. One whose agent has not enough credits is
// left to the next pass, and one that cannot be settled is forgotten.
func (h *handlers) settleUnpaid(ctx context.Context) error {
	var faults []error
	for _, hold := range h.unpaid.all() {
		p, found, err := h.store.FindByHold(ctx, hold)
		if err == nil && found {
			_, err = h.settleStored(ctx, p)
		}
		switch code := api.CodeOf(err); {
		case err == nil:
			h.unpaid.remove(hold)
		case code == api.Conflict, code == api.Invalid, code == api.NotFound:
			h.unpaid.remove(hold)
			h.log.ErrorContext(ctx, "stored call cannot be settled", "hold", hold, "err", err)
		case code != api.Denied:
			faults = append(faults, fmt.Errorf("settle %s: %w", hold, err))
		}
	}
	return errors.Join(faults...)
}

// settleHold ends the hold of a stored call or of a stored failed attempt. It returns
// false for any other hold.
func (h *handlers) settleHold(ctx context.Context, hold string) (bool, error) {
	p, found, err := h.store.FindByHold(ctx, hold)
	if err != nil {
		return false, err
	}
	if found {
		_, err := h.pay(ctx, p, hold)
		return true, err
	}
	return h.settleFailed(ctx, hold)
}

// settleFailed ends the hold of a stored failed attempt. It returns false for any other
// hold.
func (h *handlers) settleFailed(ctx context.Context, hold string) (bool, error) {
	f, found, err := h.store.FailedByHold(ctx, hold)
	if err != nil || !found {
		return false, err
	}
	return true, h.endFailed(ctx, f)
}

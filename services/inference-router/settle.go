package router

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// answer gives what a stored call answered to whom it belongs: at once by early, then,
// settled, as the result. A call that costs nothing has no early answer. The settlement
// goes on when the caller has gone. Whoever dies in between leaves an active hold of a
// stored call: the next question under its id, a [api.Confirm] or
// [handlers.settleLeftovers] settles it.
func (h *handlers) answer(ctx context.Context, agent string, p sqlstore.Paid, early func(api.Completion)) (api.Completion, error) {
	if p.Call.Agent != agent {
		return api.Completion{}, api.Errorf(api.Conflict, "call %s is another agent's", p.Call.ID)
	}
	answer := p.Answer
	if p.Hold == "" {
		return answer, nil
	}
	_ = failpoint.Do(ctx, failpoint.RouterAnswer, func(context.Context) error { early(answer); return nil })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	var err error
	answer.Funds, err = h.settle(ctx, p)
	return answer, err
}

// confirm settles a stored call, whose caller has its answer and not the settlement.
func (h *handlers) confirm(ctx context.Context, m api.Confirm) (api.Completion, error) {
	p, found, err := h.store.Find(ctx, m.ID)
	if err == nil && !found {
		err = &api.Error{Code: api.NotFound, Message: "no answer to call " + m.ID + " is stored", Next: "make the call"}
	}
	if err != nil {
		return api.Completion{}, err
	}
	return h.answer(ctx, m.Agent, p, func(api.Completion) {})
}

func (h *handlers) hold(ctx context.Context, id, agent, turn string, amount api.Micros) (api.HoldState, error) {
	return failpoint.Value(ctx, failpoint.RouterHold, func(ctx context.Context) (api.HoldState, error) {
		return bus.Call[api.HoldState](ctx, h.bus, api.Hold{
			ID: id, Agent: agent, Amount: amount, Category: api.CategoryInference, Turn: turn, ExpiresAt: h.now().Add(10 * time.Minute).UnixMicro(),
		})
	})
}

// settle pays a stored call from its hold and returns what its agent has afterwards; see
// [settler.settle]. Settling again changes nothing. What treasury does not take now is
// left to [handlers.settleLeftovers], should the caller not ask again.
func (h *handlers) settle(ctx context.Context, p sqlstore.Paid) (*api.Funds, error) {
	funds, err := h.pay(ctx, p, p.Hold)
	if api.CodeOf(err) == api.Conflict && p.Call.Cost > 0 {
		funds, err = h.settleLate(ctx, p)
	}
	if err != nil {
		h.leaves()
	}
	return funds, err
}

// leaves tells [handlers.settleLeftovers] that there may be something.
func (h *handlers) leaves() {
	select {
	case h.unsettled <- struct{}{}:
	default: // it has been told already
	}
}

func (h *handlers) pay(ctx context.Context, p sqlstore.Paid, hold string) (*api.Funds, error) {
	return h.settler.settle(ctx, api.Settle{ID: hold, Amount: p.Call.Cost, Payee: "provider:" + p.Call.Provider, Memo: p.Call.Model})
}

// settleLate pays a stored call whose hold has ended without it: it expired
// before the call was asked for again, or another replica failed at the same call and
// gave it back. Its ids follow from the first hold's, so it too pays once.
func (h *handlers) settleLate(ctx context.Context, p sqlstore.Paid) (*api.Funds, error) {
	for n := range maxHolds {
		id := p.Hold + "/late" + strconv.Itoa(n)
		state, err := h.hold(ctx, id, p.Call.Agent, p.Call.Turn, p.Call.Cost)
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

// endFailed ends the hold of a failed attempt: what had come of its answer is paid, the
// rest given back.
func (h *handlers) endFailed(ctx context.Context, f sqlstore.Failed) error {
	var err error
	if f.Cost > 0 {
		_, err = bus.Call[api.HoldState](ctx, h.bus, api.Settle{ID: f.Hold, Amount: f.Cost, Payee: "provider:" + f.Provider, Memo: api.MemoBroken})
	} else {
		_, err = bus.Call[api.HoldState](ctx, h.bus, api.Release{ID: f.Hold, Reason: "provider failed"})
	}
	return err
}

// settleLeftovers pays what a crash, or a treasury that was away, left between
// store and settle: active holds whose call is stored. It looks when the service
// starts and when storing or settling has failed, until there are none.
func (h *handlers) settleLeftovers(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if err := h.settleOnce(ctx); err != nil && ctx.Err() == nil {
			if api.CodeOf(err) != api.Unavailable {
				h.log.ErrorContext(ctx, "leftover holds", "err", err)
			}
			again = time.After(2 * time.Second)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		case <-h.unsettled:
		}
	}
}

func (h *handlers) settleOnce(ctx context.Context) error {
	holds, err := bus.Call[api.Holds](ctx, h.bus, api.ListHolds{Limit: 250})
	if err != nil {
		return err
	}
	var faults []error // of one hold each, which must not stand before the others
	for _, hold := range holds.Holds {
		found, err := h.settleHold(ctx, hold.ID)
		if err != nil {
			faults = append(faults, fmt.Errorf("settle %s: %w", hold.ID, err))
		}
		if err != nil || !found {
			continue
		}
		h.log.InfoContext(ctx, "settled what was left", "hold", hold.ID)
	}
	return errors.Join(faults...)
}

// settleHold ends a hold whose call, or failed attempt, is stored; false for any other.
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

// settleFailed ends a hold whose failed attempt is stored; false for any other.
func (h *handlers) settleFailed(ctx context.Context, hold string) (bool, error) {
	f, found, err := h.store.FailedByHold(ctx, hold)
	if err != nil || !found {
		return false, err
	}
	return true, h.endFailed(ctx, f)
}

package router

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// maxHolds is how many holds one candidate of a call may have; callers give up earlier.
const maxHolds = 32

// reserve holds the credits of an attempt and returns the id of the hold, which is in
// [handlers.working] until the caller ends it there. Each attempt has a hold of its own.
// If a hold with the id exists, an earlier try of the call made it. If it is active,
// [candidate.awaitAttempt] waits for its end. If it has ended without an answer to the
// call, reserve continues with the next id. A hold that this process asked for without an
// answer, so that no call was made on it, is used.
//
// A treasury of the release before does not tell when a hold was made. Then an active hold
// is used unless it belongs to a failed attempt.
//
// A request for a hold ignores the cancellation of ctx: treasury may have made the hold
// already, and without its id it would not be released. The error is an [*answeredError]
// if the call was answered in the meantime.
func (m *candidate) reserve(ctx context.Context, c *callState) (string, error) {
	tried := c.tries > 0 || c.failedCost > 0
	for n := range maxHolds {
		id := holdID(m.hold, n)
		if !m.h.working.begin(id) { // an attempt of this process that was canceled is ending
			if err := m.awaitAttempt(ctx, c, id); err != nil {
				return "", err
			}
			continue
		}
		own, active, err := m.reserveAs(ctx, failpoint.RouterHold, id, tried)
		if own {
			c.made = append(c.made, id)
			return id, nil
		}
		m.h.working.end(id)
		switch {
		case active:
			err = m.awaitAttempt(ctx, c, id)
		case err == nil && !slices.Contains(c.made, id):
			// An earlier try has ended, perhaps after this one has looked for its answer.
			err = m.outcome(ctx, c)
			if err == nil && !c.swept && m.h.hedges.on() {
				err = m.endEarlier(ctx, c, id) // it may have left the hold of a second attempt
			}
		}
		if err != nil {
			return "", err
		}
	}
	return "", api.Errorf(api.Conflict, "call %s was started %d times, which is the limit; use a new call id", m.req.ID, maxHolds)
}

// holdID returns the id of the n-th hold, from 0, of a candidate or of its hedge. Its last
// slash is the end of the call's id.
func holdID(first string, n int) string {
	if n == 0 {
		return first
	}
	return first + "." + strconv.Itoa(n)
}

// reserveAs requests a hold. It returns own for a hold that the attempt can use, and
// active for one of another attempt that has not ended.
func (m *candidate) reserveAs(ctx context.Context, point failpoint.Point, id string, tried bool) (own, active bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	unsure := m.h.unsure.has(id)
	state, made, err := m.h.hold(ctx, point, api.Hold{
		ID: id, Agent: m.req.Agent, Amount: m.most, Turn: m.req.Turn, Payee: m.payee(), Session: m.req.Session, By: m.req.By,
	})
	switch {
	case api.CodeOf(err) == api.Conflict && unsure: // it has another amount, and is being released
		return false, false, nil
	case api.CodeOf(err) == api.Conflict: // an earlier try with another prompt, in progress or not
		all, err := m.holds(ctx)
		return false, slices.ContainsFunc(all, func(s api.HoldState) bool { return s.ID == id }), err
	case err != nil:
		if api.CodeOf(err) == api.Unavailable || ctx.Err() != nil {
			m.h.unsure.add(id)
			m.h.signalUnsettled()
		}
		return false, false, err
	case state.Status != api.HoldActive:
		return false, false, nil
	case unsure && m.h.unsure.take(id):
		return true, false, nil
	case unsure: // it is being released
		return false, false, nil
	case !made:
		return false, true, nil
	}
	return state.ExpiresAt != 0 || !tried || !m.ended(ctx, id), false, nil
}

// payee returns the account that the attempt pays.
func (m *candidate) payee() string { return payeePrefix + m.provider.Name() }

// ended reports whether a hold belongs to a stored answer or a failed attempt, and ends it
// in that case.
func (m *candidate) ended(ctx context.Context, id string) bool {
	found, err := m.h.settleHold(ctx, id)
	if err != nil {
		m.h.log.WarnContext(ctx, "hold of an earlier attempt not ended, retrying later", "hold", id, "err", err)
		m.h.signalUnsettled()
	}
	return found || err != nil // after an error the owner of the hold is unknown: using another hold is safe
}

// answeredError is the error of an attempt that was not made, because the call has been
// answered.
type answeredError struct{ stored sqlstore.StoredCall }

func (e *answeredError) Error() string { return "call " + e.stored.Call.ID + " is answered" }

// attemptPoll is the time between two looks at an attempt of another process.
const attemptPoll = 500 * time.Millisecond

// awaitAttempt waits until an earlier attempt of the call, with an active hold, has ended:
// an attempt in progress, at this or another replica, is waited for, and a lost one is
// ended; see [candidate.lose]. The error is an [*answeredError] if it was answered.
func (m *candidate) awaitAttempt(ctx context.Context, c *callState, id string) error {
	for {
		busy, err := m.h.inProgress(ctx, id)
		if err != nil {
			return err
		}
		// The outcome is read after the question: an attempt that is not in progress any
		// more has stored it.
		if err := m.outcome(ctx, c); err != nil {
			return err
		}
		if !busy {
			return m.endEarlier(ctx, c, id)
		}
		if err := wait.For(ctx, attemptPoll); err != nil {
			return failureOf(provider.CanceledError(m.provider.Name(), err))
		}
	}
}

// outcome reads the outcome of the earlier attempts of the call. The error is an
// [*answeredError] if one of them answered it.
func (m *candidate) outcome(ctx context.Context, c *callState) error {
	stored, found, n, err := m.h.store.Lookup(ctx, m.req.ID)
	if err != nil {
		return err
	}
	if found {
		return &answeredError{stored}
	}
	c.tries, c.failedCost = n.Call, n.Cost
	return nil
}

// endEarlier ends the hold of an attempt that no replica works on, and other holds of its
// try of the call: a try that was hedged has two.
func (m *candidate) endEarlier(ctx context.Context, c *callState, id string) error {
	c.swept = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	all, err := m.holds(ctx)
	for _, hold := range all {
		if call, _ := cutLast(hold.ID, "/"); call != m.req.ID || m.h.working.has(hold.ID) || m.h.unsure.has(hold.ID) {
			continue
		}
		if hold.ID != id {
			if busy, err := m.h.inProgress(ctx, hold.ID); busy || err != nil {
				continue // a sweep ends it if it is lost
			}
		}
		if !m.ended(ctx, hold.ID) {
			m.lose(ctx, c, hold)
		}
	}
	return err
}

// holds returns the active holds of the agent for model calls.
func (m *candidate) holds(ctx context.Context) ([]api.HoldState, error) {
	own, err := bus.Call[api.Holds](ctx, m.h.bus, api.ListHolds{Agent: m.req.Agent, Category: api.CategoryInference, Limit: 250})
	return own.Holds, err
}

// lose ends the hold of an earlier attempt without an outcome, whose process crashed. The
// provider may have billed all that the attempt was allowed to use, so lose stores it as a
// failed attempt with the whole hold as its cost. It does not count as a try. All replicas
// store the same row; see [handlers.payLost] for a call that is not repeated.
func (m *candidate) lose(ctx context.Context, c *callState, hold api.HoldState) {
	f := lostAttempt(hold)
	if f.Call.Provider == m.provider.Name() || f.Call.Provider == unknownName {
		used := provider.Usage{Input: 2 * m.ask.Estimate(), Output: m.limit, Estimated: true}
		at := f.Call.At
		f.Call = m.row(ctx, used, 0)
		f.Call.At = at
	}
	f.Call.ID, f.Call.Cost, f.Run = m.req.ID, hold.Amount, m.req.Run
	m.endAttempt(ctx, c, f)
}

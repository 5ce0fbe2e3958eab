package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// permission is what a candidate needs for its next attempt.
type permission struct {
	paid   bool // the budget of its provider has admitted it
	permit health.Permit
}

// budgets is the use that one request makes of the budgets of retries.
type budgets struct {
	called  []string // providers
	failing []string // of them, those of which a further attempt is a retry
	denied  bool     // a retry was denied
}

func (m *candidate) route() health.Route {
	return health.Route{Provider: m.provider.Name(), Model: m.model.ID}
}

// blocked returns how long the breaker of the model refuses calls, 0 if it may admit one.
// It also moves notBefore to the time that the provider asked any caller to wait for. The
// callers resume at different times after it.
func (m *candidate) blocked(now time.Time) time.Duration {
	s := m.h.health.State(m.route())
	if s.NotBefore.After(m.notBefore) {
		m.notBefore = s.NotBefore.Add(jitter(firstWait))
	}
	return s.Blocked(now)
}

// begin admits an attempt, which [attempt.end] has to end.
func (m *candidate) begin(ctx context.Context) (ok bool) {
	m.permit, ok = m.h.health.begin(ctx, m.route())
	m.paid = m.paid && !ok
	return ok
}

// skip ends an attempt that did not call the provider.
func (m *candidate) skip() { m.h.health.end(&m.permit, health.Unknown, 0, "") }

// pause returns the error of a call that is not made because of the calls before it.
func (m *candidate) pause() *api.Error {
	route := m.route()
	return &api.Error{
		Code:    api.Unavailable,
		Message: fmt.Sprintf("%s; %s is not called for a time", cmp.Or(m.h.health.cause(route), "provider "+route.Provider+" failed"), route.Model),
		Next:    "try again later, or configure another provider",
	}
}

// spend takes the next attempt on a candidate from the budget of retries of its provider. It
// returns false if the attempt is a retry and the budget is used up. Then no model of
// the provider is called any more for this request.
func (c *callState) spend(m *candidate) bool {
	name := m.provider.Name()
	if m.paid {
		return true
	}
	if slices.Contains(c.budgets.failing, name) && !c.h.health.Retry(name) {
		c.budgets.denied = true
		for _, other := range c.models {
			other.excluded = other.excluded || other.provider.Name() == name
		}
		return false
	}
	m.paid = true
	return true
}

// countCall counts the first attempt of the request at a provider, when its hold is made: a
// call that treasury refuses pays for no retries.
func (c *callState) countCall(m *candidate) {
	if name := m.provider.Name(); !slices.Contains(c.budgets.called, name) {
		c.budgets.called = append(c.budgets.called, name)
		c.h.health.Call(name)
	}
}

// unavailable returns the error of a call that was not tried further because of breakers
// or budgets, or nil. It has the time after which the caller may repeat the call.
func (c *callState) unavailable() error {
	now := c.h.now()
	var first *candidate
	after := time.Duration(0)
	for _, m := range c.models {
		if wait := m.blocked(now); !m.excluded && (first == nil || wait < after) {
			first, after = m, wait
		}
	}
	switch {
	case first != nil:
		return retryLater(first.pause(), after)
	case c.budgets.denied:
		err := *api.Wire(c.last)
		err.Message += "; not repeated, because too many calls to the provider have failed"
		return retryLater(&err, max(firstWait, time.Duration(err.RetryAfter)*time.Millisecond))
	}
	return nil
}

// causeOf says why an attempt failed, for the callers of other agents. It has no words of
// the provider, which may be about the request.
func causeOf(err error) string {
	e, ok := errors.AsType[*provider.Error](err)
	switch {
	case !ok:
		return ""
	case e.Status != 0:
		return fmt.Sprintf("provider %s answered with status %d", e.Provider, e.Status)
	case e.Kind == provider.Unreachable:
		return "provider " + e.Provider + " cannot be reached"
	case e.Kind == provider.Stalled:
		return "provider " + e.Provider + " sent no token in time"
	}
	return "provider " + e.Provider + " failed"
}

// slowAnswer is how long an attempt has to take without a part of an answer until the end
// of the call's time counts as a failure of the provider. The caller may have set a
// deadline that no provider can meet.
const slowAnswer = 10 * time.Second

// resultOf returns what an attempt says about its route, and the wait that the provider
// asks for (docs/reference/inference-router.md, Attempts). An answer with a status below
// 500 shows that the provider works, whatever it refuses.
func resultOf(res provider.Response, err error, took time.Duration) (health.Result, time.Duration) {
	if err == nil {
		return health.Answered, 0
	}
	e, ok := errors.AsType[*provider.Error](err)
	if !ok {
		return health.Unknown, 0
	}
	switch e.Kind {
	case provider.Unreachable, provider.Failover, provider.Stalled:
		return health.Failed, e.RetryAfter
	case provider.RetrySame:
		if e.Status == 0 || e.Status >= http.StatusInternalServerError {
			return health.Failed, e.RetryAfter
		}
	case provider.Canceled:
		if errors.Is(err, context.DeadlineExceeded) && res.Estimate() == 0 && took >= slowAnswer {
			return health.Failed, 0
		}
		return health.Unknown, 0
	default:
	}
	return health.Answered, e.RetryAfter
}

// retryWait returns the wait before a model is called again that has failed a number of
// times, and whose provider asks for a wait, 0 for none.
func retryWait(failures int, asked time.Duration) time.Duration {
	wait := jitter(firstWait << min(failures-1, 5))
	if asked > 0 {
		wait = max(wait, asked+jitter(firstWait))
	}
	return wait
}

// jitter returns a random duration below most, so that the calls that failed together are
// not repeated together.
func jitter(most time.Duration) time.Duration { return rand.N(most) }

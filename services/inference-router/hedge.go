package router

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/inference-router/internal/hedge"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// The values of the setting for hedges that are not a time.
const (
	hedgeOff = "off"
	hedgeP95 = "p95"
)

// hedgeMode says when a call is hedged. The zero value is never.
type hedgeMode struct {
	learned bool          // after the percentile of package hedge
	after   time.Duration // else after this time, 0: never
}

func parseHedge(setting string) (hedgeMode, error) {
	switch setting {
	case hedgeOff, "":
		return hedgeMode{}, nil
	case hedgeP95:
		return hedgeMode{learned: true}, nil
	}
	d, err := time.ParseDuration(setting)
	if err != nil || d <= 0 {
		return hedgeMode{}, fmt.Errorf("%.40q is not off, p95 or a time like 2s", setting)
	}
	return hedgeMode{after: d}, nil
}

// hedges are the settings and the estimates of hedges.
type hedges struct {
	mode  hedgeMode
	times hedge.Estimates
}

func (h *hedges) on() bool { return h.mode != hedgeMode{} }

// errHedged is the error of an attempt that another one of its call has overtaken. The
// provider bills what it has generated until it is canceled.
var errHedged = &provider.Error{Kind: provider.Hedged, Message: "another attempt of the call had content first"}

// hedgeAfter returns the time without content after which the attempt is hedged. It
// returns false if it is not: the time is unknown or longer than that of the call, or
// no attempt is left. A server on this machine or in a private network is not hedged,
// unless it has other endpoints: the second attempt would only wait for the first.
func (m *candidate) hedgeAfter(ctx context.Context, c *callState) (time.Duration, bool) {
	mode := m.h.hedges.mode
	after, ok := mode.after, mode.after > 0
	if mode.learned {
		after, ok = m.h.hedges.times.After(hedge.Route(m.route()))
	}
	if !ok || c.tries+2 > m.h.limits.attempts || m.source.local && m.source.pool.Len() == 1 {
		return 0, false
	}
	end, limited := ctx.Deadline()
	return after, !limited || m.h.now().Add(after).Before(end)
}

// race is a call with two attempts. The first one with content wins, and the other one is
// canceled.
type race struct {
	mu      sync.Mutex
	winner  *attempt
	cancels map[*attempt]context.CancelFunc
}

// claim makes an attempt the winner, unless there is one, and reports whether it is.
func (r *race) claim(a *attempt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.winner == nil {
		r.winner = a
		for other, cancel := range r.cancels {
			if other != a {
				cancel()
			}
		}
	}
	return r.winner == a
}

// has returns the winner, nil if there is none yet.
func (r *race) has() *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.winner
}

// race makes an attempt, and a second one after a time without content. It returns the one
// that has won, or that failed last, after both have ended; the other one is stored and
// paid. It also returns the second one, nil if none was made, whose hold is in
// [handlers.working] until the caller ends it there. Only this goroutine changes c.
func (m *candidate) race(ctx context.Context, c *callState, first *attempt, delay time.Duration) (last, second *attempt) {
	r := &race{cancels: map[*attempt]context.CancelFunc{}}
	done, running := make(chan *attempt, 2), 0
	start := func(a *attempt) {
		ctx, cancel := context.WithCancel(ctx)
		a.claim = func() bool { return r.claim(a) }
		r.mu.Lock()
		r.cancels[a] = cancel
		if r.winner != nil {
			cancel()
		}
		r.mu.Unlock()
		running++
		go func() {
			defer cancel()
			defer func() { done <- a }()
			a.call(ctx)
		}()
	}
	start(first)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if r.has() != nil {
				continue
			}
			if second = m.hedge(ctx, c, first); second != nil {
				start(second)
			}
		case a := <-done:
			running--
			if w := r.has(); w == a || w == nil && running == 0 {
				for running > 0 {
					m.overtaken(ctx, c, <-done)
					running--
				}
				return a, second
			} else if w != nil {
				m.overtaken(ctx, c, a)
				continue
			}
			// It failed before any content, and the other one goes on.
			a.end()
			a.fail(ctx, c, a.err)
			_ = c.applyFailure(ctx, a.origin, a.err) // the other attempt may succeed
		}
	}
}

// overtaken stores and pays an attempt whose call was answered by another one. It does not
// count as a try.
func (m *candidate) overtaken(ctx context.Context, c *callState, a *attempt) {
	c.hedged++
	outcome, cause := "won", error(errHedged)
	if a.hedge {
		outcome = "lost"
	}
	m.h.tel.hedge(ctx, m.provider.Name(), outcome, 1)
	if k := provider.KindOf(a.err); a.err != nil && k != provider.Canceled && k != provider.Hedged {
		cause = a.err
	}
	if a.first == 0 && a.sent {
		m.h.hedges.times.Add(hedge.Route(a.m.route()), a.took) // at least: else slow attempts would be left out
	}
	a.end()
	a.fail(ctx, c, cause)
}

// hedge returns the second attempt of a call, with its hold, or nil if none may be made. It
// needs another endpoint or another model that can be called now, a retry of the budget of
// the provider that is slow, and credits of its own: what both attempts may cost is held,
// and is within the ceiling of the call.
//
// A crash leaves both holds. The next try of the call, or a sweep, pays them as those of
// lost attempts.
func (m *candidate) hedge(ctx context.Context, c *callState, first *attempt) *attempt {
	s, origin := m.second(c, first)
	outcome := "no_candidate"
	defer func() { m.h.tel.hedge(ctx, m.provider.Name(), outcome, 1) }()
	if s == nil {
		return nil
	}
	if c.route.Ceiling != model.Unlimited && int64(m.most+s.most) > c.route.Ceiling {
		outcome = "ceiling"
		return nil
	}
	if s.takeRate() > 0 {
		outcome = "rates"
		return nil
	}
	hold, ok := "", s.begin(ctx)
	switch {
	case !ok:
		outcome = "breaker"
	case !m.h.health.Retry(m.provider.Name()):
		outcome, ok = "budget", false
	case s.most > 0:
		var err error
		hold, err = s.reserveHedge(ctx, c)
		if ok = err == nil; !ok {
			outcome = "credits"
			m.h.health.Return(m.provider.Name())
		}
	}
	if !ok {
		s.skip()
		s.returnRate()
		return nil
	}
	outcome = "made"
	a := s.attempt(c, hold)
	a.origin, a.hedge = origin, true
	return a
}

// second returns the candidate for the second attempt: the same model at another endpoint,
// else the next model that can be called now; nil if there is none. It is a copy, with a hold
// and a permission of its own, of the member of [callState.models] that is returned with it.
func (m *candidate) second(c *callState, first *attempt) (twin, origin *candidate) {
	if used := m.tried.With(first.endpoint); used.Len() < m.source.pool.Len() {
		twin := *m
		twin.tried, twin.permission, twin.hold = used, permission{}, m.hold+hedgeMark
		return &twin, m
	}
	now := m.h.now()
	for _, other := range c.models {
		if other == m || other.excluded || other.source.local || other.blocked(now) > 0 || other.notBefore.After(now) {
			continue
		}
		twin := *other
		twin.permission, twin.hold = permission{}, other.hold+hedgeMark
		return &twin, other
	}
	return nil, nil
}

// hedgeMark ends the id of the first hold of a hedge.
const hedgeMark = "h"

// reserveHedge holds the credits of a second attempt and returns the id of the hold, which
// is in [handlers.working]. Unlike [candidate.reserve] it waits for no other attempt.
func (m *candidate) reserveHedge(ctx context.Context, c *callState) (string, error) {
	for n := range maxHolds {
		id := holdID(m.hold, n)
		if !m.h.working.begin(id) {
			continue
		}
		own, _, err := m.reserveAs(ctx, failpoint.RouterHedge, id, false)
		if own {
			c.made = append(c.made, id)
			return id, nil
		}
		m.h.working.end(id)
		if err != nil {
			return "", err
		}
	}
	return "", api.Errorf(api.Conflict, "the call was hedged %d times", maxHolds)
}

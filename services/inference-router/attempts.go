package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// Waits before a call is repeated.
const (
	firstWait = 500 * time.Millisecond // doubled with each failure of the same model
	stayWait  = 2 * time.Second        // the longest wait for which the same model is retried before the next one
	maxWait   = 10 * time.Second       // the longest wait in the router; for a longer one the caller gets RetryAfter
)

// limits holds the limits on the calls of a router; see [Config].
type limits struct {
	attempts int // calls to providers for one call id
	failures int // failed calls to providers for one run
	patience provider.Patience
	near     map[string]bool // by provider name: on this machine or in a private network
}

// firstToken is how long a remote provider may take to its first token, unless the
// settings have another value.
const firstToken = time.Minute

// patience returns the token timeouts of a provider.
func (h *handlers) patience(name string) provider.Patience {
	p := h.limits.patience
	if p.First == 0 && !h.limits.near[name] {
		p.First = firstToken
	}
	return p
}

// asking is the state of one call while it is tried on the models of its route.
type asking struct {
	h      *handlers
	req    question
	route  model.Route
	out    *stream
	models []*candidate

	tries   int        // failed calls to providers for this id, in all processes
	broken  api.Micros // their cost
	run     int        // failed calls of its run; 0: none, or not counted yet
	last    error      // error of the latest failed attempt
	lasting error      // the first error that a retry of the same model does not fix
	refused error      // the reason why a model was not called, the first one

	rerouted bool // the models were chosen a second time
	answered bool // a model has answered: later errors are not the model's, and no other model is called
	began    time.Time
}

// candidate is a model that may answer the call.
type candidate struct {
	attempt

	most  api.Micros // the most that the call can cost, the amount of the hold
	fails int
	ready time.Time // not called before this time
	stay  bool      // retried before the other candidates
	over  bool      // not called any more
}

// complete makes one paid model call. It looks for a stored answer; if there is none,
// each attempt holds credits, calls the provider, stores the answer, sends it and settles
// it.
//
// A crash after the hold leaves credits held until a retry uses the same hold or it
// expires. A crash between the call and the store loses the answer; the retry calls the
// provider again on the same hold. After a crash between the store and the settlement,
// the retry finds the answer and settles it; see [handlers.answer] for a caller that has
// the answer.
//
// A call that fails for a transient cause is repeated, on the same model or the next one,
// up to [limits.attempts] times for one id. Failed attempts are rows of the store, so the
// count continues when the caller retries, at this replica or another. An attempt that
// broke off after a partial answer is paid from its own hold, because the provider bills
// it.
func (h *handlers) complete(ctx context.Context, req api.Complete, send func(api.Delta) error) (api.Completion, error) {
	return h.completion(ctx, question{Complete: req}, send)
}

// completeV2 is complete for an encoded prompt.
func (h *handlers) completeV2(ctx context.Context, m api.CompleteV2, send func(api.Delta) error) (api.Completion, error) {
	req, err := h.question(m)
	if err != nil {
		return api.Completion{}, err
	}
	return h.completion(ctx, req, send)
}

func (h *handlers) completion(ctx context.Context, req question, send func(api.Delta) error) (api.Completion, error) {
	if err := check(req); err != nil {
		return api.Completion{}, err
	}
	return h.flights.do(ctx, req.Complete, send, func(ctx context.Context, tell func(api.Delta)) (api.Completion, error) {
		paid, found, tried, err := h.store.Look(ctx, req.ID)
		if err != nil {
			return api.Completion{}, err
		}
		if found {
			return h.answer(ctx, req.Agent, paid, func(c api.Completion) { tell(api.Delta{Answer: &c}) })
		}
		if tried.Call >= h.limits.attempts {
			return api.Completion{}, usedUp(&api.Error{Message: "the provider failed", Next: "anima session events shows why"}, tried.Call, false)
		}
		route := h.route(ctx, req.Complete)
		c := &asking{h: h, req: req, route: route, out: &stream{send: tell}, began: h.now(), tries: tried.Call, broken: tried.Cost}
		defer c.out.close()
		end := c.began.Add(route.Timeout)
		if req.Deadline > 0 && req.Deadline < end.UnixMicro() {
			end = time.UnixMicro(req.Deadline)
		}
		ctx, cancel := context.WithTimeout(ctx, end.Sub(c.began))
		defer cancel()
		return c.through(ctx)
	})
}

// through tries the candidates until one answers.
func (c *asking) through(ctx context.Context) (api.Completion, error) {
	c.choose()
	var failure error // of the previous attempt
	for {
		m := c.next()
		if m == nil && c.routed(ctx) {
			continue
		}
		if m == nil {
			return api.Completion{}, c.failed()
		}
		wait := max(0, m.ready.Sub(c.h.now()))
		if end, ok := ctx.Deadline(); wait > maxWait || ok && wait > 0 && c.h.now().Add(wait).After(end) {
			return api.Completion{}, later(c.last, wait)
		}
		if failure != nil {
			c.out.again(again(failure, wait, m.model.ID))
		}
		if err := pause(ctx, wait); err != nil {
			return api.Completion{}, failureOf(provider.Stopped(m.provider.Name(), err))
		}
		answer, err := m.run(ctx, c)
		if err == nil || c.answered {
			return answer, err
		}
		failure = failureOf(err)
		if final := c.judge(ctx, m, err); final != nil {
			return api.Completion{}, final
		}
	}
}

// choose fills the candidates with the models of the route that can be called, and
// records why the others cannot.
func (c *asking) choose() {
	for i, m := range c.route.Models {
		p := c.h.providers[m.Provider]
		if p == nil {
			c.route.Skipped = append(c.route.Skipped, model.Skipped{ID: m.ID, Why: notConfigured(m)})
			continue
		}
		a := attempt{h: c.h, req: c.req, model: m, provider: p, hold: c.req.ID + "/" + strconv.Itoa(i), limit: c.route.Limit(m, c.req.MaxTokens)}
		var err error
		if a.ask, err = request(c.req, m, a.limit); err != nil {
			c.refuse(refusedPrompt(err))
			continue
		}
		if !m.Fits(a.ask.Estimate(), a.limit) {
			c.refuse(&api.Error{Code: api.Invalid, Reason: api.ReasonTooLong, Message: fmt.Sprintf("the prompt of about %d tokens does not fit %s", a.ask.Estimate(), m.ID), Next: "shorten the conversation or use a model with a larger window"})
			continue
		}
		most := api.Micros(m.Cost(2*a.ask.Estimate(), a.limit)) // dense text can have more tokens than the estimate
		if !c.route.Allows(int64(most)) {
			c.refuse(&api.Error{Code: api.Denied, Reason: api.ReasonLimit, Message: fmt.Sprintf("a call to %s may cost %s, more than this tier may spend on one", m.ID, most), Next: "fund the agent, or shorten its prompt"})
			continue
		}
		c.models = append(c.models, &candidate{attempt: a, most: most, ready: c.began})
	}
}

// routed chooses the models again, at most once per call, after a provider has reported
// that a model does not exist: the lists of models have been read since. It returns false
// if that yields no new model.
func (c *asking) routed(ctx context.Context) bool {
	if c.rerouted || api.ReasonOf(c.lasting) != api.ReasonNoModel {
		return false
	}
	c.rerouted = true
	asked := c.models
	c.models, c.route = nil, c.h.route(ctx, c.req.Complete)
	c.choose()
	c.models = slices.DeleteFunc(c.models, func(m *candidate) bool {
		return slices.ContainsFunc(asked, func(before *candidate) bool { return before.model.ID == m.model.ID })
	})
	if len(c.models) == 0 {
		return false
	}
	c.lasting = nil
	return true
}

func (c *asking) refuse(err error) {
	if c.refused == nil {
		c.refused = err
	}
}

// next returns the candidate to call now: the one that is to be retried first, or else
// the one that is ready soonest. It returns nil if no candidate is left.
func (c *asking) next() *candidate {
	var best *candidate
	now := c.h.now()
	for _, m := range c.models {
		switch {
		case m.over:
		case m.stay:
			return m
		case best == nil || max(0, m.ready.Sub(now)) < max(0, best.ready.Sub(now)):
			best = m
		}
	}
	return best
}

// judge applies a failed attempt to the candidates. It returns the error that ends the
// call, or nil if another attempt may be made.
func (c *asking) judge(ctx context.Context, m *candidate, err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok { // of the hold, not of the provider
		if api.CodeOf(err) == api.Denied { // a cheaper model may be within the available credits
			m.over = true
			c.lasts(err)
			return nil
		}
		return err
	}
	failure := failureOf(err)
	if e.Kind == provider.Fatal && m.ask.HasCalls() && c.tries < c.h.limits.attempts {
		// A provider may refuse tool calls in a conversation. The request is repeated
		// once with its tool calls as text; if it is refused again, the cause is another
		// one.
		opened, oerr := m.ask.Open()
		if oerr != nil {
			return oerr
		}
		opened.Messages = chat.Normalize(chat.Plain(opened.Messages), true)
		m.ask, m.stay, c.last = opened, true, failure
		return nil
	}
	if e.Kind == provider.Canceled || e.Kind == provider.Fatal {
		return failure
	}
	c.last = failure
	r := remedyOf(e)
	m.fails++
	wait := max(e.RetryAfter, firstWait<<min(m.fails-1, 5))
	m.stay = r.stays && m.fails == 1 && wait <= stayWait
	for _, other := range c.models {
		if other != m && (r.others || other.provider.Name() != m.provider.Name()) {
			continue
		}
		other.over = other.over || !r.passes
		other.ready = c.h.now().Add(wait)
	}
	if !r.passes {
		c.lasts(failure)
	}
	switch {
	case ctx.Err() != nil:
		return failureOf(provider.Stopped(e.Provider, ctx.Err()))
	case c.tries < c.h.limits.attempts && (c.req.Run == "" || c.run < c.h.limits.failures):
	case !r.passes:
		return c.failed()
	case c.tries >= c.h.limits.attempts:
		return usedUp(failure, c.tries, false)
	default:
		return usedUp(failure, c.run, true)
	}
	return nil
}

// lasts records err as the first lasting error.
func (c *asking) lasts(err error) {
	if c.lasting == nil {
		c.lasting = err
	}
}

// lastTry reports whether the present attempt is the last one.
func (c *asking) lastTry() bool { return c.tries+1 >= c.h.limits.attempts }

// record stores a failed attempt and updates the counts.
func (c *asking) record(ctx context.Context, f sqlstore.Failed) error {
	n, err := c.h.store.Fail(ctx, f)
	if err != nil {
		return err
	}
	c.tries, c.run, c.broken = n.Call, n.Run, n.Cost
	return nil
}

// failed returns the error of a call that no model answered. An error of a model takes
// precedence over the reason why a model was not called.
func (c *asking) failed() error {
	if c.lasting != nil {
		return c.lasting
	}
	if c.refused != nil {
		return c.refused
	}
	return noModel(c.req.Complete, c.route, c.h.models.faults())
}

// later returns the error for a wait that is longer than maxWait or ends after the
// deadline; it gives the caller the wait as RetryAfter.
func later(last error, wait time.Duration) error {
	w := *api.Wire(last)
	w.Reason, w.RetryAfter = api.ReasonProvider, max(1, wait.Milliseconds())
	return &w
}

// pause waits for d. It returns the context's error if the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

package router

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/inference-router/internal/balance"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// Waits before a call is repeated.
const (
	firstWait     = 500 * time.Millisecond // the longest first wait, doubled with each failure of the same model; the wait is a random part of it
	retrySameWait = 2 * time.Second        // the longest wait for which the same model is retried before the next one
	maxWait       = 10 * time.Second       // the longest wait in the router; for a longer one the caller gets RetryAfter
)

// limits holds the limits on the calls of a router; see [Config].
type limits struct {
	attempts int // calls to providers for one call id
	failures int // failed calls to providers for one run
	patience provider.TokenTimeouts
}

// firstToken is how long a remote provider may take to its first token, unless the
// settings have another value.
const firstToken = time.Minute

// patience returns the token timeouts of a provider.
func (h *handlers) patience(name string) provider.TokenTimeouts {
	p := h.limits.patience
	if p.First == 0 && !h.sources[name].local {
		p.First = firstToken
	}
	return p
}

// callState is the state of one call while it is tried on the models of its route.
type callState struct {
	h      *handlers
	req    callRequest
	route  model.Route
	out    *stream
	models []*candidate

	tries       int        // failed calls to providers for this id, in all processes
	failedCost  api.Micros // their cost
	runFailures int        // failed calls of its run; 0: none, or not counted yet
	last        error      // error of the latest failed attempt
	causes      []string   // of the failed attempts, by provider and model
	lasting     error      // the first error that a retry of the same model does not fix
	limited     error      // the rates of a provider do not allow a call yet
	budgets     budgets
	hedged      int      // attempts that another one of the call has overtaken
	made        []string // ids of the holds of this process for the call
	swept       bool     // the holds of earlier tries were looked for

	rerouted bool // the models were chosen a second time
	answered bool // a model has answered: later errors are not the model's, and no other model is called
	began    time.Time
}

// candidate is a model that may answer the call.
type candidate struct {
	h        *handlers
	req      callRequest
	model    model.Model
	provider provider.Provider
	source   *source
	ask      provider.Request
	hold     string // id of the first hold; see [candidate.reserve]
	limit    int64
	tokens   int64      // taken from the rate of the provider until the usage is known
	most     api.Micros // the most that the call can cost, the amount of the hold

	failures   int
	notBefore  time.Time       // not called before this time
	retryFirst bool            // retried before the other candidates
	excluded   bool            // not called any more
	denied     bool            // treasury refused the hold
	tried      balance.Set     // endpoints that failed for this call
	refused    balance.Set     // of these, the ones that refused the key
	passing    *provider.Error // the latest error of theirs whose cause may pass; nil: none
	permission
}

// complete makes one paid model call. It looks for a stored answer; if there is none,
// each attempt holds credits, calls the provider, stores the answer, sends it and settles
// it.
//
// A crash between the hold and the store loses the answer and leaves credits held until
// they expire or a retry pays them as those of a lost attempt; see [candidate.lose]. After
// a crash between the store and the settlement, the retry finds the answer and settles it;
// see [handlers.answer] for a caller that has the answer.
//
// A call that fails for a transient cause is repeated, on the same model or the next one,
// up to [limits.attempts] times for one id. Failed attempts are rows of the store, so the
// count continues when the caller retries, at this replica or another. An attempt that
// broke off after a partial answer is paid from its own hold, because the provider bills
// it.
func (h *handlers) complete(ctx context.Context, req api.Complete, send func(api.Delta) error) (api.Completion, error) {
	return h.completion(ctx, callRequest{Complete: req}, send)
}

// completeV2 is complete for an encoded prompt.
func (h *handlers) completeV2(ctx context.Context, m api.CompleteV2, send func(api.Delta) error) (api.Completion, error) {
	memory, err := h.memory.Reserve(ctx, int64(len(m.Messages)+len(m.Tools)))
	if err != nil {
		return api.Completion{}, err
	}
	defer memory.Free()
	req, err := h.readRequest(m)
	if err != nil {
		return api.Completion{}, err
	}
	return h.completion(ctx, req, send)
}

func (h *handlers) completion(ctx context.Context, req callRequest, send func(api.Delta) error) (api.Completion, error) {
	if len(req.ResponseFormat) > 0 {
		req.options.ResponseFormat = req.ResponseFormat
	}
	if err := check(req); err != nil {
		return api.Completion{}, err
	}
	return h.calls.do(ctx, req, send, func(ctx context.Context, tell func(api.Delta)) (api.Completion, error) {
		paid, found, tried, err := h.lookup(ctx, req)
		if err != nil {
			return api.Completion{}, err
		}
		if found {
			return h.answer(ctx, req, paid, func(c api.Completion) { tell(api.Delta{Answer: &c}) })
		}
		if tried.Call >= h.limits.attempts {
			return api.Completion{}, attemptsExhausted(&api.Error{Message: "the provider failed", Next: "make the call under another id; anima session events shows the attempts of an agent's call"}, tried.Call, false)
		}
		c := &callState{h: h, req: req, out: &stream{send: tell}, began: h.now(), tries: tried.Call, failedCost: tried.Cost}
		h.route(ctx, c.query(), &c.route)
		defer c.out.close()
		end := c.began.Add(c.route.Timeout)
		if req.Deadline > 0 && req.Deadline < end.UnixMicro() {
			end = time.UnixMicro(req.Deadline)
		}
		ctx, cancel := context.WithTimeout(ctx, end.Sub(h.now())) // the selection may have read the lists of models
		defer cancel()
		leave, err := h.admit(ctx, req)
		if err != nil {
			return api.Completion{}, err
		}
		defer leave()
		return c.tryCandidates(ctx)
	})
}

// lookup returns the stored answer to a call, or the counts of its failed attempts.
func (h *handlers) lookup(ctx context.Context, req callRequest) (paid sqlstore.StoredCall, found bool, tried sqlstore.FailureCounts, err error) {
	if req.fresh {
		return paid, false, tried, nil
	}
	return h.store.Lookup(ctx, req.ID)
}

// tryCandidates tries the candidates until one answers.
func (c *callState) tryCandidates(ctx context.Context) (api.Completion, error) {
	if err := c.addCandidates(); err != nil {
		return api.Completion{}, err
	}
	var failure error // of the previous attempt, until it is noted
	for {
		m := c.next()
		if m == nil && (c.reroute(ctx) || c.degrade()) {
			continue
		}
		if m == nil {
			return api.Completion{}, cmp.Or(c.unavailable(), c.finalError())
		}
		delay := max(0, m.notBefore.Sub(c.h.now()))
		if end, ok := ctx.Deadline(); delay > maxWait || ok && delay > 0 && c.h.now().Add(delay).After(end) {
			return api.Completion{}, retryLater(cmp.Or[error](c.last, c.limited, m.pause()), delay)
		}
		if !c.spend(m) {
			continue
		}
		if failure != nil {
			c.out.retry(retryNote(failure, delay, m.model.ID))
			failure = nil // noted once, also if the attempt has to wait again
		}
		if err := wait.For(ctx, delay); err != nil {
			return api.Completion{}, failureOf(provider.CanceledError(m.provider.Name(), err))
		}
		if wait := m.takeRate(); wait > 0 {
			c.limitRate(m, wait)
			continue
		}
		if !m.begin(ctx) {
			m.returnRate()
			continue // its breaker has opened, or the provider asks all callers to wait longer
		}
		answer, of, err := m.run(ctx, c)
		m.skip() // if the provider was not called
		if err == nil || c.answered {
			return answer, err
		}
		failure = failureOf(err)
		if final := c.applyFailure(ctx, of, err); final != nil {
			return api.Completion{}, final
		}
	}
}

// addCandidates fills the candidates with the usable models of the route.
func (c *callState) addCandidates() error {
	for i := range c.route.Candidates {
		chosen := &c.route.Candidates[i]
		if chosen.Reason != model.Usable {
			continue
		}
		m, from := *chosen.Model, c.h.sources[chosen.Model.Provider]
		ask, err := request(c.req, m, chosen.Limit)
		if err != nil {
			return promptError(err)
		}
		c.models = append(c.models, &candidate{
			h: c.h, req: c.req, model: m, provider: from.provider, source: from, hold: c.req.ID + "/" + strconv.Itoa(len(c.models)),
			ask: ask, limit: chosen.Limit, tokens: chosen.Prompt + chosen.Limit, most: api.Micros(chosen.Most), notBefore: c.began,
		})
	}
	return nil
}

// reroute chooses the models again, at most once per call, after a provider has reported
// that a model does not exist: the lists of models have been read since. It returns false
// if that yields no new model.
func (c *callState) reroute(ctx context.Context) bool {
	if c.rerouted || api.ReasonOf(c.lasting) != api.ReasonNoModel {
		return false
	}
	c.rerouted = true
	asked := c.models
	c.models = nil
	c.h.route(ctx, c.query(), &c.route)
	if c.addCandidates() != nil {
		return false
	}
	c.models = slices.DeleteFunc(c.models, func(m *candidate) bool {
		return slices.ContainsFunc(asked, func(before *candidate) bool { return before.model.ID == m.model.ID })
	})
	if len(c.models) == 0 {
		return false
	}
	c.lasting = nil
	return true
}

// next returns the candidate to call now: the one that is to be retried first, or else
// the one that is ready soonest. A candidate that has to wait longer than for its own first
// retry, because its provider has asked another caller to, is not retried first. It returns
// nil if no candidate is left.
func (c *callState) next() *candidate {
	var best *candidate
	now := c.h.now()
	for _, m := range c.models {
		switch {
		case m.excluded || m.blocked(now) > 0:
		case m.retryFirst && m.notBefore.Sub(now) <= retrySameWait+firstWait:
			return m
		case best == nil || max(0, m.notBefore.Sub(now)) < max(0, best.notBefore.Sub(now)):
			best = m
		}
	}
	return best
}

// applyFailure applies a failed attempt to the candidates. It returns the error that ends
// the call, or nil if another attempt may be made.
func (c *callState) applyFailure(ctx context.Context, m *candidate, err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok { // of the hold, not of the provider
		if api.CodeOf(err) == api.Denied { // a cheaper model may be within the available credits
			m.excluded, m.denied = true, true
			c.lasting = cmp.Or(c.lasting, err)
			return nil
		}
		return err
	}
	c.causes = append(c.causes, m.provider.Name()+"/"+m.model.ID+": "+causeOf(err))
	again, e := c.otherEndpoint(m, e)
	if again {
		return c.enough(ctx, e)
	}
	failure := failureOf(e)
	if e.Kind == provider.Fatal && m.ask.HasCalls() && c.tries < c.h.limits.attempts {
		// A provider may refuse tool calls in a conversation. The request is repeated
		// once with its tool calls as text; if it is refused again, the cause is another
		// one.
		opened, oerr := m.ask.Decode()
		if oerr != nil {
			return oerr
		}
		opened.Messages = chat.Normalize(chat.Plain(opened.Messages), true)
		m.ask, m.retryFirst, c.last = opened, true, failure
		return nil
	}
	if e.Kind == provider.Canceled || e.Kind == provider.Fatal {
		return failure
	}
	c.last = failure
	r := remedyOf(e)
	m.failures++
	wait := retryWait(m.failures, e.RetryAfter)
	m.retryFirst = r.sameModel && m.failures == 1 && e.RetryAfter <= retrySameWait
	if r.transient {
		c.budgets.failing = append(c.budgets.failing, m.provider.Name())
	}
	for _, other := range c.models {
		if other != m && (r.otherModels || other.provider.Name() != m.provider.Name()) {
			continue
		}
		if !r.transient {
			other.excluded, other.denied = true, false // also for fewer tokens
		}
		other.notBefore = c.h.now().Add(wait)
	}
	if !r.transient {
		c.lasting = cmp.Or(c.lasting, failure)
	}
	return c.enough(ctx, e)
}

// enough returns the error that ends the call after a failed attempt, because its time or
// its attempts are used up; else nil.
func (c *callState) enough(ctx context.Context, e *provider.Error) error {
	failure, transient := failureOf(e), remedyOf(e).transient
	switch {
	case ctx.Err() != nil:
		return failureOf(provider.CanceledError(e.Provider, ctx.Err()))
	case c.tries < c.h.limits.attempts && (c.req.Run == "" || c.runFailures < c.h.limits.failures):
	case !transient:
		return c.finalError()
	case c.tries >= c.h.limits.attempts:
		return c.exhausted(failure, c.tries, false)
	default:
		return c.exhausted(failure, c.runFailures, true)
	}
	return nil
}

// isLastAttempt reports whether the present attempt is the last one.
func (c *callState) isLastAttempt() bool { return c.tries+1 >= c.h.limits.attempts }

package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/inference-router/internal/hedge"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// finishTimeout is the timeout of the work after an answer. That work continues when the
// caller's context ends, because the provider bills the answer in any case.
const finishTimeout = 10 * time.Second

// attempt is one call to an endpoint of a provider, and its result.
type attempt struct {
	m      *candidate
	origin *candidate // the member of [callState.models] that it is an attempt of
	hold   string     // "" for a free model
	tries  int        // failed attempts of the call before it
	hedge  bool
	out    *stream

	// claim is called for the first content. It returns false if another attempt of the
	// call had content before: then this one ends.
	claim func() bool

	endpoint    int   // in its source
	tokens      int64 // counted at the endpoint
	began       time.Time
	sent        bool          // the call was not canceled before the request
	first, took time.Duration // first: until the first content, 0 for none
	res         provider.Response
	err         error
}

// run makes one attempt, and a second one if the first is slow and hedges are on: it holds
// credits, calls the provider, stores the answer and settles it. The error is a
// [provider.Error] if the provider failed; it is that of an attempt of the returned
// candidate.
func (m *candidate) run(ctx context.Context, c *callState) (answer api.Completion, of *candidate, err error) {
	hold := ""
	if m.most > 0 {
		if hold, err = m.reserve(ctx, c); err != nil {
			m.returnRate()
			if e, ok := errors.AsType[*answeredError](err); ok {
				c.answered = true
				answer, err = m.h.answer(ctx, m.req, e.stored, c.out.answer)
			}
			return answer, m, err
		}
		defer m.h.working.end(hold)
	}
	c.countCall(m)
	a := m.attempt(c, hold)
	if delay, ok := m.hedgeAfter(ctx, c); ok {
		var second *attempt
		if a, second = m.race(ctx, c, a, delay); second != nil && second.hold != "" {
			defer m.h.working.end(second.hold) // it may be the one whose answer is stored below
		}
	} else {
		a.call(ctx)
	}
	answer, err = a.finish(ctx, c)
	return answer, a.origin, err
}

// attempt returns an attempt that is not made yet. It has to be called and ended.
func (m *candidate) attempt(c *callState, hold string) *attempt {
	return &attempt{
		m: m, origin: m, hold: hold, tries: c.tries, out: c.out, claim: func() bool { return true }, endpoint: m.beginEndpoint(), tokens: m.tokens,
	}
}

// finish stores the answer or the failure of an attempt and ends its hold.
func (a *attempt) finish(ctx context.Context, c *callState) (answer api.Completion, err error) {
	m, res := a.m, a.res
	a.end()
	partial := a.err != nil && c.keepsPartial(ctx, res, a.err)
	if a.err != nil && !partial {
		m.h.models.refreshIfMissing(ctx, a.err)
		a.fail(ctx, c, a.err)
		return answer, a.err
	}
	cost := m.cost(res.Usage)
	m.h.tel.call(ctx, m.provider.Name(), m.model.ID, "ok", a.took, res.Usage.Input, res.Usage.Output, cost)
	answer = api.Completion{
		Model: m.model.ID, Provider: m.provider.Name(), Text: res.Text, Finish: res.Finish, StopSequence: res.Stop, Reasoning: res.Reasoning,
		InputTokens: res.Usage.Input, CachedTokens: res.Usage.CachedInput, CacheWrite: res.Usage.CacheWrite,
		OutputTokens: res.Usage.Output, ReasonTokens: res.Usage.Reasoning, Cost: cost + c.failedCost, LatencyMS: a.took.Milliseconds(), Attempts: c.tries + c.hedged + 1,
	}
	answer.ToolCalls = res.ToolCalls
	if partial {
		answer.Partial, answer.Finish, answer.ToolCalls = true, api.FinishTimeout, nil
	}
	setFinish(&answer)
	if answer.Finish == api.FinishRepetition {
		c.out.replace(answer.Text)
	}
	c.answered = true
	return m.store(ctx, c, a.hold, m.row(ctx, res.Usage, a.took), answer)
}

// end reports the result to the health of the model and of the endpoint, and to the rates
// of the provider.
func (a *attempt) end() {
	m, used := a.m, a.used()
	m.h.rates.Correct(m.provider.Name(), m.tokens, used.Input+used.Output)
	a.endEndpoint()
	result, wait := resultOf(a.res, a.err, a.took)
	if a.origin.hasOther() {
		wait = 0 // it is that of one key
	}
	m.h.health.end(&m.permit, result, wait, causeOf(a.err))
	if a.first > 0 && m.h.hedges.on() {
		m.h.hedges.times.Add(hedge.Route(m.route()), a.first)
	}
}

// fail stores the attempt as failed for a cause and ends its hold.
func (a *attempt) fail(ctx context.Context, c *callState, cause error) {
	m := a.m
	m.h.tel.call(ctx, m.provider.Name(), m.model.ID, string(provider.KindOf(cause)), a.took, 0, 0, 0)
	m.fail(ctx, c, a.hold, a.used(), a.took, cause)
}

// used returns what the provider has counted of the attempt; see [candidate.billed].
func (a *attempt) used() provider.Usage {
	if a.err == nil {
		return a.res.Usage
	}
	return a.m.billed(a.res, a.err, a.sent)
}

// cost returns the cost of an attempt, which is at most its hold.
func (m *candidate) cost(used provider.Usage) api.Micros {
	return min(api.Micros(m.model.Cost(used.Tokens())), m.most)
}

// row returns what the store has of an attempt, answered or failed.
func (m *candidate) row(ctx context.Context, used provider.Usage, took time.Duration) sqlstore.Call {
	return sqlstore.Call{
		ID: m.req.ID, Agent: m.req.Agent, Session: m.req.Session, Turn: m.req.Turn, Task: m.req.Task, Tier: m.req.Tier,
		Model: m.model.ID, Provider: m.provider.Name(), Tokens: sqlstore.Tokens(used), Cost: m.cost(used), LatencyMS: took.Milliseconds(),
		Trace: trace.SpanContextFromContext(ctx).TraceID().String(), At: m.h.now().UnixMicro(),
		PriceVersion: m.model.PriceVersion, Request: m.req.request,
	}
}

// store stores the answer, sends it to the callers and settles it.
func (m *candidate) store(ctx context.Context, c *callState, hold string, row sqlstore.Call, answer api.Completion) (api.Completion, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	record := sqlstore.StoredCall{Call: row, Hold: hold, Answer: answer}
	paid, err := failpoint.Value(ctx, failpoint.RouterRecord, func(ctx context.Context) (sqlstore.StoredCall, error) { return m.h.recorder.record(ctx, record) })
	if err != nil {
		m.h.signalUnsettled() // the row may be committed in spite of the error, and the caller may not retry
		return answer, err
	}
	if hold != "" && paid.Hold != hold { // a concurrent call with the same id was stored first
		m.fail(ctx, c, hold, provider.Usage(row.Tokens), time.Duration(row.LatencyMS)*time.Millisecond, errSuperseded)
	}
	return m.h.answer(ctx, m.req, paid, c.out.answer)
}

// errSuperseded is the error of an attempt whose answer is not used, because another
// replica stored one first. The provider bills it.
var errSuperseded = &provider.Error{Kind: provider.Superseded, Message: "another answer to this call is stored"}

// keepsPartial reports whether the partial text of a failed attempt is used as the answer
// (docs/reference/inference-router.md, Answers): the deadline has passed, or the provider
// stalled in the last attempt.
func (c *callState) keepsPartial(ctx context.Context, res provider.Response, err error) bool {
	if strings.TrimSpace(res.Text) == "" {
		return false
	}
	late := provider.KindOf(err) == provider.Canceled && errors.Is(ctx.Err(), context.DeadlineExceeded)
	return late || provider.KindOf(err) == provider.Stalled && c.isLastAttempt()
}

// repetitionInterval is how many bytes of text are received between two checks for
// repetition.
const repetitionInterval = 1 << 10

// errRepetition ends a call when its text repeats itself.
var errRepetition = errors.New("the text repeats itself")

// call calls the endpoint and fills in the result. When the text repeats itself, call cuts
// it before the repetition and takes it for an answer.
func (a *attempt) call(ctx context.Context) {
	m := a.m
	a.began, a.sent = m.h.now(), ctx.Err() == nil
	defer func() { a.took = m.h.now().Sub(a.began) }()
	name, opts := telemetry.Chat(m.provider.Name(), m.model.ID)
	ctx, span := m.h.tracer.Start(ctx, name, opts...)
	defer span.End()
	span.SetAttributes(attribute.Int("http.request.resend_count", a.tries), attribute.Int64("gen_ai.request.max_tokens", m.limit))
	if a.hedge {
		span.SetAttributes(attribute.Bool("automaton.hedge", true))
	}
	won := true
	content := func() {
		if a.first == 0 {
			a.first = max(m.h.now().Sub(a.began), 1)
			won = a.claim()
		}
	}
	watched, stop := provider.Watch(ctx, m.h.patience(m.provider.Name()), content)
	defer stop()
	var text strings.Builder
	checked := 0
	res, err := failpoint.Value(watched, failpoint.RouterCall, func(ctx context.Context) (provider.Response, error) {
		return m.source.endpoints[a.endpoint].Complete(ctx, m.ask, func(piece string) error {
			content()
			if !won {
				return errHedged
			}
			if text.WriteString(piece); text.Len()-checked >= repetitionInterval {
				checked = text.Len()
				if _, repeats := provider.Repetition(text.String()); repeats {
					return errRepetition
				}
			}
			provider.Passing(watched, true)
			defer provider.Passing(watched, false)
			if text.Len() == len(piece) {
				_ = failpoint.Do(ctx, failpoint.RouterFirst, func(context.Context) error { a.out.text(piece); return nil })
				return nil
			}
			a.out.text(piece)
			return nil
		})
	})
	if errors.Is(err, errRepetition) {
		end, _ := provider.Repetition(text.String())
		res.Text, res.ToolCalls, res.Finish, err = strings.ToValidUTF8(text.String()[:end], ""), nil, api.FinishRepetition, nil
	}
	if stalled := provider.StalledBy(watched, m.provider.Name()); err != nil && stalled != nil {
		err = stalled
	}
	if err == nil {
		content() // of an answer that was not streamed
	}
	a.res, a.err = res, err
	if err != nil {
		reason := "" // not the provider's text, which may quote the prompt
		if e, ok := errors.AsType[*provider.Error](err); ok && e.Status != 0 {
			reason = fmt.Sprint("status ", e.Status)
		}
		telemetry.Fail(span, string(provider.KindOf(err)), reason)
		return
	}
	span.SetAttributes(
		attribute.String("gen_ai.response.model", res.Model), attribute.String("gen_ai.response.id", res.ID),
		attribute.StringSlice("gen_ai.response.finish_reasons", []string{res.Finish}),
		attribute.Int64("gen_ai.usage.input_tokens", res.Usage.Input), attribute.Int64("gen_ai.usage.output_tokens", res.Usage.Output),
		attribute.Int64("automaton.cost.usd_micros", m.model.Cost(res.Usage.Tokens())),
	)
}

// billed returns what the provider bills of a failed attempt: the partial answer, or the
// prompt alone if the request was sent and the provider did not refuse it. It is an
// estimate that must not be too low, because the provider reports nothing. sent says that
// the call was not canceled before the request.
func (m *candidate) billed(res provider.Response, cause error, sent bool) provider.Usage {
	e, _ := errors.AsType[*provider.Error](cause)
	switch {
	case res.Usage.Output > 0:
		return res.Usage
	case e == nil || !sent || e.Status != 0:
		return provider.Usage{}
	case e.Kind == provider.Canceled, e.Kind == provider.Stalled, e.Kind == provider.Failover:
		used := provider.Estimate(m.ask, res)
		used.Input = max(used.Input, res.Usage.Input)
		return used
	}
	return provider.Usage{}
}

// fail stores a failed attempt and ends its hold. What the provider bills of it is
// settled. After a crash before the row is stored, [candidate.lose] ends the hold when the
// call is made again; else it expires. After a crash between the row and the end of the
// hold, [candidate.reserve] or [handlers.settleLeftovers] ends the hold with the cost in
// the row.
func (m *candidate) fail(ctx context.Context, c *callState, hold string, used provider.Usage, took time.Duration, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	kind := provider.KindOf(cause)
	f := sqlstore.FailedAttempt{
		Call: m.row(ctx, used, took), Run: m.req.Run, Kind: string(kind), Counts: kind != provider.Canceled && kind != provider.Superseded && kind != provider.Hedged,
		Message: cause.Error(), Hold: hold,
	}
	m.endAttempt(ctx, c, f)
}

// endAttempt stores a failed attempt, counts it and ends its hold.
func (m *candidate) endAttempt(ctx context.Context, c *callState, f sqlstore.FailedAttempt) {
	n, err := m.h.store.RecordFailure(ctx, f)
	if err != nil {
		m.h.log.WarnContext(ctx, "failed attempt not recorded", "call", m.req.ID, "err", err)
		n = sqlstore.FailureCounts{Call: c.tries + 1, Run: c.runFailures, Cost: c.failedCost + f.Call.Cost}
	}
	c.tries, c.runFailures, c.failedCost = n.Call, n.Run, n.Cost
	if f.Hold == "" {
		return
	}
	if err := m.h.endFailed(ctx, f); err != nil {
		m.h.log.WarnContext(ctx, "hold of a failed attempt not ended, retrying later", "hold", f.Hold, "err", err)
		m.h.signalUnsettled()
	}
}

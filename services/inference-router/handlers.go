package router

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// triesOnSame is how often a provider is asked again for what passes by itself,
// besides the first time (seed 001: 3 on 429 and 5xx).
const triesOnSame = 3

// maxWait is the longest wait for the same provider; one that asks for more is
// left for another, or the caller told when to come back.
const maxWait = 10 * time.Second

// afterwards bounds the work that follows an answer: it goes on when the caller
// has gone, because the provider bills the answer all the same.
const afterwards = 10 * time.Second

// complete makes one paid model call. The order is: look whether it was paid
// for, hold, call, store, settle. Dying after the hold leaves money held until a
// retry uses the same hold or it expires; dying after the call and before the
// store loses the answer, and the provider is asked again on the same hold;
// dying after the store, the retry finds the answer and settles.
//
// Of several failures one that passes is answered before one that does not, so
// that its caller comes back; else the first, of the model that suits best.
func (h *handlers) complete(ctx context.Context, req api.Complete, send func(api.Delta) error) (api.Completion, error) {
	if err := check(req); err != nil {
		return api.Completion{}, err
	}
	paid, found, err := h.store.Find(ctx, req.ID)
	if err != nil {
		return api.Completion{}, err
	}
	if found {
		return h.answer(ctx, req, paid)
	}
	route := h.route(ctx, req)
	ctx, cancel := context.WithTimeout(ctx, route.Timeout)
	defer cancel()
	var passing, lasting error
	refuse := func(err error) {
		if lasting == nil {
			lasting = err
		}
	}
	for i, m := range route.Models {
		p := h.providers[m.Provider]
		if p == nil {
			route.Skipped = append(route.Skipped, model.Skipped{ID: m.ID, Why: notConfigured(m)})
			continue
		}
		a := attempt{h: h, req: req, model: m, provider: p, hold: req.ID + "/" + strconv.Itoa(i), limit: route.Limit(m, req.MaxTokens), send: send}
		a.ask = request(req, m, a.limit)
		if !m.Fits(a.ask.Estimate(), a.limit) {
			refuse(&api.Error{Code: api.Invalid, Reason: api.ReasonTooLong, Message: fmt.Sprintf("the prompt of about %d tokens does not fit %s", a.ask.Estimate(), m.ID), Next: "shorten the conversation or use a model with a larger window"})
			continue
		}
		most := api.Micros(m.Cost(2*a.ask.Estimate(), a.limit)) // dense text has more tokens than the estimate says
		if !route.Allows(int64(most)) {
			refuse(&api.Error{Code: api.Denied, Reason: api.ReasonLimit, Message: fmt.Sprintf("a call to %s may cost %s, more than this tier may spend on one", m.ID, most), Next: "fund the agent, or shorten its prompt"})
			continue
		}
		answer, again, err := a.run(ctx, most)
		if err == nil {
			return answer, nil
		}
		if !again || ctx.Err() != nil {
			return api.Completion{}, err
		}
		if api.ReasonOf(err) == api.ReasonProvider {
			passing = err
		} else {
			refuse(err)
		}
	}
	switch {
	case passing != nil:
		return api.Completion{}, passing
	case lasting != nil:
		return api.Completion{}, lasting
	}
	return api.Completion{}, noModel(req, route, h.models.faults())
}

// answer settles a stored call and gives what it answered to whom it belongs.
func (h *handlers) answer(ctx context.Context, req api.Complete, p sqlstore.Paid) (api.Completion, error) {
	if p.Call.Agent != req.Agent {
		return api.Completion{}, api.Errorf(api.Conflict, "call %s is another agent's", req.ID)
	}
	return p.Answer, h.settle(ctx, p)
}

// maxID leaves room in treasury's 200 bytes for what [attempt.reserve] and
// [handlers.settleLate] append.
const maxID = 180

func check(req api.Complete) error {
	switch {
	case req.ID == "" || len(req.ID) > maxID:
		return api.Errorf(api.Invalid, "a call needs an id of at most %d bytes", maxID)
	case !api.ValidKey(req.Agent): // found only when the answer is stored, it would be too late
		return api.Errorf(api.Invalid, "a call needs an agent who pays, and %.40q cannot be one", req.Agent)
	case len(req.Messages) == 0:
		return api.Errorf(api.Invalid, "a call needs messages")
	}
	return nil
}

// noModel says why no model can be used; faults are of lists that cannot be read.
func noModel(req api.Complete, route model.Route, faults []string) *api.Error {
	e := &api.Error{
		Code: api.Unavailable, Reason: api.ReasonNoModel, Message: fmt.Sprintf("no model can be used for %s in tier %s", req.Task, req.Tier),
		Next: "configure a provider (OPENAI_API_KEY, OPENAI_BASE_URL, OLLAMA_HOST), name a model in AGENT.md or in ANIMA_INFERENCE_ROUTER_MODELS, or fund the agent; anima model list says why", RetryAfter: 60_000,
	}
	if len(faults) > 0 {
		e.Message += ": the list of models cannot be read from " + faults[0]
		e.Next = "start the server, or correct its address or key (OPENAI_BASE_URL, OPENAI_API_KEY, OLLAMA_HOST); its models are used as soon as it answers"
		e.Details = append(e.Details, faults[1:]...)
	}
	if route.Why != "" {
		e.Details = append(e.Details, route.Why)
	}
	for _, s := range route.Skipped {
		e.Details = append(e.Details, s.ID+": "+s.Why)
	}
	return e
}

func request(req api.Complete, m model.Model, limit int64) provider.Request {
	out := provider.Request{Model: m.ID, MaxTokens: limit, TokenParam: m.TokenParam}
	for _, msg := range req.Messages {
		pm := provider.Message{Role: provider.Role(msg.Role), Content: msg.Content, ToolCallID: msg.ToolCallID}
		for _, c := range msg.ToolCalls {
			pm.ToolCalls = append(pm.ToolCalls, provider.ToolCall(c))
		}
		out.Messages = append(out.Messages, pm)
	}
	if m.Tools {
		for _, t := range req.Tools {
			out.Tools = append(out.Tools, provider.Tool{Name: t.Name, Description: t.Description, Schema: t.Schema})
		}
	}
	out.Messages = provider.Normalize(out.Messages, len(out.Tools) > 0)
	return out
}

// attempt is one candidate being tried.
type attempt struct {
	h        *handlers
	req      api.Complete
	model    model.Model
	provider provider.Provider
	ask      provider.Request
	hold     string
	limit    int64
	send     func(api.Delta) error
}

// run holds, calls, stores and settles. again says that another model may be
// tried.
func (a attempt) run(ctx context.Context, most api.Micros) (answer api.Completion, again bool, err error) {
	if most > 0 {
		a.hold, err = a.reserve(ctx, most)
		if err != nil {
			return answer, api.CodeOf(err) == api.Denied, err // a cheaper model may be within what is there
		}
	}
	began := a.h.now()
	res, err := a.call(ctx)
	took := a.h.now().Sub(began)
	if err != nil {
		a.h.models.noticed(ctx, err)
		a.h.tel.call(ctx, a.provider.Name(), a.model.ID, string(provider.KindOf(err)), took, 0, 0, 0)
		return answer, a.passOn(err), a.giveBack(ctx, most, res, err)
	}
	cost := min(api.Micros(a.model.Cost(res.Usage.Input, res.Usage.Output)), most)
	a.h.tel.call(ctx, a.provider.Name(), a.model.ID, "ok", took, res.Usage.Input, res.Usage.Output, cost)
	answer = api.Completion{
		Model: a.model.ID, Provider: a.provider.Name(), Text: res.Text, Finish: res.Finish,
		InputTokens: res.Usage.Input, OutputTokens: res.Usage.Output, Cost: cost, LatencyMS: took.Milliseconds(),
	}
	for _, c := range res.ToolCalls {
		answer.ToolCalls = append(answer.ToolCalls, api.ToolCall(c))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	record := sqlstore.Paid{
		Call: api.Completed{
			ID: a.req.ID, Agent: a.req.Agent, Session: a.req.Session, Turn: a.req.Turn, Task: a.req.Task, Tier: a.req.Tier,
			Model: a.model.ID, Provider: a.provider.Name(), InputTokens: answer.InputTokens, OutputTokens: answer.OutputTokens,
			Cost: cost, LatencyMS: answer.LatencyMS, At: a.h.now().UnixMicro(),
		},
		Hold: holdID(a.hold, most), Trace: trace.SpanContextFromContext(ctx).TraceID().String(), Answer: answer,
	}
	paid, err := failpoint.Value(ctx, failpoint.RouterRecord, func(ctx context.Context) (sqlstore.Paid, error) { return a.h.store.Record(ctx, record) })
	if err != nil {
		a.h.leaves() // it may be stored all the same, and the caller need not come back
		return answer, false, err
	}
	a.h.relay.Kick()
	if most > 0 && paid.Hold != a.hold { // the same call was asked twice at once, and the other one is stored
		a.release(ctx, a.hold, "another answer to this call is stored")
	}
	answer, err = a.h.answer(ctx, a.req, paid)
	return answer, false, err
}

// maxHolds is how often one call may be begun; callers give up before.
const maxHolds = 32

// reserve holds the money of an attempt and returns the hold. An earlier try of
// the same call may have left a hold: an active one is used, one that has ended
// is passed over for the next id, and so is one of another amount, which was for
// another prompt. What that holds is given back.
// A caller that goes away meanwhile does not cut the question: the hold may be there
// already, and nobody would give it back.
func (a attempt) reserve(ctx context.Context, most api.Micros) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	for n := range maxHolds {
		id := a.hold
		if n > 0 {
			id += "/" + strconv.Itoa(n)
		}
		state, err := a.h.hold(ctx, id, a.req.Agent, a.req.Turn, most)
		switch {
		case api.CodeOf(err) == api.Conflict:
			a.supersede(ctx, id)
		case err != nil:
			return "", err
		case state.Status == api.HoldActive:
			return id, nil
		}
	}
	return "", api.Errorf(api.Conflict, "call %s was begun %d times and is not taken again", a.req.ID, maxHolds)
}

// supersede gives back what an earlier try of the call still holds. Should that try
// be under way yet, and store its answer first, it is paid as by [handlers.settleLate].
func (a attempt) supersede(ctx context.Context, id string) {
	own, err := bus.Call[api.Holds](ctx, a.h.bus, api.ListHolds{Agent: a.req.Agent, Limit: 250})
	if err != nil {
		a.h.log.WarnContext(ctx, "a hold is left to expire", "hold", id, "err", err)
		return
	}
	if slices.ContainsFunc(own.Holds, func(s api.HoldState) bool { return s.ID == id }) {
		a.release(ctx, id, "the call is made again with another prompt")
	}
}

func (h *handlers) hold(ctx context.Context, id, agent, turn string, amount api.Micros) (api.HoldState, error) {
	return failpoint.Value(ctx, failpoint.RouterHold, func(ctx context.Context) (api.HoldState, error) {
		return bus.Call[api.HoldState](ctx, h.bus, api.Hold{
			ID: id, Agent: agent, Amount: amount, Category: api.CategoryInference, Turn: turn, ExpiresAt: h.now().Add(10 * time.Minute).UnixMicro(),
		})
	})
}

// holdID is the hold that a call is paid from; "" for a free one.
func holdID(id string, most api.Micros) string {
	if most == 0 {
		return ""
	}
	return id
}

// call asks the provider, again for what passes by itself, while there is time
// and not a word has come: words are billed, and the caller has them already. A
// conversation with calls that the provider refuses is sent once more, its calls as
// text: then it is refused for another cause.
func (a attempt) call(ctx context.Context) (provider.Response, error) {
	for try := 0; ; try++ {
		res, err := a.once(ctx, try)
		kind := provider.KindOf(err)
		if kind == provider.Fatal && res.Usage.Output == 0 && provider.HasCalls(a.ask.Messages) {
			a.ask.Messages = provider.Normalize(provider.Plain(a.ask.Messages), true)
			res, err = a.once(ctx, try+1)
			kind = provider.KindOf(err)
		}
		if err == nil || kind != provider.RetrySame && kind != provider.RateLimited || try == triesOnSame || res.Usage.Output > 0 {
			return res, err
		}
		wait := 500 * time.Millisecond << try
		if e, ok := errors.AsType[*provider.Error](err); ok && e.RetryAfter > 0 {
			wait = e.RetryAfter
		}
		if end, ok := ctx.Deadline(); wait > maxWait || ok && a.h.now().Add(wait).After(end) {
			return res, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return res, err
		case <-t.C:
		}
	}
}

func (a attempt) once(ctx context.Context, try int) (provider.Response, error) {
	name, opts := telemetry.Chat(a.provider.Name(), a.model.ID)
	ctx, span := a.h.tracer.Start(ctx, name, opts...)
	defer span.End()
	span.SetAttributes(attribute.Int("http.request.resend_count", try), attribute.Int64("gen_ai.request.max_tokens", a.limit))
	res, err := failpoint.Value(ctx, failpoint.RouterCall, func(ctx context.Context) (provider.Response, error) {
		return a.provider.Complete(ctx, a.ask, func(text string) error { return a.send(api.Delta{Content: text}) })
	})
	if err != nil {
		telemetry.Fail(span, string(provider.KindOf(err)), err.Error())
		return res, err
	}
	span.SetAttributes(
		attribute.String("gen_ai.response.model", res.Model), attribute.String("gen_ai.response.id", res.ID),
		attribute.StringSlice("gen_ai.response.finish_reasons", []string{res.Finish}),
		attribute.Int64("gen_ai.usage.input_tokens", res.Usage.Input), attribute.Int64("gen_ai.usage.output_tokens", res.Usage.Output),
		attribute.Int64("automaton.cost.usd_micros", a.model.Cost(res.Usage.Input, res.Usage.Output)),
	)
	return res, nil
}

// passOn says whether another model may do better.
func (a attempt) passOn(err error) bool {
	kind := provider.KindOf(err)
	return kind != provider.Canceled && kind != provider.Fatal
}

// giveBack ends a failed attempt's hold and says what went wrong. What a broken
// stream had delivered is paid: the provider bills it too.
func (a attempt) giveBack(ctx context.Context, most api.Micros, res provider.Response, cause error) error {
	failure := failureOf(cause)
	if most == 0 {
		return failure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	used := min(api.Micros(a.model.Cost(res.Usage.Input, res.Usage.Output)), most)
	if used == 0 || res.Usage.Output == 0 {
		a.release(ctx, a.hold, "provider failed")
		return failure
	}
	if _, err := bus.Call[api.HoldState](ctx, a.h.bus, api.Settle{
		ID: a.hold, Amount: used, Payee: "provider:" + a.provider.Name(), Memo: api.MemoBroken,
	}); err != nil {
		a.h.log.WarnContext(ctx, "a hold is left to expire", "hold", a.hold, "err", err)
	}
	return failure
}

// release gives a hold back.
func (a attempt) release(ctx context.Context, hold, why string) {
	if _, err := bus.Call[api.HoldState](ctx, a.h.bus, api.Release{ID: hold, Reason: why}); err != nil {
		a.h.log.WarnContext(ctx, "a hold is left to expire", "hold", hold, "err", err)
	}
}

// failureOf turns a provider's error into one of ours. Its text is safe to show.
func failureOf(err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok {
		return err
	}
	out := &api.Error{Code: api.Unavailable, Reason: api.ReasonProvider, Message: e.Error(), Next: "try again later, or configure another provider", RetryAfter: max(1000, e.RetryAfter.Milliseconds())}
	switch e.Kind {
	case provider.Canceled:
		if errors.Is(err, context.Canceled) { // the caller has gone, or this process ends
			return &api.Error{Code: api.Unavailable, Message: "the call was stopped before its answer was complete", Next: "ask again", RetryAfter: 1000}
		}
	case provider.ContextTooLong:
		out.Code, out.Reason, out.Next = api.Invalid, api.ReasonTooLong, "shorten the conversation or use a model with a larger window"
	case provider.Fatal:
		out.Code, out.Reason, out.Next = api.Invalid, api.ReasonRefused, "the message is the provider's: it refuses this request as it is"
	case provider.Auth:
		out.Reason, out.Next = api.ReasonNoModel, "check OPENAI_API_KEY"
	case provider.RetrySame, provider.RateLimited, provider.Failover:
	}
	return out
}

// settle pays a stored call from its hold. Settling again changes nothing. What
// treasury does not take now is left to [handlers.settleLeftovers], should the
// caller not ask again.
func (h *handlers) settle(ctx context.Context, p sqlstore.Paid) error {
	if p.Hold == "" {
		return nil
	}
	err := h.pay(ctx, p, p.Hold)
	if api.CodeOf(err) == api.Conflict && p.Call.Cost > 0 {
		err = h.settleLate(ctx, p)
	}
	if err != nil {
		h.leaves()
	}
	return err
}

// leaves tells [handlers.settleLeftovers] that there may be something.
func (h *handlers) leaves() {
	select {
	case h.unsettled <- struct{}{}:
	default: // it knows
	}
}

func (h *handlers) pay(ctx context.Context, p sqlstore.Paid, hold string) error {
	return failpoint.Do(ctx, failpoint.RouterSettle, func(ctx context.Context) error {
		_, err := bus.Call[api.HoldState](ctx, h.bus, api.Settle{
			ID: hold, Amount: p.Call.Cost, Payee: "provider:" + p.Call.Provider, Memo: p.Call.Model,
		})
		return err
	})
}

// settleLate pays a stored call whose hold has ended without it: it expired
// before anybody asked again, or another replica failed at the same call and
// gave it back. Its ids follow from the first hold's, so it too pays once.
func (h *handlers) settleLate(ctx context.Context, p sqlstore.Paid) error {
	for n := range maxHolds {
		id := p.Hold + "/late" + strconv.Itoa(n)
		state, err := h.hold(ctx, id, p.Call.Agent, p.Call.Turn, p.Call.Cost)
		switch {
		case err != nil:
			return err
		case state.Status == api.HoldSettled:
			return nil
		case state.Status == api.HoldActive:
			return h.pay(ctx, p, id)
		}
	}
	return api.Errorf(api.Conflict, "call %s is stored and cannot be settled", p.Call.ID)
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
		p, found, err := h.store.FindByHold(ctx, hold.ID)
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		if err := h.pay(ctx, p, hold.ID); err != nil {
			faults = append(faults, fmt.Errorf("settle %s: %w", hold.ID, err))
			continue
		}
		h.log.InfoContext(ctx, "settled what was left", "hold", hold.ID)
	}
	return errors.Join(faults...)
}

func notConfigured(m model.Model) string { return "provider " + m.Provider + " is not configured" }

func (h *handlers) listModels(context.Context, api.ListModels) (api.Models, error) {
	out := api.Models{Models: []api.Model{}, Faults: h.models.faults()}
	for _, m := range h.models.Registry().All() {
		why := m.Unusable()
		if why == "" && h.providers[m.Provider] == nil {
			why = notConfigured(m)
		}
		out.Models = append(out.Models, api.Model{
			ID: m.ID, Provider: m.Provider, InputPrice: api.Micros(m.InputPrice), OutputPrice: api.Micros(m.OutputPrice),
			ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutput, TierMinimum: api.Tier(m.TierMinimum), Usable: why == "", Why: why,
		})
	}
	return out, nil
}

// httpModels answers in OpenAI's form, with the models that can be used.
func (h *handlers) httpModels(w http.ResponseWriter, r *http.Request) {
	all, err := h.listModels(r.Context(), api.ListModels{})
	type entry struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	list := []entry{}
	for _, m := range all.Models {
		if m.Usable {
			list = append(list, entry{ID: m.ID, Object: "model", OwnedBy: m.Provider})
		}
	}
	host.WriteJSON(w, map[string]any{"object": "list", "data": list}, err)
}

package router

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// route selects the candidates for a call. If none is usable, and either a list could not
// be read or no model can be called, it reads the lists and selects again: a server may
// have started since.
func (h *handlers) route(ctx context.Context, q model.Query, route *model.Route) {
	h.models.Registry().Select(h.matrix.load(), q, route)
	if !route.Usable() && (len(h.models.faults()) > 0 || !h.models.usable()) {
		h.models.refreshFor(ctx)
		h.models.Registry().Select(h.matrix.load(), q, route)
	}
}

// explainRoute answers with the selection for a call that is not made, and with the pauses of
// models. It does not read the lists of models again.
func (h *handlers) explainRoute(ctx context.Context, m api.ExplainRoute) (api.Route, error) {
	q := model.Query{
		Tier: m.Tier, Task: cmp.Or(m.Task, api.TaskTurn), Model: m.Model, Prompt: max(0, m.PromptTokens-m.ToolTokens), Tools: m.ToolTokens, Images: m.Images,
		Output: m.MaxTokens, Budget: model.Unlimited, Configured: h.models.configured,
	}
	switch {
	case !slices.Contains(api.Tasks(), q.Task):
		return api.Route{}, notTask(q.Task)
	case m.Tier != api.TierUnknown && !slices.Contains(api.Tiers(), m.Tier):
		return api.Route{}, api.Errorf(api.Invalid, "%.40q is not a tier: the tiers are %v", m.Tier, api.Tiers())
	case min(m.PromptTokens, m.ToolTokens, m.MaxTokens, m.Images) < 0:
		return api.Route{}, api.Errorf(api.Invalid, "a number of tokens or images cannot be negative")
	}
	if m.Agent != "" {
		funds, err := bus.Call[api.Balance](ctx, h.bus, api.GetBalance{Agent: m.Agent})
		if err != nil {
			return api.Route{}, err
		}
		q.Tier, q.Budget = cmp.Or(q.Tier, funds.Tier), max(0, int64(funds.Available))
	}
	if m.LowCompute {
		q.Tier = q.Tier.LowCompute()
	}
	var route model.Route
	h.models.Registry().Select(h.matrix.load(), q, &route)
	h.pause(&route)
	return explained(&route), nil
}

// pause marks the usable candidates that a call would pass over now because of earlier
// attempts: their breaker is open, or their provider asked all callers to wait longer than
// another candidate, or than a call waits. It is for explanations; a call decides it before
// each attempt, see [callState.next].
func (h *handlers) pause(route *model.Route) {
	now, soonest := h.now(), maxWait
	waits := func(c *model.Candidate) (r health.Route, blocked, wait time.Duration) {
		r = health.Route{Provider: c.Model.Provider, Model: c.ID}
		s := h.health.State(r)
		return r, s.Blocked(now), max(0, s.NotBefore.Sub(now))
	}
	for i := range route.Candidates {
		if c := &route.Candidates[i]; c.Reason == model.Usable {
			if _, blocked, wait := waits(c); blocked == 0 {
				soonest = min(soonest, wait)
			}
		}
	}
	for i := range route.Candidates {
		c := &route.Candidates[i]
		if c.Reason != model.Usable {
			continue
		}
		if r, blocked, wait := waits(c); blocked > 0 || wait > soonest {
			c.Reason = model.Paused
			c.Pause = fmt.Sprintf("%s; not called for another %s", cmp.Or(h.health.cause(r), "provider "+r.Provider+" failed"), max(time.Second, max(blocked, wait).Round(time.Second)))
		}
	}
}

func explained(route *model.Route) api.Route {
	out := api.Route{
		Tier: route.Tier, Task: route.Task, MaxTokens: route.MaxTokens, Ceiling: api.Micros(route.Ceiling), Available: api.Micros(route.Budget),
		TimeoutMS: route.Timeout.Milliseconds(), Candidates: []api.Candidate{},
	}
	for i := range route.Candidates {
		c := &route.Candidates[i]
		row := api.Candidate{Model: c.ID, Usable: c.Reason == model.Usable, Why: route.Why(c), MaxTokens: c.Limit, Fewer: c.Fewer, WithoutTools: c.Without}
		if c.Model != nil {
			row.Provider = c.Model.Provider
			if c.Model.Known {
				row.Cost = min(api.Micros(c.Most), api.MaxMicros)
			}
		}
		if row.Usable && out.Chosen == "" {
			out.Chosen = c.ID
		}
		out.Candidates = append(out.Candidates, row)
	}
	return out
}

// query returns what the selection for the call depends on. The available credits are not
// known here: treasury refuses a hold that exceeds them.
func (c *callState) query() model.Query {
	q := model.Query{
		Tier: c.req.Tier, Task: c.req.Task, Model: c.req.Model, Output: c.req.MaxTokens, Budget: model.Unlimited, Configured: c.h.models.configured,
	}
	if c.req.raw != nil {
		q.Tools = c.req.raw.ToolTokens
		q.Prompt = provider.Request{Raw: c.req.raw, Options: c.req.options}.Estimate() - q.Tools
		return q
	}
	for _, m := range c.req.Messages {
		q.Images += int64(len(m.Images))
	}
	q.Prompt = provider.Request{Messages: c.req.Messages, Options: c.req.options}.Estimate()
	q.Tools = provider.ToolTokens(c.req.Tools)
	return q
}

// promptTokens returns the estimate of the tokens of a prompt for the model that a call with
// it would try first, without its pauses. If no model can be called now, for example because
// the prompt is longer than each window, it is the estimate for the first candidate that is
// registered.
func (h *handlers) promptTokens(req callRequest) int64 {
	q := (&callState{h: h, req: req}).query()
	var route model.Route
	h.models.Registry().Select(h.matrix.load(), q, &route)
	tokens := int64(0)
	for i := range route.Candidates {
		switch c := &route.Candidates[i]; {
		case c.Reason == model.Usable:
			return c.Prompt
		case c.Model != nil && tokens == 0:
			tokens = c.Prompt
		}
	}
	return cmp.Or(tokens, q.Prompt+q.Tools)
}

// degrade lowers the output limit of the models for which treasury refused the hold, so
// that the call fits the available credits. It returns false if no model is left for which
// that is possible.
func (c *callState) degrade() bool {
	found := false
	for _, m := range c.models {
		if !m.denied {
			continue
		}
		m.denied = false
		if limit := model.Lower(m.limit); limit < m.limit {
			m.tokens -= m.limit - limit
			m.limit, m.ask.MaxTokens, m.most = limit, limit, api.Micros(m.model.Most(2*(m.tokens-limit), limit))
			m.excluded, found = false, true
		}
	}
	return found
}

// refusal returns the error of the first candidate that was refused because it sees no
// images, by its window or by the ceiling; nil if there is none.
func refusal(route *model.Route) error {
	for i := range route.Candidates {
		c := &route.Candidates[i]
		if c.Reason == model.NoVision {
			return &api.Error{
				Code: api.Invalid, Reason: api.ReasonNoModel, Message: "the prompt has images, and " + c.ID + " cannot see images",
				Next: "use a model that sees images: anima model list -o json shows them, and ANIMA_INFERENCE_ROUTER_MODELS marks them with /vision",
			}
		}
		if c.Reason == model.TooLong {
			return &api.Error{
				Code: api.Invalid, Reason: api.ReasonTooLong, Message: fmt.Sprintf("the prompt of about %d tokens does not fit %s", c.Prompt, c.ID),
				Next: "shorten the conversation or use a model with a larger window",
			}
		}
		if c.Reason == model.OverCeiling {
			return &api.Error{
				Code: api.Denied, Reason: api.ReasonLimit, Message: fmt.Sprintf("a call to %s may cost %s, more than this tier may spend on one", c.ID, api.Micros(c.Most)),
				Next: "fund the agent, or shorten its prompt",
			}
		}
	}
	return nil
}

func notTask(task api.Task) error {
	return api.Errorf(api.Invalid, "%.40q is not a task: the tasks are %v", task, api.Tasks())
}

package router

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// maxID is the longest id of a call, in bytes. It leaves room within treasury's limit of
// 200 bytes for the suffixes that [candidate.reserve] and [handlers.settleLate] append.
const maxID = 180

func check(req callRequest) error {
	switch {
	case req.ID == "" || len(req.ID) > maxID:
		return api.Errorf(api.Invalid, "a call needs an id of at most %d bytes", maxID)
	case !api.ValidKey(req.Agent): // checked here because the store would refuse it only after the call is paid
		return api.Errorf(api.Invalid, "a call needs the id of the agent that pays: %.40q is not a valid agent id", req.Agent)
	case len(req.Messages) == 0 && req.raw == nil:
		return api.Errorf(api.Invalid, "a call needs messages")
	}
	if _, err := provider.FormatOf(req.options.ResponseFormat); err != nil {
		return api.Errorf(api.Invalid, "%v", err)
	}
	if err := chat.CheckImages(req.Messages); err != nil { // a prompt in raw has no images, see [chat.Check]
		return api.Errorf(api.Invalid, "%v", err)
	}
	return nil
}

// noModel returns the error for a call without a usable model. faults are the errors of
// lists that could not be read.
func noModel(req api.Complete, route *model.Route, faults []string) *api.Error {
	e := &api.Error{
		Code: api.Unavailable, Reason: api.ReasonNoModel, Message: fmt.Sprintf("no model can be used for %s in tier %s", req.Task, req.Tier),
		Next: "configure a provider (OPENAI_API_KEY, OPENAI_BASE_URL, OLLAMA_HOST), name a model in AGENT.md or in ANIMA_INFERENCE_ROUTER_MODELS, or fund the agent; anima model list shows the reasons", RetryAfter: 60_000,
	}
	if len(faults) > 0 {
		e.Message += ": the list of models cannot be read from " + faults[0]
		e.Next = "start the server, or correct its address or key (OPENAI_BASE_URL, OPENAI_API_KEY, OLLAMA_HOST); its models are used as soon as it answers"
		e.Details = append(e.Details, faults[1:]...)
	}
	if !route.Served {
		e.Details = append(e.Details, fmt.Sprintf("tier %q does not serve task %q", req.Tier, req.Task))
	}
	for i := range route.Candidates {
		if c := &route.Candidates[i]; c.Reason != model.Usable {
			e.Details = append(e.Details, c.ID+": "+route.Why(c))
		}
	}
	return e
}

func (h *handlers) listModels(context.Context, api.ListModels) (api.Models, error) {
	out := api.Models{Models: []api.Model{}, Faults: h.models.faults()}
	now := h.now()
	for _, m := range h.models.all() {
		row := h.models.shown(m)
		r := health.Route{Provider: m.Provider, Model: m.ID}
		if s := h.health.State(r); s.Phase(now) != health.Closed {
			row.Breaker, row.BreakerUntil, row.BreakerReason = s.Phase(now).String(), micros(s.OpenUntil), h.health.cause(r)
		}
		out.Models = append(out.Models, row)
	}
	return out, nil
}

// refreshModels reads the lists of the providers. A list that cannot be read is a fault in
// the answer, and its models stay.
func (h *handlers) refreshModels(ctx context.Context, _ api.RefreshModels) (api.Models, error) {
	h.models.refresh(ctx, listTimeout)
	if err := h.models.loadIfChanged(ctx); err != nil {
		return api.Models{}, err
	}
	return h.listModels(ctx, api.ListModels{})
}

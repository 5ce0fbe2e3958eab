package router

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// The prompt for which a choice is explained, in tokens: that of a short conversation.
const (
	usualPrompt = 2_000
	usualTools  = 2_000
)

// defaultModel is the id by which an agent chooses the model of its definition.
const defaultModel = "default"

// toolSwitch sets the model that the agent prefers from its next call on, and ends low
// compute. The answer says which model will be used, which is another one as long as the
// preferred one cannot be. A crash after the choice is stored repeats it with the call.
func (h *handlers) toolSwitch(ctx context.Context, c executor.Call) (string, error) {
	id := c.Args.String("model_id")
	choice := api.ChooseModel{Agent: c.Agent, Model: id}
	if id == defaultModel {
		choice.Model = ""
	} else if err := h.checkChoice(id); err != nil {
		return "", err
	}
	agent, err := bus.Call[api.Agent](ctx, h.bus, choice)
	if err != nil {
		return "", err
	}
	route, err := h.usualRoute(ctx, c.Agent, cmp.Or(agent.Chosen, agent.Model), false)
	if err != nil {
		return "", err
	}
	return "From your next model call on: " + h.used(route), nil
}

// toolLowCompute limits the agent to the tier low_compute and to short prompts, and makes the
// cheapest model that can be called its preferred one.
func (h *handlers) toolLowCompute(ctx context.Context, c executor.Call) (string, error) {
	agent, err := bus.Call[api.Agent](ctx, h.bus, api.GetAgent{Agent: c.Agent})
	if err != nil {
		return "", err
	}
	preferred := cmp.Or(agent.Chosen, agent.Model)
	route, err := h.usualRoute(ctx, c.Agent, preferred, true)
	if err != nil {
		return "", err
	}
	if m := cheapest(route); m != nil && m.ID != preferred {
		if route, err = h.usualRoute(ctx, c.Agent, m.ID, true); err != nil {
			return "", err
		}
		preferred = m.ID
	}
	choice := api.ChooseModel{Agent: c.Agent, Model: preferred, LowCompute: true}
	if preferred == agent.Model {
		choice.Model = ""
	}
	if _, err := bus.Call[api.Agent](ctx, h.bus, choice); err != nil {
		return "", err
	}
	return fmt.Sprintf("Low compute from your next model call on: %s; prompts of at most %d tokens. switch_model with %q ends it.", h.used(route), api.LowComputeWindow, defaultModel), nil
}

// checkChoice returns an error for a model that cannot be called, whatever the agent's
// balance is. Errors: Invalid, with models that can be.
func (h *handlers) checkChoice(id string) error {
	var usable []string
	why := "there is no such model"
	if model.IsClass(id) {
		return nil
	}
	m := h.models.Registry().Find(id)
	if m != nil {
		if why = h.models.shown(*m).Why; why == "" {
			return nil
		}
	}
	for _, m := range h.models.Registry().All() {
		if h.models.shown(m).Usable && len(usable) < 10 {
			usable = append(usable, m.ID)
		}
	}
	return &api.Error{
		Code: api.Invalid, Message: fmt.Sprintf("model %.80q cannot be chosen: %s", id, why),
		Next: "choose one of " + strings.Join(usable, ", ") + ", or " + defaultModel + "; list_models shows all",
	}
}

// usualRoute selects the models for a usual turn of the agent, with its credits.
func (h *handlers) usualRoute(ctx context.Context, agent, preferred string, low bool) (*model.Route, error) {
	funds, err := bus.Call[api.Balance](ctx, h.bus, api.GetBalance{Agent: agent})
	if err != nil {
		return nil, err
	}
	q := model.Query{
		Tier: funds.Tier, Task: api.TaskTurn, Model: preferred, Prompt: usualPrompt, Tools: usualTools, Budget: max(0, int64(funds.Available)), Configured: h.models.configured,
	}
	if low {
		q.Tier = q.Tier.LowCompute()
	}
	route := new(model.Route)
	h.models.Registry().Select(h.matrix.load(), q, route)
	return route, nil
}

// used says which model of a route is called, and why the preferred one is not.
func (h *handlers) used(route *model.Route) string {
	h.pause(route)
	for i := range route.Candidates {
		c := &route.Candidates[i]
		if c.Reason != model.Usable {
			continue
		}
		text := fmt.Sprintf("%s of %s, answers of at most %d tokens", c.ID, c.Model.Provider, c.Limit)
		if first := &route.Candidates[0]; i > 0 {
			text += fmt.Sprintf(" (%s is not used now: %s)", first.ID, route.Why(first))
		}
		return text
	}
	return "no model can be called now; list_models shows why"
}

// cheapest returns the usable candidate whose call can cost least; nil if there is none.
func cheapest(route *model.Route) *model.Candidate {
	var best *model.Candidate
	for i := range route.Candidates {
		if c := &route.Candidates[i]; c.Reason == model.Usable && (best == nil || c.Most < best.Most) {
			best = c
		}
	}
	return best
}

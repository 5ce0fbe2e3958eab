package model

import (
	"fmt"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Unlimited is the ceiling of a cell without a ceiling.
const Unlimited int64 = -1

// Cell is one field of the routing matrix: the models to try in order, the output limit
// in tokens, and the highest cost of one call in micro-USD.
type Cell struct {
	Models    []string
	MaxTokens int64
	Ceiling   int64
}

// Matrix returns the routing matrix (docs/reference/inference-router.md, Routing matrix). A
// missing pair is not served: dead agents make no model calls, critical ones neither plan
// nor summarize.
func Matrix() map[api.Tier]map[api.Task]Cell {
	const cent = 10_000 // micro-USD
	top := []string{"gpt-5.2", "gpt-5.3"}
	mixed := []string{"gpt-5.2", "gpt-5-mini"}
	mini := []string{"gpt-5-mini"}
	return map[api.Tier]map[api.Task]Cell{
		api.TierHigh: {
			api.TaskTurn:     {top, 8192, Unlimited},
			api.TaskTriage:   {mini, 2048, 5 * cent},
			api.TaskSafety:   {top, 4096, 20 * cent},
			api.TaskSummary:  {mixed, 4096, 15 * cent},
			api.TaskPlanning: {top, 8192, Unlimited},
		},
		api.TierNormal: {
			api.TaskTurn:     {mixed, 4096, Unlimited},
			api.TaskTriage:   {mini, 2048, 5 * cent},
			api.TaskSafety:   {mixed, 4096, 10 * cent},
			api.TaskSummary:  {mixed, 4096, 10 * cent},
			api.TaskPlanning: {mixed, 4096, Unlimited},
		},
		api.TierLow: {
			api.TaskTurn:     {mini, 4096, 10 * cent},
			api.TaskTriage:   {mini, 1024, 2 * cent},
			api.TaskSafety:   {mini, 2048, 5 * cent},
			api.TaskSummary:  {mini, 2048, 5 * cent},
			api.TaskPlanning: {mini, 2048, 5 * cent},
		},
		api.TierCritical: {
			api.TaskTurn:   {mini, 2048, 3 * cent},
			api.TaskTriage: {mini, 512, 1 * cent},
			api.TaskSafety: {mini, 1024, 2 * cent},
		},
	}
}

// Route holds the candidates for a call in the order to try them, the limits on each of
// them, and the models that were skipped.
type Route struct {
	Models    []Model
	MaxTokens int64         // output limit in tokens
	Ceiling   int64         // micro-USD for one call; [Unlimited] for none
	Timeout   time.Duration // for all candidates together
	Skipped   []Skipped
	Why       string // the reason why no model can be called; empty if one can
}

// Skipped is a model that was considered and not selected, with the reason.
type Skipped struct{ ID, Why string }

// Limit returns the output limit for a call to m: the lowest of the limits of the route,
// the model and the caller (asked). A caller's limit of 0 or less is no limit.
func (r Route) Limit(m Model, asked int64) int64 {
	limit := r.MaxTokens
	if m.MaxOutput > 0 {
		limit = min(limit, m.MaxOutput)
	}
	if asked > 0 {
		limit = min(limit, asked)
	}
	return limit
}

// Allows reports whether a cost in micro-USD is within the route's ceiling.
func (r Route) Allows(cost int64) bool { return r.Ceiling == Unlimited || cost <= r.Ceiling }

// Candidates selects the models for a tier and a task, in this order: the requested model
// if the tier may choose it, the models of the matrix, then fallbacks in order of
// registration. requested is a preference: a model that cannot be used is skipped and is
// no error. It is found as by [Registry.Get]. The models of the matrix have no minimum
// tier: a critical agent uses gpt-5-mini (docs/reference/inference-router.md, Selection). A
// model of the matrix that no provider has is not reported as skipped.
func (r *Registry) Candidates(tier api.Tier, task api.Task, requested string) Route {
	row := tier
	if tier == api.TierUnknown {
		row = api.TierNormal
	}
	cell, ok := r.matrix[row][task]
	if !ok {
		return Route{Timeout: Timeout(task), Why: fmt.Sprintf("tier %q does not serve task %q", tier, task)}
	}
	route := Route{MaxTokens: cell.MaxTokens, Ceiling: cell.Ceiling, Timeout: Timeout(task)}

	seen := make(map[string]bool, len(r.order)+1)
	consider := func(id string) {
		m, ok := r.Get(id)
		why := "not registered"
		name := id
		if ok {
			id, why = m.ID, m.Unusable()
		}
		if seen[id] || !ok && name != requested {
			return
		}
		seen[id] = true
		if why == "" && !slices.Contains(cell.Models, name) && !slices.Contains(cell.Models, id) && !m.Free() && rank(tier) < rank(m.TierMinimum) {
			why = fmt.Sprintf("needs tier %s", m.TierMinimum)
		}
		if why != "" {
			route.Skipped = append(route.Skipped, Skipped{ID: id, Why: why})
			return
		}
		route.Models = append(route.Models, m)
	}
	if requested != "" {
		consider(requested)
	}
	for _, id := range cell.Models {
		consider(id)
	}
	for _, id := range r.order {
		if r.models[id].Fallback {
			consider(id)
		}
	}
	if len(route.Models) == 0 {
		route.Why = "no candidate can be used"
	}
	return route
}

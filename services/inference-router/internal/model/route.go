package model

import (
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Query is what a selection depends on.
type Query struct {
	Tier   api.Tier
	Task   api.Task
	Model  string // requested by the caller, or a class; a preference
	Prompt int64  // estimated tokens of the prompt without its tools
	Tools  int64  // estimated tokens of the tools of the prompt; 0: it has none
	Images int64  // number of images in the prompt; Prompt includes their tokens
	Output int64  // output limit of the caller in tokens; 0 or less: none
	Budget int64  // the most that the call may cost in micro-USD; [Unlimited] if unknown

	// Configured reports whether a provider is configured; nil: all are.
	Configured func(provider string) bool
}

// Route is the result of a selection. Candidates has every model that was considered, in
// the order to try them. The zero value is ready for [Registry.Select].
type Route struct {
	Tier       api.Tier
	Task       api.Task
	Candidates []Candidate
	Served     bool          // the matrix has models for the tier and the task
	MaxTokens  int64         // output limit of the cell in tokens; 0: none
	Ceiling    int64         // micro-USD for one call; [Unlimited] for none
	Budget     int64         // as in the query
	Timeout    time.Duration // for all candidates together

	unknown bool         // the matrix has no such tier or task: no model is called, not even a free one
	first   [8]Candidate // memory of Candidates, so that a usual selection allocates nothing
}

// minOutput is the lowest output limit in tokens to which a selection lowers the limit of
// a call: shorter answers are mostly cut within a sentence or a tool call.
const minOutput = 256

// unservedOutput is the output limit in tokens of a free model without a limit of its own,
// in a cell that is not served.
const unservedOutput = 2048

// Usable reports whether a candidate can be called.
func (r *Route) Usable() bool {
	return slices.ContainsFunc(r.Candidates, func(c Candidate) bool { return c.Reason == Usable })
}

// Select fills route with the candidates for a call, in this order: the requested model,
// the models of the cell of the matrix, then fallbacks in order of registration. Each has
// the reason why it cannot be called, or [Usable]. The requested model is found as by
// Registry.find. The models of the cell have no minimum tier: a critical agent uses
// gpt-5-mini, also if it is requested or in the requested class.
//
// If no candidate is usable, those that are refused only by the window or the ceiling get
// a lower output limit, at least minOutput tokens. If that does not suffice, models without
// tools are called without the tools of the prompt. The requested model always is.
//
// It is the only place where models are chosen: calls and explanations both use it. It
// allocates nothing for up to 8 candidates.
func (r *Registry) Select(matrix Matrix, q Query, route *Route) {
	cell, known := cellOf(matrix, q.Tier, q.Task)
	route.unknown = !known
	route.Tier, route.Task, route.Timeout = q.Tier, q.Task, Timeout(q.Task)
	route.Served, route.MaxTokens, route.Ceiling, route.Budget = len(cell.Models) > 0, cell.MaxTokens, int64(cell.Ceiling), q.Budget
	route.Candidates = route.first[:0]
	if IsClass(q.Model) {
		route.addClass(r, q.Model, &cell, &q)
	} else if q.Model != "" {
		if m := r.find(q.Model); m != nil {
			route.add(m, r.has(&cell, m), &q)
		} else {
			route.Candidates = append(route.Candidates, Candidate{ID: q.Model, Reason: Unregistered})
		}
	}
	for _, id := range cell.Models {
		if m := r.find(id); m != nil {
			route.add(m, true, &q)
		} else if id != q.Model { // which is a candidate already
			route.Candidates = append(route.Candidates, Candidate{ID: id, Reason: Unregistered})
		}
	}
	for _, at := range r.fallbacks {
		route.add(&r.models[at], false, &q)
	}
	if route.Usable() {
		return
	}
	for _, without := range [...]bool{false, true} {
		for i := range route.Candidates {
			route.degrade(&route.Candidates[i], without, &q)
		}
		if route.Usable() {
			return
		}
	}
}

// has reports whether a model is one of a cell of the matrix.
func (r *Registry) has(cell *api.Cell, m *Model) bool {
	return slices.ContainsFunc(cell.Models, func(id string) bool { return r.find(id) == m })
}

// add considers a model, unless it was considered before. ofCell says that the model is in
// the cell of the matrix.
func (r *Route) add(m *Model, ofCell bool, q *Query) {
	for i := range r.Candidates {
		if r.Candidates[i].Model == m {
			return
		}
	}
	c := Candidate{ID: m.ID, Model: m, Prompt: q.Prompt + q.Images*m.ImageTokens, Limit: r.limit(m, q.Output), ofCell: ofCell}
	if m.Tools {
		c.Prompt += q.Tools
	}
	// The requested model, which is the first one, is called in spite of the tools: the
	// caller has named it.
	c.Without = q.Tools > 0 && !m.Tools && q.Model != "" && !IsClass(q.Model) && len(r.Candidates) == 0
	c.Reason = r.check(&c, q)
	r.Candidates = append(r.Candidates, c)
}

// check returns the first reason against a candidate and computes its highest cost.
func (r *Route) check(c *Candidate, q *Query) Reason {
	m := c.Model
	c.Most = m.Most(2*c.Prompt, c.Limit) // dense text can have more tokens than the estimate
	switch {
	case m.Absent != "":
		return Unlisted
	case q.Configured != nil && !q.Configured(m.Provider):
		return NotConfigured
	case !m.Known:
		return Unpriced
	case q.Images > 0 && !m.Vision:
		return NoVision
	case !m.Fits(c.Prompt, c.Limit):
		return TooLong
	case q.Tools > 0 && !m.Tools && !c.Without:
		return NoTools
	}
	return r.affords(c, q)
}

// affords returns the first reason of tier or money against a candidate.
func (r *Route) affords(c *Candidate, q *Query) Reason {
	switch {
	case r.unknown:
		return Unserved
	case c.Model.Free():
		return Usable
	case !c.ofCell && rank(q.Tier) < rank(c.Model.TierMinimum):
		return NeedsTier
	case !r.Served:
		return Unserved
	case r.Ceiling != Unlimited && c.Most > r.Ceiling:
		return OverCeiling
	case q.Budget != Unlimited && c.Most > q.Budget:
		return OverBudget
	}
	return Usable
}

// limit returns the output limit of a call to m: the lowest of the limits of the cell, the
// model and the caller (asked).
func (r *Route) limit(m *Model, asked int64) int64 {
	limit := r.MaxTokens
	if limit == 0 {
		limit = unservedOutput
	}
	if m.MaxOutput > 0 {
		limit = min(limit, m.MaxOutput)
	}
	if asked > 0 {
		limit = min(limit, asked)
	}
	return limit
}

package model

import (
	"maps"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// The classes of models, which a call may request instead of a model: groups of comparable
// models of several providers (docs/reference/inference-router.md, Classes).
const (
	Reasoning = "reasoning"
	Fast      = "fast"
	Cheap     = "cheap"
)

// classes has the models of each class in the order to try them.
//
//nolint:gochecknoglobals // a constant table
var classes = map[string][]string{
	Reasoning: {"gpt-4.1", "llama-3.3-70b-versatile", "meta-llama/Llama-3.3-70B-Instruct-Turbo"},
	Fast:      {"llama-3.3-70b-versatile", "gpt-4.1-mini", "meta-llama/Llama-3.3-70B-Instruct-Turbo", "llama3.3:70b"},
	Cheap:     {"llama-3.1-8b-instant", "meta-llama/Meta-Llama-3.1-8B-Instruct-Turbo", "llama3.1:8b", "gpt-4.1-nano"},
}

// IsClass reports whether a requested model is a class.
func IsClass(id string) bool {
	_, ok := classes[id]
	return ok
}

// cheaper returns the class that agents with little money get instead of a class.
func cheaper(class string) string {
	if class == Reasoning {
		return Fast
	}
	return Cheap
}

// addClass considers the models of a class that are registered. An agent with little money
// gets those of the next cheaper class, and the others after them.
func (r *Route) addClass(registry *Registry, class string, cell *api.Cell, q *Query) {
	if q.Tier.LowCompute() == q.Tier {
		r.addAll(registry, cheaper(class), cell, q)
	}
	r.addAll(registry, class, cell, q)
}

func (r *Route) addAll(registry *Registry, class string, cell *api.Cell, q *Query) {
	for _, id := range classes[class] {
		if m := registry.find(id); m != nil {
			r.add(m, registry.has(cell, m), q)
		}
	}
}

// Groq returns the models of Groq's classes, with their list prices.
func Groq() []Model {
	groq := func(id string, in, out, maxOutput int64) Model {
		return Model{
			ID: id, Provider: "groq", TierMinimum: api.TierCritical, InputPrice: in, OutputPrice: out, Known: true,
			ContextWindow: 131_072, MaxOutput: maxOutput, Tools: true, Lifecycle: api.LifeBaseline,
		}
	}
	return []Model{groq("llama-3.3-70b-versatile", 590_000, 790_000, 8192), groq("llama-3.1-8b-instant", 50_000, 80_000, 4096)}
}

// Classes returns the names of the classes, sorted.
func Classes() []string { return slices.Sorted(maps.Keys(classes)) }

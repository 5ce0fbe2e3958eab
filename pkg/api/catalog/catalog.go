// Package catalog is the list of the 77 built-in tools of spec-core-2 §3: what a
// model is told of each, what arguments it takes, how risky it is and which
// service executes it. Policy judges by it and loop executes by it, so both read
// arguments with the same parser and no call means two things.
//
// It executes nothing and decides nothing. That a tool is listed does not say
// that it can be used: loop offers only what somebody executes.
package catalog

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"
)

// Risk of a tool, spec-core-2 §3.
type Risk string

// The risks. Forbidden is also what an unknown tool is given.
const (
	Safe      Risk = "safe"
	Caution   Risk = "caution"
	Dangerous Risk = "dangerous"
	Forbidden Risk = "forbidden"
)

// Category of a tool, spec-core-2 §3.
type Category string

// The categories.
const (
	VM            Category = "vm"
	Conway        Category = "conway"
	Financial     Category = "financial"
	SelfMod       Category = "self_mod"
	Survival      Category = "survival"
	Skills        Category = "skills"
	Git           Category = "git"
	Registry      Category = "registry"
	Replication   Category = "replication"
	Memory        Category = "memory"
	Orchestration Category = "orchestration"
)

// Effect is what a call of the tool does to the world (design §1); it says what a
// run that is taken up again may do with a call that left no result.
type Effect string

// The classes. Pure, idempotent and keyed calls are made again; an irreversible
// one never is.
const (
	Pure         Effect = "pure"         // changes nothing
	Idempotent   Effect = "idempotent"   // the second time changes nothing
	Keyed        Effect = "keyed"        // whoever executes it knows the call by its key
	Irreversible Effect = "irreversible" // may have happened, once
)

// Tool is one entry of the catalogue.
type Tool struct {
	Name     string    `json:"name"`
	Does     string    `json:"does"` // for the model, one line
	Category Category  `json:"category"`
	Risk     Risk      `json:"risk"`
	Effect   Effect    `json:"effect"`
	Mutating bool      `json:"mutating"`        // changes something: the agent is not idle (spec-core-1 §1.5)
	Status   bool      `json:"status"`          // only looks at the agent's own state: many in a row are a maintenance loop
	Spends   bool      `json:"spends"`          // needs a hold before it is executed
	Owner    api.Owner `json:"owner"`           // service that executes it
	Params   []Param   `json:"params,omitzero"` // nil: it takes none
}

// Tools returns every tool, in the order of the specification. The slice is the
// caller's, what it points to is not.
func Tools() []Tool { return slices.Clone(tools) }

// Names returns the names of all tools, in the same order.
func Names() []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return names
}

// ByName returns the catalogue as a map, the caller's own.
func ByName() map[string]Tool { return maps.Clone(byName()) }

// Named returns a tool, and whether there is one of that name.
func Named(name string) (Tool, bool) {
	t, ok := byName()[name]
	return t, ok
}

var byName = sync.OnceValue(func() map[string]Tool {
	m := make(map[string]Tool, len(tools))
	for _, t := range tools {
		m[t.Name] = t
	}
	return m
})

// Schema is the JSON Schema of the tool's arguments, as models are given it.
func (t Tool) Schema() json.RawMessage {
	type property struct {
		Type        string   `json:"type"`
		Description string   `json:"description,omitempty"`
		Enum        []string `json:"enum,omitempty"`
		Minimum     *float64 `json:"minimum,omitempty"`
		Maximum     *float64 `json:"maximum,omitempty"`
		MinLength   int      `json:"minLength,omitempty"`
	}
	schema := struct {
		Type       string              `json:"type"`
		Additional bool                `json:"additionalProperties"`
		Required   []string            `json:"required,omitempty"`
		Properties map[string]property `json:"properties"`
	}{Type: "object", Properties: map[string]property{}}
	for _, p := range t.Params {
		v := property{Type: string(p.Type), Description: p.Does, Enum: p.OneOf, Minimum: p.Min, Maximum: p.Max}
		if p.Type == Text && !p.Empty {
			v.MinLength = 1
		}
		schema.Properties[p.Name] = v
		if p.Required {
			schema.Required = append(schema.Required, p.Name)
		}
	}
	text, err := api.Encode(schema)
	if err != nil {
		panic(err) // of strings and numbers alone
	}
	return text
}

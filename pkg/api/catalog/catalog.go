// Package catalog lists the 77 built-in tools (docs/reference/platform.md, Tool
// catalogue): the description for the model, the parameters, the risk, the effect and
// the service that executes the tool. Policy and loop parse arguments with the same
// parser, so that both read the same values.
//
// It must not execute calls or decide on them. A listed tool is not always available:
// loop offers only the tools that a service executes.
package catalog

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/anima-run/anima/pkg/api"
)

// Risk is the risk of a tool (docs/reference/platform.md, Tool catalogue).
type Risk string

// The risks. An unknown tool has the risk Forbidden.
const (
	Safe      Risk = "safe"
	Caution   Risk = "caution"
	Dangerous Risk = "dangerous"
	Forbidden Risk = "forbidden"
)

// Category is the category of a tool (docs/reference/platform.md, Tool catalogue).
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

// Effect is the class of the change that a call makes outside the agent. It determines
// whether a run that is resumed may repeat a call without a result
// (docs/reference/loop.md, Tool classes).
type Effect string

// The effects. Pure, idempotent and keyed calls are repeated; an irreversible call
// never is.
const (
	Pure         Effect = "pure"         // changes nothing
	Idempotent   Effect = "idempotent"   // a repetition changes nothing
	Keyed        Effect = "keyed"        // the executor recognises a repetition by its key
	Irreversible Effect = "irreversible" // must not be repeated
)

// Tool is one entry of the catalogue.
type Tool struct {
	Name     string    `json:"name"`
	Does     string    `json:"does"` // description for the model, one line
	Category Category  `json:"category"`
	Risk     Risk      `json:"risk"`
	Effect   Effect    `json:"effect"`
	Mutating bool      `json:"mutating"`        // a turn with such a call is not idle (docs/reference/loop.md, Loop detection)
	Status   bool      `json:"status"`          // only reads the agent's own state; many consecutive calls are a maintenance loop
	Spends   bool      `json:"spends"`          // requires a hold before it is executed
	Owner    api.Owner `json:"owner"`           // service that executes it
	Params   []Param   `json:"params,omitzero"` // nil: no parameters
}

// Tools returns all tools in the order of the catalogue. The caller may change the
// slice, but not the data that its elements refer to.
func Tools() []Tool { return slices.Clone(tools) }

// Names returns the names of all tools in the order of the catalogue.
func Names() []string {
	names := make([]string, len(tools))
	for i, t := range tools {
		names[i] = t.Name
	}
	return names
}

// ByName returns a new map of all tools by name.
func ByName() map[string]Tool { return maps.Clone(byName()) }

// Named returns the tool with a name, and whether it exists.
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

// Schema returns the JSON Schema of the tool's arguments, which is sent to models.
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
		panic(err) // schema has only strings, numbers and booleans
	}
	return text
}

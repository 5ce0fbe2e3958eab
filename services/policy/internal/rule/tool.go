package rule

import (
	"maps"
	"slices"
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

// The categories of the tools in the catalogue.
const (
	VM       Category = "vm"
	Conway   Category = "conway"
	Memory   Category = "memory"
	Survival Category = "survival"
)

// Tool is what rules need to know about a tool.
type Tool struct {
	Name     string   `json:"name"`
	Category Category `json:"category"`
	Risk     Risk     `json:"risk"`
	Params   []Param  `json:"params,omitempty"`
}

// Catalogue is the set of tools by name. What is not in it is denied.
type Catalogue map[string]Tool

// Tools returns the catalogue of the tools that exist, with the names, risks
// and parameters of spec-core-2 §3.
func Tools() Catalogue {
	c := Catalogue{}
	for _, t := range []Tool{
		{"exec", VM, Caution, []Param{
			// The limit keeps parsing far below a millisecond.
			{Name: "command", Type: Text, Required: true, MaxBytes: 32 << 10},
			{Name: "timeout", Type: Number, Min: bound(0)},
		}},
		{"write_file", VM, Caution, []Param{
			{Name: "path", Type: Text, Required: true, MaxBytes: maxPath},
			{Name: "content", Type: Text, Required: true, Empty: true, Binary: true},
		}},
		{"read_file", VM, Safe, []Param{
			{Name: "path", Type: Text, Required: true, MaxBytes: maxPath},
		}},
		{"check_credits", Conway, Safe, nil},
		{"sleep", Survival, Caution, []Param{
			{Name: "duration_seconds", Type: Number, Required: true, Min: bound(0)},
			{Name: "reason", Type: Text, Empty: true},
		}},
		{"remember_fact", Memory, Safe, []Param{
			{Name: "category", Type: Text, Required: true, OneOf: []string{
				"self", "environment", "financial", "agent", "domain", "procedural_ref", "creator",
			}}, // spec-core-4 §1
			{Name: "key", Type: Text, Required: true},
			{Name: "value", Type: Text, Required: true},
			{Name: "confidence", Type: Number, Min: bound(0), Max: bound(1)},
			{Name: "source", Type: Text, Empty: true},
		}},
		{"send_message", Conway, Caution, []Param{
			{Name: "to_address", Type: Text, Required: true},
			{Name: "content", Type: Text, Required: true, MaxBytes: 64_000}, // spec-core-2 §3.1
			{Name: "reply_to", Type: Text, Empty: true},
		}},
	} {
		c[t.Name] = t
	}
	return c
}

// maxPath is PATH_MAX of Linux, in bytes.
const maxPath = 4096

func bound(v float64) *float64 { return &v }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

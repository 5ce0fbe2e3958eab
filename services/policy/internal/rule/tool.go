package rule

import (
	"maps"
	"slices"

	"github.com/anima-run/anima/pkg/api/catalog"
)

// Catalogue is the set of tools by name. Other tools are denied, except those of MCP
// servers.
type Catalogue map[string]catalog.Tool

// Tools returns the catalogue of all tools that an agent may name. It includes tools that
// no executor implements.
func Tools() Catalogue { return catalog.ByName() }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

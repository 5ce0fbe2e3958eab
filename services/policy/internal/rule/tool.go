package rule

import (
	"maps"
	"slices"

	"github.com/anima-run/anima/pkg/api/catalog"
)

// Catalogue is the set of tools by name. What is not in it is denied.
type Catalogue map[string]catalog.Tool

// Tools returns the catalogue of everything that an agent may name. That a tool
// is judged does not say that somebody executes it.
func Tools() Catalogue { return catalog.ByName() }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

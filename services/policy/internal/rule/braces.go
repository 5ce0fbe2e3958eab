package rule

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// braces returns the parts of each word of a brace expansion.
func braces(parts []syntax.WordPart) [][]syntax.WordPart {
	w := &syntax.Word{Parts: parts}
	if !hasBrace(parts) || !syntax.SplitBraces(w) {
		return [][]syntax.WordPart{parts}
	}
	return combine(w.Parts)
}

func hasBrace(parts []syntax.WordPart) bool {
	return slices.ContainsFunc(parts, func(p syntax.WordPart) bool {
		lit, ok := p.(*syntax.Lit)
		return ok && strings.Contains(lit.Value, "{")
	})
}

// combine returns the product of brace expansions. If there are too many, or for a range,
// the expression remains one part, which expands to unknown.
func combine(parts []syntax.WordPart) [][]syntax.WordPart {
	out := [][]syntax.WordPart{nil}
	for _, p := range parts {
		b, ok := p.(*syntax.BraceExp)
		if !ok || b.Sequence {
			for i := range out {
				out[i] = append(out[i], p)
			}
			continue
		}
		var choices [][]syntax.WordPart
		for _, elem := range b.Elems {
			choices = append(choices, combine(elem.Parts)...)
			if len(choices)*len(out) > maxFields {
				return [][]syntax.WordPart{parts}
			}
		}
		grown := make([][]syntax.WordPart, 0, len(out)*len(choices))
		for _, head := range out {
			for _, c := range choices {
				grown = append(grown, slices.Concat(head, c))
			}
		}
		out = grown
	}
	return out
}

// Package untrusted makes text that others wrote fit to be shown to a model:
// normalised, then defused, then marked with its origin (design §6, spec-core-2
// §5). It is a second layer: it takes away what imitates the prompt's own
// structure or its author, and it cannot tell good advice from bad. It must not
// be used to decide whether something may happen; that is policy's.
package untrusted

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Clean normalises text: what is no UTF-8 becomes U+FFFD, invisible and control
// characters go, then compatibility forms are folded. In this order nothing
// invisible keeps apart what would have been folded together (W-53).
func Clean(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return (r < ' ' || r > '~') && r != '\n' && r != '\t' }) {
		return s // most text, in a fiftieth of the time
	}
	return norm.NFKC.String(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\u2028' || r == '\u2029': // ends a line for some readers
			return '\n'
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
}

// pattern is what is replaced, at every occurrence, by a mark that says what was
// there. A first group is kept before the mark, a second one after it. Text without
// needs, which is in lower case, has no occurrence: most text is that, and looking
// for it costs a hundredth.
type pattern struct {
	needs string
	find  *regexp.Regexp
	mark  string
}

func patterns(triples ...string) []pattern {
	var all []pattern
	for i := 0; i < len(triples); i += 3 {
		all = append(all, pattern{triples[i], regexp.MustCompile(triples[i+1]), "${1}[REMOVED:" + triples[i+2] + "]${2}"})
	}
	return all
}

// s is white space in the text of a pattern: RE2's own is ASCII alone.
const s = `[\s\p{Z}]`

var (
	// boundaries are what prompts are divided with, spec-core-2 §5.2.
	boundaries = patterns(
		"<", `()(?i)<\s*/?\s*(?:system|prompt)\s*>()`, "boundary",
		"inst", `()(?i)\[\s*/?\s*INST\s*\]()`, "boundary",
		"<<", `()(?i)<<\s*/?\s*SYS\s*>>()`, "boundary",
		"<|", `()(?i)<\|\s*(?:im_start|im_end|endoftext)\s*\|>()`, "chatml",
	)
	// instructions are what else must not come from a skill or a description,
	// spec-core-1 §2.6, V-37.
	instructions = append(patterns(
		`"name"`, `()(?i)\{\s*"name"\s*:\s*"[^"\n]*"\s*,\s*"(?:arguments|parameters|input)"\s*:()`, "tool-call",
		"tool_call", `()(?i)<\s*/?\s*tool_call\s*>()`, "tool-call",
		"_call", `()(?i)(?:tool|function)_calls?()`, "tool-call",
		"now", `()(?i)you`+s+`+are`+s+`+now()`, "identity",
		"ignore", `()(?i)ignore`+s+`+(?:all`+s+`+)?(?:previous|prior|above)()`, "override",
		"system:", `(^|[^A-Za-z0-9])(?i)system:(`+s+`)`, "role", // not the end of another word, such as filesystem
		"wallet.json", `()(?i)wallet\.json()`, "sensitive-file",
		".env", `(^|[^\w])(?i)(?:\.env)+\b()`, "sensitive-file",
		"private", `()(?i)private.?key()`, "secret",
	), boundaries...)
)

// passes bounds how often replacing may uncover something new.
const passes = 16

// Text makes an answer or a message harmless to the structure of a prompt: Clean,
// and marks in the place of boundary tags and ChatML (mode tool_result).
func Text(text string) string { return replaced(text, boundaries) }

// Instructions makes text harmless that the model is asked to follow or to choose
// by, such as a skill or a tool's description: Text, and marks in the place of
// what gives orders, imitates a tool call or names a secret (mode
// skill_instruction and V-37).
func Instructions(text string) string { return replaced(text, instructions) }

func replaced(text string, all []pattern) string {
	text = Clean(text)
	for range passes {
		before, lower := text, strings.ToLower(text)
		for _, p := range all {
			if strings.Contains(lower, p.needs) {
				text = p.find.ReplaceAllString(text, p.mark)
			}
		}
		if text == before {
			return text
		}
	}
	return "[REMOVED:text that does not come clean]"
}

// Quote renders text as data with its origin: a line in brackets, then the text
// with "> " before each line, so that no text can end the quotation. Neither is
// defused here.
func Quote(origin, text string) string {
	return "[" + strings.ReplaceAll(origin, "\n", " ") + "]\n> " + strings.ReplaceAll(text, "\n", "\n> ")
}

// Cut keeps the first n characters and says how many are missing; the note comes
// on top of n.
func Cut(text string, n int) string {
	count := utf8.RuneCountInString(text)
	if count <= n {
		return text
	}
	end := 0
	for range n {
		_, size := utf8.DecodeRuneInString(text[end:])
		end += size
	}
	return fmt.Sprintf("%s\n[%d more characters were cut]", text[:end], count-n)
}

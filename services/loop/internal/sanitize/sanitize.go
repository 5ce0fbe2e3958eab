// Package sanitize prepares text of other authors for a model: it normalises the text,
// defuses it, and marks it with its origin (docs/reference/context.md, Text sanitizing). It
// is a second line of defence: it removes what imitates the structure of a prompt or its
// author, and cannot tell good advice from bad. It must not be used to decide whether
// something may happen: policy decides that.
package sanitize

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Clean normalises text: it replaces invalid UTF-8 by U+FFFD, removes invisible and
// control characters, and then folds compatibility forms. In this order an invisible
// character cannot separate characters that would be folded together
// (docs/reference/context.md, hidden marker).
func Clean(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return (r < ' ' || r > '~') && r != '\n' && r != '\t' }) {
		return s // most texts need no more, in a fiftieth of the time
	}
	return norm.NFKC.String(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\u2028' || r == '\u2029': // a line end for some readers
			return '\n'
		case unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
}

// pattern is replaced at every occurrence by a mark that names it. A first group of find
// is kept before the mark, a second one after it. Lower-case text without needs has no
// occurrence; this check takes a hundredth of the time and is enough for most texts.
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

// s matches all Unicode white space; RE2's \s matches only ASCII.
const s = `[\s\p{Z}]`

var (
	// boundaries match the delimiters of prompts (docs/reference/context.md, Text
	// sanitizing).
	boundaries = patterns(
		"<", `()(?i)<\s*/?\s*(?:system|prompt)\s*>()`, "boundary",
		"inst", `()(?i)\[\s*/?\s*INST\s*\]()`, "boundary",
		"<<", `()(?i)<<\s*/?\s*SYS\s*>>()`, "boundary",
		"<|", `()(?i)<\|\s*(?:im_start|im_end|endoftext)\s*\|>()`, "chatml",
	)
	// instructions also match what must not be in a skill or a description
	// (docs/reference/context.md, Text sanitizing).
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

// passes is the largest number of passes, because a replacement may uncover a new match.
const passes = 16

// Text defuses an answer or a message, so that it cannot change the structure of a
// prompt: Clean, and marks in place of boundary tags and ChatML.
func Text(text string) string { return replaced(text, boundaries) }

// Instructions defuses text that the model is to follow or to choose by, such as a skill
// or a tool's description: Text, and marks in place of instructions, imitated tool calls
// and names of secrets.
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

// Quote renders text as data with its origin: a line in brackets, then the text with "> "
// before each line, so that the text cannot end the quotation. Neither is defused here.
func Quote(origin, text string) string {
	return "[" + strings.ReplaceAll(origin, "\n", " ") + "]\n> " + strings.ReplaceAll(text, "\n", "\n> ")
}

// First returns the first n characters of a text.
func First(text string, n int) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}

// Bytes returns the longest beginning of a text that has at most n bytes and ends at a
// character.
func Bytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n = max(n, 0); n > 0 && !utf8.RuneStart(s[n]); n-- {
	}
	return s[:n]
}

// Cut returns the first n characters and a note with the number of missing ones; the note
// is not included in n.
func Cut(text string, n int) string {
	first := First(text, n)
	if len(first) == len(text) {
		return text
	}
	return fmt.Sprintf("%s\n[%d more characters were cut]", first, utf8.RuneCountInString(text[len(first):]))
}

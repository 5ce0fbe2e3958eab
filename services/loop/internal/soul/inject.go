package soul

import (
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// space is what people and models read as one, which RE2's \s is not.
const space = `[\s\p{Z}]`

// orders are the words that no soul may hold (spec-core-2 §5.5): the marks that
// models use for who speaks, calls of tools, and the classic overrides.
var orders = regexp.MustCompile(strings.ReplaceAll(`(?i)`+
	`</?~*(system|prompt|user|assistant|tool_call|function_call)~*>`+
	`|\[/?~*(inst|system)~*\]|<<~*/?~*sys~*>>`+
	`|<\|[a-z_]{2,32}\|>`+
	`|"(tool_calls?|function_call)"~*:|\{~*"(name|tool)"~*:~*"[a-z_]+"~*,~*"(arguments|parameters)"`+
	`|\b(ignore|disregard)~+(all~+)?(the~+|your~+)?(previous|prior|above|earlier)\b`+
	`|\boverride~+(all~+)?(the~+|your~+)?(safety|polic|rules|instructions)`+
	`|\bbypass~+(all~+)?(the~+|your~+)?(restriction|safety|polic|rules)`+
	`|\bnew~+instructions?~*:`+
	`|\byour~+real~+instructions?~+(are|is)\b`+
	`|(^|\n)~*(system|assistant)~*:`, `~`, space))

// injected says whether a text holds such words, or characters that hide them.
func injected(s string) bool {
	hidden := strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point))
	})
	return hidden || orders.MatchString(norm.NFKC.String(s))
}

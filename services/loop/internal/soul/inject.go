package soul

import (
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// space matches all Unicode white space; RE2's \s matches only ASCII.
const space = `[\s\p{Z}]`

// orders matches texts that a soul must not contain (docs/reference/memory.md, Soul
// limits): the marks of roles in chat formats, tool calls, and common phrases of prompt
// injection.
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

// injected reports whether a text matches orders, or has characters that can hide them.
func injected(s string) bool {
	hidden := strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point))
	})
	return hidden || orders.MatchString(norm.NFKC.String(s))
}

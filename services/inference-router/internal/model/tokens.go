package model

import "github.com/anima-run/anima/pkg/api/chat"

// What a chat protocol adds around its texts, in tokens. OpenAI's documentation
// counts three to four for a message; a tool definition is rendered with some
// keywords of its own.
const (
	MessageTokens = 4
	ToolTokens    = 8
)

// Tokens estimates how many tokens a text is: a quarter of its ASCII bytes
// (spec V-18) plus half of all other bytes, rounded up. It takes linear time and
// leans to too many for prose in any script; it is an estimate, not a tokenizer,
// and dense input (base64, digits) can be more than it says.
func Tokens[T string | []byte](text T) int64 { return chat.Tokens(text) }

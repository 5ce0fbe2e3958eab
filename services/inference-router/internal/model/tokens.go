package model

import "github.com/anima-run/anima/pkg/api/chat"

// Tokens that a chat protocol adds to its texts. OpenAI's documentation counts three to
// four for a message; a tool definition is rendered with some keywords.
const (
	MessageTokens = 4
	ToolTokens    = 8
)

// Tokens estimates the number of tokens of a text: a quarter of its ASCII bytes plus half
// of all other bytes, rounded up (docs/reference/inference-router.md, Token estimate). It
// takes linear time and tends to overestimate prose in any script. It is not a tokenizer:
// dense input (base64, digits) can have more tokens than it returns.
func Tokens[T string | []byte](text T) int64 { return chat.Tokens(text) }

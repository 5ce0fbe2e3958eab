package model

// Tokens that a chat protocol adds to its texts. OpenAI's documentation counts three to
// four for a message; a tool definition is rendered with some keywords.
const (
	MessageTokens = 4
	ToolTokens    = 8
)

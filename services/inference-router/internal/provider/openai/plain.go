package openai

import (
	"slices"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// noToolsHere is what a model is told whose server takes no tool definitions.
const noToolsHere = "This model cannot call tools here. Answer in text. Lines in brackets below are calls made earlier and their results."

// plain is a prompt for a server that takes no tools: calls and results become
// text, so that the conversation is kept, and the model is told (docs/providers.md).
func plain(messages []provider.Message) []provider.Message {
	out := chat.Plain(messages)
	after := slices.IndexFunc(out, func(m provider.Message) bool { return m.Role != provider.System })
	if after < 0 {
		after = len(out)
	}
	return slices.Insert(out, after, provider.Message{Role: provider.System, Content: noToolsHere})
}

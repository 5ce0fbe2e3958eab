package openai

import (
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// noToolsHere is what a model is told whose server takes no tool definitions.
const noToolsHere = "This model cannot call tools here. Answer in text. Lines in brackets below are calls made earlier and their results."

// plain is a prompt for a server that takes no tools: calls and results become
// text, so that the conversation is kept, and the model is told (docs/providers.md).
func plain(messages []provider.Message) []provider.Message {
	out := make([]provider.Message, 0, len(messages)+1)
	names := map[string]string{} // of tools, by call
	told := false
	for _, m := range messages {
		if !told && m.Role != provider.System { // after the system text, which comes first
			out, told = append(out, provider.Message{Role: provider.System, Content: noToolsHere}), true
		}
		switch m.Role {
		case provider.Assistant:
			for _, c := range m.ToolCalls {
				names[c.ID] = c.Name
				m.Content = joined(m.Content, "[called "+c.Name+" with "+c.Arguments+"]")
			}
			m.ToolCalls = nil
		case provider.ToolRole:
			m = provider.Message{Role: provider.User, Content: "[result of " + names[m.ToolCallID] + "]\n" + m.Content}
		case provider.System, provider.User:
		}
		out = append(out, m)
	}
	return out
}

func joined(a, b string) string {
	if a == "" {
		return b
	}
	return a + "\n" + b
}

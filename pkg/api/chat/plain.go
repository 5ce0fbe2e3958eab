package chat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Plain returns a conversation in which calls and their results are text: [tool_call:ID]
// with the name and the arguments, and, as in seed 003, [tool_result:ID] with the text and the images. It is for servers without tools, and for
// a server that has refused the calls. The input is not changed.
func Plain(messages []api.ChatMessage) []api.ChatMessage {
	out := make([]api.ChatMessage, 0, len(messages))
	for _, m := range messages {
		switch {
		case m.Role == ToolRole:
			m = asUser(m, "[tool_result:"+cmp.Or(m.ToolCallID, "unknown")+"] ")
		case len(m.ToolCalls) > 0:
			lines := []string{m.Content}
			if m.Content == "" {
				lines = nil
			}
			for _, c := range m.ToolCalls {
				lines = append(lines, fmt.Sprintf("[tool_call:%s] %s %s", c.ID, c.Name, c.Arguments))
			}
			m = api.ChatMessage{Role: Assistant, Content: strings.Join(lines, "\n")}
		}
		out = append(out, m)
	}
	return out
}

// HasCalls reports whether messages have calls or results, which [Plain] changes.
func HasCalls(messages []api.ChatMessage) bool {
	return slices.ContainsFunc(messages, func(m api.ChatMessage) bool { return m.Role == ToolRole || len(m.ToolCalls) > 0 })
}

// alternate inserts the messages that strict servers require: the first message is of
// the user, the last one is of the user or a result, and a message of the user does not
// follow a result directly.
func alternate(messages []api.ChatMessage) []api.ChatMessage {
	out := make([]api.ChatMessage, 0, len(messages)+2)
	if len(messages) == 0 || messages[0].Role != User {
		out = append(out, api.ChatMessage{Role: User, Content: goesOn})
	}
	for i, m := range messages {
		if i > 0 && m.Role == User && messages[i-1].Role == ToolRole {
			out = append(out, api.ChatMessage{Role: Assistant, Content: turnEnds})
		}
		out = append(out, m)
	}
	if out[len(out)-1].Role == Assistant {
		out = append(out, api.ChatMessage{Role: User, Content: goesOn})
	}
	return out
}

package chat

import (
	"errors"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// ErrNoMessages is the error of an empty prompt.
var ErrNoMessages = errors.New("a prompt needs at least one message")

// Roles returns [ErrNoMessages] for an empty prompt, and an error for a message with an
// unknown role.
func Roles(messages []api.ChatMessage) error {
	if len(messages) == 0 {
		return ErrNoMessages
	}
	for i, m := range messages {
		switch m.Role {
		case System, User, Assistant, ToolRole:
		default:
			return fmt.Errorf("message %d: role %q is none of system, user, assistant, tool", i, m.Role)
		}
	}
	return nil
}

// Merge joins consecutive messages of the user, and those of the assistant, because
// some providers refuse them (docs/reference/inference-router.md, Messages). Texts are
// joined with a newline, tool calls are concatenated. System and tool messages stay
// separate. The input is not changed. The errors are those of [Roles].
func Merge(messages []api.ChatMessage) ([]api.ChatMessage, error) {
	if err := Roles(messages); err != nil {
		return nil, err
	}
	merged := make([]api.ChatMessage, 0, len(messages))
	for i := 0; i < len(messages); {
		m := messages[i]
		i++
		if m.Role == System || m.Role == ToolRole {
			merged = append(merged, m)
			continue
		}
		m.ToolCalls = slices.Clone(m.ToolCalls)
		if i < len(messages) && messages[i].Role == m.Role {
			var b Builder
			b.join(m)
			for ; i < len(messages) && messages[i].Role == m.Role; i++ {
				b.join(messages[i])
				m.ToolCalls = append(m.ToolCalls, messages[i].ToolCalls...)
			}
			b.Fill(&m)
		}
		merged = append(merged, m)
	}
	return merged, nil
}

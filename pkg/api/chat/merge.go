package chat

import (
	"errors"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// ErrNoMessages is the error of an empty prompt.
var ErrNoMessages = errors.New("a prompt needs at least one message")

// Roles refuses an empty prompt ([ErrNoMessages]) and a role that is none of the four.
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

// Merge joins consecutive messages of the same speaker, which some providers
// refuse: user with user and assistant with assistant, texts on their own lines,
// tool calls one after the other (spec 6.5). System and tool messages stay as
// they are. The input does not change. It refuses what [Roles] refuses.
func Merge(messages []api.ChatMessage) ([]api.ChatMessage, error) {
	if err := Roles(messages); err != nil {
		return nil, err
	}
	merged := make([]api.ChatMessage, 0, len(messages))
	for _, m := range messages {
		if m.Role == System || m.Role == ToolRole {
			merged = append(merged, m)
			continue
		}
		if len(merged) == 0 || merged[len(merged)-1].Role != m.Role {
			m.ToolCalls = slices.Clone(m.ToolCalls)
			merged = append(merged, m)
			continue
		}
		last := &merged[len(merged)-1]
		if last.Content != "" && m.Content != "" {
			last.Content += "\n"
		}
		last.Content += m.Content
		last.ToolCalls = append(last.ToolCalls, m.ToolCalls...)
	}
	return merged, nil
}

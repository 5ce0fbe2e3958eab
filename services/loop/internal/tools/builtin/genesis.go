package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

func updateGenesis(store Store) engine.Tool {
	return engine.Builtin("update_genesis_prompt", plainPrompt, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		prompt := sanitize.Clean(a.String("new_prompt"))
		if err := store.SetGenesis(ctx, c.Agent.ID, prompt, a.String("reason"), c.Key, c.At); err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: fmt.Sprintf("the genesis prompt has %d characters now and is used from the next run on; the old one is kept", utf8.RuneCountInString(prompt))}, nil
	})
}

// plainPrompt refuses a genesis prompt that contains markers of roles or tool calls
// (docs/reference/loop.md, Genesis prompt).
func plainPrompt(a catalog.Args) error {
	text := sanitize.Clean(a.String("new_prompt"))
	folded := strings.ToLower(text)
	for _, mark := range []string{
		"<system>", "</system>", "<prompt>", "</prompt>", "[inst]", "[/inst]", "<<sys>>", "<</sys>>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
		"tool_call", "function_call",
	} {
		if strings.Contains(folded, mark) {
			return fmt.Errorf("new_prompt contains %q, a mark of roles or tool calls", mark)
		}
	}
	if strings.TrimSpace(text) == "" {
		return errors.New("new_prompt is empty")
	}
	return nil
}

package treasury

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/executor"
)

// tools returns the tools that treasury offers to agents, by name.
func (h *handlers) tools() map[string]executor.Func {
	return map[string]executor.Func{"check_credits": h.checkCredits}
}

func (h *handlers) checkCredits(ctx context.Context, c executor.Call) (string, error) {
	b, err := h.getBalance(ctx, api.GetBalance{Agent: c.Agent})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("available %s, held %s, tier %s", b.Available, b.Held, b.Tier), nil
}

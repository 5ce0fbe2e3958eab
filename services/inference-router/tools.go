package router

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/executor"
)

// tools returns the tools that the router offers to agents, by name.
func (h *handlers) tools() map[string]executor.Func {
	return map[string]executor.Func{
		"list_models": h.toolModels, "check_inference_spending": h.toolSpending,
		"switch_model": h.toolSwitch, "enter_low_compute": h.toolLowCompute,
	}
}

func (h *handlers) toolModels(ctx context.Context, _ executor.Call) (string, error) {
	all, err := h.listModels(ctx, api.ListModels{})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("prices are for a million tokens, in and out:\n")
	others := 0
	for _, m := range all.Models {
		switch {
		case !h.models.configured(m.Provider):
			others++
			continue
		case m.PriceUnknown:
			fmt.Fprintf(&b, "%s: price unknown", m.ID)
		default:
			fmt.Fprintf(&b, "%s: %s, %s; %d tokens, %s and richer", m.ID, m.InputPrice, m.OutputPrice, m.ContextWindow, m.TierMinimum)
		}
		if !m.Usable {
			b.WriteString("; cannot be used: " + m.Why)
		}
		b.WriteByte('\n')
	}
	if others > 0 {
		fmt.Fprintf(&b, "%d more are of providers that are not configured\n", others)
	}
	return b.String(), nil
}

func (h *handlers) toolSpending(ctx context.Context, c executor.Call) (string, error) {
	days := c.Args.Int("days", 1)
	since := h.now().Add(-time.Duration(days) * 24 * time.Hour)
	all, err := h.store.Spent(ctx, c.Agent, c.Args.String("model"), since)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	var sum api.Micros
	for _, s := range all {
		fmt.Fprintf(&b, "%s: %s for %d calls, %d tokens in and %d out\n", s.Model, s.Cost, s.Calls, s.InputTokens, s.OutputTokens)
		sum += s.Cost
	}
	return fmt.Sprintf("%s in the last %d × 24 h\n%s", sum, days, b.String()), nil
}

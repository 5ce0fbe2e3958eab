package router

import (
	"context"
	"testing"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// TestResultAtTheDeadline checks that the end of a call's time is a failure of the provider
// only if no part of an answer was received: reasoning and calls are parts.
func TestResultAtTheDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		part provider.Response
		took time.Duration
		want health.Result
	}{
		"nothing":          {took: slowAnswer, want: health.Failed},
		"too little time":  {took: slowAnswer - 1, want: health.Unknown},
		"text":             {part: provider.Response{Text: "half"}, took: slowAnswer, want: health.Unknown},
		"reasoning":        {part: provider.Response{Reasoning: "let me see"}, took: slowAnswer, want: health.Unknown},
		"a call":           {part: provider.Response{ToolCalls: []provider.ToolCall{{ID: "c", Name: "write_file", Arguments: `{"text":"a lo`}}}, took: slowAnswer, want: health.Unknown},
		"usage of nothing": {part: provider.Response{Usage: provider.Usage{Input: 100}}, took: slowAnswer, want: health.Failed},
	} {
		if got, _ := resultOf(c.part, provider.CanceledError("p", context.DeadlineExceeded), c.took); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

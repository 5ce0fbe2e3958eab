package loop_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestApplyAgain tests that the same AGENT.md does not replace the schedule, which the
// agent may have changed, and that another one, or one that restores the agent, does.
func TestApplyAgain(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 1)
	scheduled := func(want ...int) {
		t.Helper()
		var got []int // numbers of entries
		p.set(func() {
			for _, m := range p.schedules {
				got = append(got, len(m.Beats))
			}
		})
		if !slices.Equal(got, want) {
			t.Errorf("schedules with %v entries were set, want %v", got, want)
		}
	}
	ask[api.Agent](t, b, api.ApplyAgent{Source: source})
	scheduled(0)
	other := strings.Replace(source, "---\nBe", "schedule:\n  - name: daily\n    cron: \"0 6 * * *\"\n---\nBe", 1)
	for range 2 {
		ask[api.Agent](t, b, api.ApplyAgent{Source: other})
	}
	scheduled(0, 1)
	ask[api.Deleted](t, b, api.DeleteAgent{Agent: "lucky", Force: true})
	ask[api.Agent](t, b, api.ApplyAgent{Source: other})
	scheduled(0, 1, 0, 1)
}

package loop_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
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
	scheduled(0, 0) // before and after the definition is stored
	other := strings.Replace(source, "---\nBe", "schedule:\n  - name: daily\n    cron: \"0 6 * * *\"\n---\nBe", 1)
	for range 2 {
		ask[api.Agent](t, b, api.ApplyAgent{Source: other})
	}
	scheduled(0, 0, 1, 1)
	listed := func(state api.AgentState, want ...api.Beat) {
		t.Helper()
		all := ask[api.Schedules](t, b, api.ListSchedules{}).Agents
		if len(all) != 1 || all[0].State.Agent != "lucky" || all[0].State.State != state || all[0].State.Seq == 0 || !slices.Equal(all[0].Beats, want) {
			t.Errorf("listed: %+v, want lucky %s with %+v", all, state, want)
		}
	}
	daily := api.Beat{Name: "daily", Cron: "0 6 * * *"}
	listed(api.StateSleeping, daily)
	ask[api.Deleted](t, b, api.DeleteAgent{Agent: "lucky", Force: true})
	listed(api.StateDead)
	ask[api.Agent](t, b, api.ApplyAgent{Source: other})
	scheduled(0, 0, 1, 1, 0, 1, 1)
	listed(api.StateSleeping, daily)
}

// TestAppliedAtOnce tests that the schedule is that of the stored definition after two
// creators have applied the agent at the same time, and after one has deleted it while the
// other applied it.
func TestAppliedAtOnce(t *testing.T) {
	t.Parallel()
	p, b, _ := alive(t, 2)
	daily := func(name string) string {
		return strings.Replace(source, "---\nBe", "schedule:\n  - name: "+name+"\n    cron: \"0 6 * * *\"\n---\nBe", 1)
	}
	// during makes the other request while loop sets the first schedule of a request.
	during := func(other func(store func())) {
		var once sync.Once
		p.set(func() {
			p.sets = func(_ context.Context, _ api.SetSchedule, store func()) {
				first := false
				once.Do(func() { first = true })
				if !first {
					store()
					return
				}
				other(store)
			}
		})
	}
	apply := func(name string) {
		if _, err := bus.Call[api.Agent](t.Context(), b, api.ApplyAgent{Source: daily(name)}); err != nil {
			t.Error(err)
		}
	}
	want := func(when, name string) {
		t.Helper()
		p.set(func() {
			last := p.schedules[len(p.schedules)-1]
			if len(last.Beats) != 1 || last.Beats[0].Name != name {
				t.Errorf("%s: the schedule is %+v, want that of the stored definition, %s", when, last.Beats, name)
			}
		})
	}
	during(func(store func()) {
		store()
		apply("second")
	})
	apply("first")
	want("applied by two", "first")
	during(func(store func()) {
		apply("third")
		store()
	})
	ask[api.Deleted](t, b, api.DeleteAgent{Agent: "lucky", Force: true})
	want("applied during the deletion", "third")
}

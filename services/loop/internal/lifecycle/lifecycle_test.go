package lifecycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/lifecycle"
)

var states = []api.AgentState{
	api.StateSetup, api.StateWaking, api.StateRunning, api.StateSleeping, api.StateLow, api.StateCritical, api.StateDead,
}

// TestAllowed checks all pairs of states: a pair that is not listed is refused.
func TestAllowed(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, pair := range strings.Fields(`setup>waking setup>sleeping setup>dead
		waking>running waking>low_compute waking>critical waking>sleeping waking>dead
		running>low_compute running>critical running>sleeping running>dead
		low_compute>running low_compute>critical low_compute>sleeping low_compute>dead
		critical>running critical>low_compute critical>waking critical>sleeping critical>dead
		sleeping>waking sleeping>sleeping sleeping>dead dead>sleeping`) {
		want[pair] = true
	}
	got := map[string]bool{}
	for _, from := range states {
		for _, to := range states {
			if lifecycle.Allowed(from, to) {
				got[fmt.Sprintf("%s>%s", from, to)] = true
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestStateAt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tier      api.Tier
		was, want api.AgentState
	}{
		{api.TierHigh, api.StateLow, api.StateRunning},
		{api.TierNormal, api.StateWaking, api.StateRunning},
		{api.TierLow, api.StateRunning, api.StateLow},
		{api.TierCritical, api.StateRunning, api.StateCritical},
		{api.TierDead, api.StateRunning, api.StateCritical}, // only treasury makes an agent dead
		{api.TierUnknown, api.StateWaking, api.StateRunning},
		{api.TierUnknown, api.StateLow, api.StateLow},
		{api.TierUnknown, api.StateCritical, api.StateCritical},
	} {
		if got := lifecycle.StateAt(tt.tier, tt.was); got != tt.want {
			t.Errorf("%q after %s: %s, want %s", tt.tier, tt.was, got, tt.want)
		}
	}
}

// turnOf makes a turn with tools of the catalogue: "exec+sleep" has two calls, "" has
// none, and a leading "!" adds an input of another principal.
func turnOf(t *testing.T, s string) lifecycle.Turn {
	t.Helper()
	var out lifecycle.Turn
	s, out.Asked = strings.TrimPrefix(s, "!"), strings.HasPrefix(s, "!")
	for name := range strings.SplitSeq(s, "+") {
		if name == "" {
			continue
		}
		name, blocked := strings.CutSuffix(name, ":blocked")
		tool, ok := catalog.Named(name)
		if !ok {
			t.Fatalf("there is no tool %s", name)
		}
		out.Calls = append(out.Calls, lifecycle.Call{
			Tool: name, Mutating: tool.Mutating, Status: tool.Status,
			Blocked: blocked, Created: name == "create_goal" && !blocked,
		})
	}
	return out
}

func times(n int, turn string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = turn
	}
	return out
}

// TestObserve checks the vectors V-20 and V-21 and the rules of docs/reference/loop.md,
// Loop detection. A notice is "n", a forced sleep its duration in seconds.
func TestObserve(t *testing.T) {
	t.Parallel()
	join := func(parts ...[]string) []string {
		var out []string
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for _, tt := range []struct {
		name  string
		turns []string
		want  string // of each turn; ".": no consequence
	}{
		{"V-20: exec x3", times(3, "exec"), "..n"},
		{"V-20: exec x6", times(6, "exec"), "..n..(60)"},
		{"a row begins anew after a forced sleep", times(9, "exec"), "..n..(60)..n"},
		{"V-20: two warnings, no enforcement", join(times(3, "exec"), []string{"send_message"}, times(3, "exec")), "..n...n"},
		{"V-20: three status tools", []string{"check_credits", "system_synopsis", "review_memory"}, "..n"},
		{"V-20: three other status tools", []string{"check_credits", "check_usdc_balance", "git_status"}, "..n"},
		{"V-20: one that works between", []string{"check_credits", "exec", "system_synopsis"}, "..."},
		{"V-20: discover_agents x3 repeats and is no maintenance", times(4, "discover_agents"), "..n."},
		{"maintenance forces at six", []string{"check_credits", "git_status", "check_credits", "git_log", "check_credits", "git_status"}, "..n..(60)"},
		{"words neither add to a row nor break it", []string{"exec", "", "exec", "", "exec"}, "....n"},
		{"the order of names does not matter", []string{"exec+read_file", "read_file+exec", "exec+read_file"}, "..n"},
		{"ten idle turns", times(10, ""), ".........(60)"},
		{"reading is idle, too", join([]string{"read_file", "git_diff"}, times(8, "")), ".........(60)"},
		{"a request adds a row", join(times(9, ""), []string{"!"}, times(9, "")), "..................."},
		{"a request a run with the same tool is no loop", join(times(7, "!exec")), "......."},
		{"V-21: blocked", times(5, "create_goal:blocked"), "(120)(240)(480)(600)(600)"},
		{"V-21: a created goal resets", []string{"create_goal:blocked", "create_goal:blocked", "create_goal", "create_goal:blocked"}, "(120)(240).(120)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var c api.Counters
			var got strings.Builder
			for _, s := range tt.turns {
				var v lifecycle.Verdict
				c, v = lifecycle.Observe(c, turnOf(t, s))
				switch {
				case v.Why != "":
					fmt.Fprintf(&got, "(%.0f)", v.For.Seconds())
				case v.Notice != "":
					got.WriteString("n")
				default:
					got.WriteString(".")
				}
			}
			if got.String() != tt.want {
				t.Errorf("got %s, want %s; counters %+v", got.String(), tt.want, c)
			}
		})
	}
}

func TestFailed(t *testing.T) {
	t.Parallel()
	var c api.Counters
	for n := 1; n <= 11; n++ {
		var v lifecycle.Verdict
		c, v = lifecycle.Failed(c)
		if rests := n%5 == 0; rests != (v.For == 300*time.Second) || rests != (v.Why != "") {
			t.Errorf("after %d failures: %+v", n, v)
		}
	}
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{0: 2 * time.Minute, 1: 2 * time.Minute, 3: 8 * time.Minute, 4: 10 * time.Minute, 1 << 40: 10 * time.Minute} {
		if got := lifecycle.Blocked(n); got != want {
			t.Errorf("blocked %d times: %v, want %v", n, got, want)
		}
	}
}

package goal_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
)

// TestHealth checks the vectors V-36 (docs/reference/goals.md, Test vectors).
func TestHealth(t *testing.T) {
	t.Parallel()
	const now = at
	ago := func(d time.Duration) int64 { return now - d.Microseconds() }
	well := goal.Worker{Status: "running", Seen: now, Balance: api.Dollar}
	with := func(f func(*goal.Worker)) goal.Worker { w := well; f(&w); return w }
	done := func(failed, completed int, ended int64) []goal.Task {
		out := slices.Repeat([]goal.Task{{Status: api.TaskFailed, EndedAt: ended}}, failed)
		return append(out, slices.Repeat([]goal.Task{{Status: api.TaskCompleted, EndedAt: ended}}, completed)...)
	}
	running := func(timeout int64, since int64) []goal.Task {
		return []goal.Task{{Status: api.TaskRunning, TimeoutMS: timeout, StartedAt: since}}
	}
	for _, tt := range []struct {
		name     string
		w        goal.Worker
		signals  string
		remedies string
		fund     api.Micros
	}{
		{"well", well, "", "", 0},
		{"9 cents", with(func(w *goal.Worker) { w.Balance = 9 * api.Cent }), "out_of_credits", "fund", 241 * api.Cent},
		{"10 cents", with(func(w *goal.Worker) { w.Balance = 10 * api.Cent }), "", "", 0},
		{"in debt", with(func(w *goal.Worker) { w.Balance = -api.Dollar }), "out_of_credits", "fund", 350 * api.Cent},
		{"unknown is not poor", with(func(w *goal.Worker) { w.Balance, w.Unknown = 0, true }), "", "", 0},
		{"3 of 5 failed", with(func(w *goal.Worker) { w.Tasks = done(3, 2, now) }), "error_loop", "stop", 0},
		{"5 of 9 failed", with(func(w *goal.Worker) { w.Tasks = done(5, 4, now) }), "", "", 0},
		{"2 of 2 failed", with(func(w *goal.Worker) { w.Tasks = done(2, 0, now) }), "", "", 0},
		{"3 of 3 failed yesterday", with(func(w *goal.Worker) { w.Tasks = done(3, 0, ago(24*time.Hour)) }), "error_loop", "stop", 0},
		{"3 yesterday, 3 good ones today", with(func(w *goal.Worker) { w.Tasks = append(done(3, 0, ago(24*time.Hour)), done(0, 3, now)...) }), "", "", 0},
		{"an error loop is not funded", with(func(w *goal.Worker) { w.Tasks, w.Balance = done(3, 0, now), 0 }), "out_of_credits error_loop", "stop", 0},
		{"dead", with(func(w *goal.Worker) { w.Status = "dead" }), "process_crashed", "restart", 0},
		{"failed", with(func(w *goal.Worker) { w.Status = "failed" }), "process_crashed", "restart", 0},
		{"stopped", with(func(w *goal.Worker) { w.Status = "stopped" }), "process_crashed", "restart", 0},
		{"unknown", with(func(w *goal.Worker) { w.Status = "unknown" }), "process_crashed", "restart", 0},
		{"never seen", with(func(w *goal.Worker) { w.Silent = true }), "heartbeat_missing", "restart", 0},
		{"silent for 45 min", with(func(w *goal.Worker) { w.Seen = ago(45 * time.Minute) }), "process_crashed", "restart", 0},
		{"silent for 15 min at work", with(func(w *goal.Worker) { w.Seen, w.Tasks = ago(15*time.Minute), running(1, ago(time.Minute)) }), "stuck_on_task", "reassign", 0},
		{"silent for 15 min, idle", with(func(w *goal.Worker) { w.Seen = ago(15 * time.Minute) }), "", "", 0},
		{"17 min on a short task", with(func(w *goal.Worker) { w.Tasks = running(1000, ago(17*time.Minute)) }), "", "", 0},
		{"more", with(func(w *goal.Worker) { w.Tasks = running(1000, ago(17*time.Minute)-1) }), "stuck_on_task", "reassign", 0},
		{"62 min on one of an hour", with(func(w *goal.Worker) { w.Tasks = running(3_600_000, ago(62*time.Minute)) }), "", "", 0},
		{"more of it", with(func(w *goal.Worker) { w.Tasks = running(3_600_000, ago(62*time.Minute)-1) }), "stuck_on_task", "reassign", 0},
		{"dead and poor", with(func(w *goal.Worker) { w.Status, w.Balance = "dead", 0 }), "process_crashed out_of_credits", "restart fund", 250 * api.Cent},
	} {
		signals := goal.Diagnose(tt.w, now)
		remedies, fund := goal.Heal(tt.w, signals)
		if got := strings.Trim(fmt.Sprint(signals), "[]"); got != tt.signals {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.signals)
		}
		if got := strings.Trim(fmt.Sprint(remedies), "[]"); got != tt.remedies || fund != tt.fund {
			t.Errorf("%s: %s with %s, want %s with %s", tt.name, got, fund, tt.remedies, tt.fund)
		}
	}
}

// TestTodo checks the list of goals (docs/reference/goals.md, To-do list).
func TestTodo(t *testing.T) {
	t.Parallel()
	if got := goal.Todo([]goal.State{{Goal: goal.Goal{Status: api.GoalFailed}}}); got != "" {
		t.Errorf("no active goal: %q", got)
	}
	s := do(t, executing(t, draft("A", "B\n# not a heading", "C>1")), 1)
	s, _ = begin(t, s, 2)
	want := `# Goals that are worked on beside you

## A book (` + s.ID + `, executing)
budget $0.30, spent $0.000015
- [x] A: completed by ada
- [~] B # not a heading: running, ada
- [ ] C: blocked
`
	if got := goal.Todo([]goal.State{s}); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}

	// Above 2,000 tokens the oldest goals are left out, except the last one.
	long := func(id string) goal.State {
		g := goal.State{Goal: goal.Goal{ID: id, Title: id, Status: api.GoalActive, Steps: 5, Version: 1}, Plans: []goal.Plan{{Version: 1, Status: api.PlanApproved}}}
		g.Tasks = slices.Repeat([]goal.Task{{Version: 1, Title: strings.Repeat("t", 100), Status: api.TaskPending}}, 30)
		return g
	}
	got := goal.Todo([]goal.State{long("oldest"), long("middle"), long("newest")})
	if strings.Contains(got, "oldest") || !strings.Contains(got, "middle") || !strings.Contains(got, "newest") || len(got) > 8000 {
		t.Errorf("%d bytes:\n%.300s", len(got), got)
	}
	huge := long("one")
	huge.Tasks = slices.Repeat(huge.Tasks, 10)
	if got := goal.Todo([]goal.State{long("old"), huge}); !strings.Contains(got, "## one") || strings.Contains(got, "## old") {
		t.Errorf("one goal alone:\n%.300s", got)
	}
}

// lister is a store with fixed goals.
type lister struct {
	goal.Store
	goals []goal.State
}

func (l lister) Goals(context.Context, goal.Query) ([]goal.State, error) { return l.goals, nil }

func TestSource(t *testing.T) {
	t.Parallel()
	older, newer := executing(t, draft("A")), executing(t, draft("A"))
	older.Title, newer.Title = "older", "newer"
	l, err := (&goal.Source{Store: lister{goals: []goal.State{newer, older}}}).Layer(t.Context(), engine.Agent{ID: "ada"})
	if err != nil || l.Name != "todo" || !l.Last || strings.Index(l.Text, "older") > strings.Index(l.Text, "newer") {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	s := do(t, executing(t, draft("A", "B>0", "C>1")), 1)
	want := s.ID + ` "A book": executing, 1 of 3 tasks completed, 1 running, 1 blocked, spent $0.000015`
	if got := goal.Status(&s); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

package goal_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/goal"
)

const at = 1_790_000_000_000_000

// later returns the time n seconds after the start.
func later(n int) int64 { return at + int64(n)*1_000_000 }

// fresh returns a new goal.
func fresh() goal.State {
	return goal.State{Goal: goal.Goal{
		ID: goal.NewID("k"), Agent: "ada", Title: "A book", Description: "Write a book.", Status: api.GoalActive,
		By: api.Principal{Kind: api.Creator}, Limit: goal.DefaultLimit, Seq: 1, CreatedAt: at, UpdatedAt: at,
	}}
}

// draft returns a plan of tasks "A", "B>0" (B after the first), "C>0,1" …
func draft(tasks ...string) goal.Draft {
	d := goal.Draft{Analysis: "a", Strategy: "s", Roles: []goal.Role{}, Risks: []string{}}
	for _, t := range tasks {
		title, after, _ := strings.Cut(t, ">")
		x := goal.DraftTask{Title: title, Description: "do " + title, Role: "generalist", Dependencies: []int{}, Cents: 10, Priority: 50, TimeoutMS: 1000}
		for ref := range strings.SplitSeq(after, ",") {
			var n int
			if _, err := fmt.Sscan(ref, &n); err == nil {
				x.Dependencies = append(x.Dependencies, n)
			}
		}
		d.Tasks = append(d.Tasks, x)
	}
	return d
}

// change applies a change and fails the test if it is refused.
func change(t *testing.T, s goal.State, f func(*goal.State) error) (goal.State, goal.Effects) {
	t.Helper()
	out, e, err := goal.Apply(s, s.UpdatedAt+1, f)
	if err != nil {
		t.Fatal(err)
	}
	return out, e
}

// executing returns a goal with an approved plan.
func executing(t *testing.T, d goal.Draft) goal.State {
	t.Helper()
	s, _ := change(t, fresh(), func(s *goal.State) error { return s.Classified(5, 7) })
	s, _ = change(t, s, func(s *goal.State) error { return s.Propose(0, "planner", d, 8, at) })
	s, _ = change(t, s, func(s *goal.State) error { return s.Approve(1, "d1", at) })
	return s
}

// statuses returns the statuses of the last plan's tasks.
func statuses(s goal.State) string {
	var out []string
	for _, t := range s.Tasks {
		if t.Version == s.Version {
			out = append(out, string(t.Status))
		}
	}
	return strings.Join(out, " ")
}

// number returns the n-th task of the last plan, from 1.
func number(s goal.State, n int) goal.Task {
	i := slices.IndexFunc(s.Tasks, func(t goal.Task) bool { return t.Version == s.Version && t.Number == n })
	return s.Tasks[i]
}

// begin claims the n-th task's attempt and returns its run.
func begin(t *testing.T, s goal.State, n int) (goal.State, string) {
	t.Helper()
	x := number(s, n)
	s, _ = change(t, s, func(s *goal.State) error { return s.Claim(x.ID, x.Attempt, s.UpdatedAt) })
	return s, number(s, n).Lease
}

// do completes the n-th task.
func do(t *testing.T, s goal.State, n int) goal.State {
	t.Helper()
	s, run := begin(t, s, n)
	s, _ = change(t, s, func(s *goal.State) error { return s.Complete(run, "done", "", s.UpdatedAt) })
	return s
}

// lose fails the n-th task permanently.
func lose(t *testing.T, s goal.State, n int) goal.State {
	t.Helper()
	s, run := begin(t, s, n)
	s, _ = change(t, s, func(s *goal.State) error { return s.FailTask(run, "BROKEN", "it broke", false, s.UpdatedAt) })
	return s
}

func subjects(e goal.Effects) []string {
	var out []string
	for _, m := range e.Messages {
		out = append(out, m.M.Subject().Name)
	}
	return out
}

// TestChain checks the vectors V-32 (docs/reference/goals.md, Test vectors). The change
// that makes a task ready also queues it.
func TestChain(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A", "B>0", "C>1"))
	for _, tt := range []struct{ before, after string }{
		{"assigned blocked blocked", "completed assigned blocked"},
		{"completed assigned blocked", "completed completed assigned"},
		{"completed completed assigned", "completed completed completed"},
	} {
		if got := statuses(s); got != tt.before {
			t.Errorf("got %s, want %s", got, tt.before)
		}
		s = do(t, s, strings.Count(statuses(s), "completed")+1)
		if got := statuses(s); got != tt.after {
			t.Errorf("got %s, want %s", got, tt.after)
		}
	}
	if s.Status != api.GoalCompleted || s.Phase() != api.PhaseComplete || s.EndedAt == 0 {
		t.Errorf("the goal is %s, phase %s, ended %d", s.Status, s.Phase(), s.EndedAt)
	}

	s = executing(t, draft("A", "B>0"))
	s.Replans = goal.MaxReplans
	s = lose(t, s, 1)
	if s.Status != api.GoalFailed || !strings.Contains(s.Reason, "A: BROKEN: it broke") {
		t.Errorf("A failed for good: the goal is %s because %q", s.Status, s.Reason)
	}
}

// TestReadinessOrder checks the vectors V-31 (docs/reference/goals.md, Test vectors):
// tasks are queued by priority and then by number.
func TestReadinessOrder(t *testing.T) {
	t.Parallel()
	d := draft("low", "high", "mid", "high too")
	for i, p := range []int{10, 90, 50, 90} {
		d.Tasks[i].Priority = p
	}
	s, _ := change(t, fresh(), func(s *goal.State) error { return s.Classified(5, 0) })
	s, _ = change(t, s, func(s *goal.State) error { return s.Propose(0, "planner", d, 0, at) })
	_, e := change(t, s, func(s *goal.State) error { return s.Approve(1, "d", at) })
	// The queue has room for all of them, so the order shows only if some must wait.
	var tasks int
	for _, m := range e.Messages {
		if _, ok := m.M.(api.DoTask); ok {
			tasks++
		}
	}
	if tasks != 4 {
		t.Errorf("%d tasks in the queue, want 4", tasks)
	}
	many := goal.Draft{Analysis: "a", Strategy: "s"}
	for i := range 12 {
		many.Tasks = append(many.Tasks, goal.DraftTask{Title: fmt.Sprint(i), Description: "d", Role: "r", Priority: 10 * i, TimeoutMS: 1})
	}
	s = executing(t, many)
	if got, want := statuses(s), strings.Repeat("pending ", 2)+strings.TrimSpace(strings.Repeat("assigned ", 10)); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	s = do(t, s, 12)
	if got := number(s, 2).Status; got != api.TaskAssigned {
		t.Errorf("the next by priority is %s", got)
	}
	if got := number(s, 1).Status; got != api.TaskPending {
		t.Errorf("the last by priority is %s", got)
	}
}

// TestRetries checks the vectors V-31 (docs/reference/goals.md, Test vectors): retries
// are counted, and the last failure blocks dependent tasks.
func TestRetries(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A", "B>0"))
	for retry := 1; retry <= 3; retry++ {
		var run string
		s, run = begin(t, s, 1)
		s, _ = change(t, s, func(s *goal.State) error { return s.FailTask(run, "X", "no", true, s.UpdatedAt) })
		a := number(s, 1)
		if a.Status != api.TaskAssigned || a.Retries != retry || a.Attempt != retry+1 || a.Deadline != 0 {
			t.Errorf("after failure %d: %+v", retry, a)
		}
	}
	var run string
	s, run = begin(t, s, 1)
	s, _ = change(t, s, func(s *goal.State) error { return s.FailTask(run, "X", "no", true, s.UpdatedAt) })
	if got := statuses(s); got != "failed blocked" || s.Phase() != api.PhaseReplanning {
		t.Errorf("after the last: %s in phase %s", got, s.Phase())
	}
	if e := number(s, 1).Error; e != "X: no" {
		t.Errorf("error %q", e)
	}
}

// TestProgress checks the vectors V-31 (docs/reference/goals.md, Test vectors): the six
// statuses are counted.
func TestProgress(t *testing.T) {
	t.Parallel()
	s := goal.State{Goal: goal.Goal{Version: 1}}
	for _, status := range []api.TaskStatus{api.TaskPending, api.TaskAssigned, api.TaskRunning, api.TaskCompleted, api.TaskFailed, api.TaskBlocked} {
		s.Tasks = append(s.Tasks, goal.Task{Version: 1, Status: status})
	}
	s.Tasks = append(s.Tasks, goal.Task{Version: 0, Status: api.TaskFailed}) // of an earlier plan
	want := goal.Progress{Total: 6, Completed: 1, Failed: 1, Blocked: 1, Running: 2, Pending: 1}
	if diff := cmp.Diff(want, s.Progress()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestResultsAreMatched checks that a result is accepted only from the run that holds the
// task, and once (docs/reference/goals.md, late result).
func TestResultsAreMatched(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A"))
	a := number(s, 1)
	refused := func(what string, s goal.State, f func(*goal.State) error) {
		t.Helper()
		got, e, err := goal.Apply(s, later(9), f)
		if api.CodeOf(err) != api.Conflict || len(e.Messages) > 0 || !cmp.Equal(got, s) {
			t.Errorf("%s: %v, %d messages, want a conflict and no change", what, err, len(e.Messages))
		}
	}
	refused("claim of an attempt to come", s, func(s *goal.State) error { return s.Claim(a.ID, 2, at) })
	refused("claim of no task", s, func(s *goal.State) error { return s.Claim("x", 1, at) })
	s, run := begin(t, s, 1)
	refused("claim twice", s, func(s *goal.State) error { return s.Claim(a.ID, 1, at) })
	refused("a stranger's result", s, func(s *goal.State) error { return s.Complete("other", "x", "", at) })
	s, _ = change(t, s, func(s *goal.State) error { return s.FailTask(run, "X", "no", true, at) })
	refused("a result after its attempt", s, func(s *goal.State) error { return s.Complete(run, "x", "", at) })
	s, second := begin(t, s, 1)
	refused("a late result of the first", s, func(s *goal.State) error { return s.Complete(run, "x", "", at) })
	s, _ = change(t, s, func(s *goal.State) error { return s.Complete(second, "x", "", at) })
	refused("twice the result", s, func(s *goal.State) error { return s.Complete(second, "x", "", at) })
	refused("a failure after the result", s, func(s *goal.State) error { return s.FailTask(second, "X", "no", true, at) })
	refused("a cancel after the end", s, func(s *goal.State) error { return s.Cancel("", at) })
}

// TestExpire checks that an expired attempt is retried, and that its run is a stray until
// it is cancelled.
func TestExpire(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A"))
	s, run := begin(t, s, 1)
	due := number(s, 1).Deadline
	if same, e := change(t, s, func(s *goal.State) error { s.Expire(due); return nil }); len(e.Messages) > 0 || same.Seq != s.Seq {
		t.Errorf("at the deadline: %v", subjects(e))
	}
	s, e := change(t, s, func(s *goal.State) error { s.Expire(due + 1); return nil })
	if a := number(s, 1); a.Status != api.TaskAssigned || a.Attempt != 2 || !strings.HasPrefix(a.Error, "TIMEOUT") {
		t.Errorf("after it: %+v", a)
	}
	if got, want := subjects(e), []string{"task_changed", "task", "goal_changed"}; !slices.Equal(got, want) {
		t.Errorf("said %v, want %v", got, want)
	}
	if strays := s.Strays(); len(strays) != 1 || strays[0].Run != run {
		t.Errorf("strays %+v", strays)
	}
	s, _ = change(t, s, func(s *goal.State) error { s.Stopped([]string{run, "other"}, at); return nil })
	if len(s.Strays()) != 0 {
		t.Errorf("strays %+v", s.Strays())
	}
	s, _ = change(t, s, func(s *goal.State) error { return s.Ended(run, 500, at) })
	if s.Spent() != 515 {
		t.Errorf("spent %d, want what the lost attempt cost, and planning", s.Spent())
	}
	if _, _, err := goal.Apply(s, at, func(s *goal.State) error { return s.Ended(run, 500, at) }); api.CodeOf(err) != api.Conflict {
		t.Errorf("an end that comes twice: %v", err)
	}
}

// TestCostCapOfARun checks that the cost cap of an attempt's run is the rest of the
// amount after which the task is not retried (docs/reference/goals.md, ignored plan
// values). A task without an estimate has no cap.
func TestCostCapOfARun(t *testing.T) {
	t.Parallel()
	const estimate = 10 * api.Cent
	capOf := func(s goal.State, attempt int) api.Micros {
		t.Helper()
		_, e := change(t, s, func(s *goal.State) error { return s.Claim(number(*s, 1).ID, attempt, at) })
		i := slices.IndexFunc(e.Messages, func(m goal.Message) bool { return m.M.Subject().Name == "run" })
		if i < 0 {
			return -1
		}
		cmd, _ := e.Messages[i].M.(api.Run)
		return cmd.CostCap
	}
	for _, tt := range []struct {
		spent, left api.Micros // by the first attempt; cap of the second, -1: there is none
	}{{0, estimate*3/2 + 1}, {estimate, estimate/2 + 1}, {estimate * 3 / 2, 1}, {estimate*3/2 + 1, -1}} {
		s := executing(t, draft("A"))
		if got, want := capOf(s, 1), estimate*3/2+1; got != want {
			t.Errorf("the first attempt may cost %s, want %s", got, want)
		}
		s, run := begin(t, s, 1)
		s, _ = change(t, s, func(s *goal.State) error { s.Expire(number(*s, 1).Deadline + 1); return nil })
		s, _ = change(t, s, func(s *goal.State) error { return s.Ended(run, tt.spent, at) }) // after the next attempt was queued
		if got := capOf(s, 2); got != tt.left {
			t.Errorf("after %s the second attempt may cost %s, want %s", tt.spent, got, tt.left)
		}
		s, _ = change(t, s, func(s *goal.State) error { return s.Claim(number(*s, 1).ID, 2, at) })
		if a := number(s, 1); tt.left < 0 && (a.Status != api.TaskFailed || !strings.HasPrefix(a.Error, "COST_CAP: ") || s.Phase() != api.PhaseReplanning) {
			t.Errorf("after %s: %+v in %s, want failed for good", tt.spent, a, s.Phase())
		}
	}
	free := draft("A")
	free.Tasks[0].Cents = 0
	if got := capOf(executing(t, free), 1); got != 0 {
		t.Errorf("without an estimate it may cost %s, want no cap", got)
	}
}

// TestClaimSendsTheRun checks that a claim publishes the run on the task's session, with
// the agent or the goal's principal, whichever has less authority.
func TestClaimSendsTheRun(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		by   api.Principal
		want api.PrincipalKind
	}{{api.Principal{Kind: api.Creator}, api.Self}, {api.Principal{Kind: api.HeartbeatKind}, api.HeartbeatKind}, {api.Principal{Kind: api.Peer, Address: "0x1"}, api.Peer}} {
		s := executing(t, draft("A", "B>0"))
		s.By = tt.by
		s, run := begin(t, s, 1)
		s, _ = change(t, s, func(s *goal.State) error { return s.Complete(run, "forty-two\n## Task", "", at) })
		b := number(s, 2)
		_, e := change(t, s, func(s *goal.State) error { return s.Claim(b.ID, 1, at) })
		if got, want := subjects(e), []string{"task_changed", "run"}; !slices.Equal(got, want) {
			t.Fatalf("sent %v, want %v", got, want)
		}
		cmd, _ := e.Messages[1].M.(api.Run)
		if cmd.Session != "ada-task-"+b.ID || cmd.Kind != api.RunTask || cmd.By.Kind != tt.want || cmd.Agent != "ada" || cmd.AcceptedAt == 0 {
			t.Errorf("run %+v", cmd)
		}
		for _, want := range []string{"> do B", "> Write a book.", "> forty-two\n> ## Task", `task_id "` + b.ID + `"`} {
			if !strings.Contains(cmd.Content, want) {
				t.Errorf("the brief lacks %q:\n%s", want, cmd.Content)
			}
		}
		if !slices.Equal(e.Sessions, [][2]string{{cmd.Session, "ada"}}) {
			t.Errorf("sessions %v", e.Sessions)
		}
	}
}

// TestBriefIsBounded checks that a brief fits into a message, whatever the length of the
// results before it.
func TestBriefIsBounded(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A", "B", "C", "D", "E", "F>0,1,2,3,4"))
	for n := 1; n <= 5; n++ {
		var run string
		s, run = begin(t, s, n)
		s, _ = change(t, s, func(s *goal.State) error { return s.Complete(run, strings.Repeat("é\n", 20_000), "", at) })
	}
	f := number(s, 6)
	_, e := change(t, s, func(s *goal.State) error { return s.Claim(f.ID, 1, at) })
	cmd, _ := e.Messages[1].M.(api.Run)
	if n := len(cmd.Content); n > api.MaxMessageBytes || n < 20_000 || !strings.Contains(cmd.Content, "Result of "+f.Dependencies[0]) {
		t.Errorf("the brief has %d bytes", n)
	}
}

// TestPhases checks the vectors V-33 (docs/reference/goals.md, Test vectors): the phases
// in the order in which they follow each other.
func TestPhases(t *testing.T) {
	t.Parallel()
	var got []string
	say := func(s goal.State, e goal.Effects) goal.State {
		for _, m := range e.Messages {
			if c, ok := m.M.(api.GoalChanged); ok {
				if c.Phase != s.Phase() {
					t.Errorf("said %s in phase %s", c.Phase, s.Phase())
				}
				got = append(got, string(c.Phase))
			}
		}
		return s
	}
	s := fresh()
	if s.Phase() != api.PhaseClassifying {
		t.Errorf("a new goal is in phase %s", s.Phase())
	}
	step := func(f func(*goal.State) error) { s = say(change(t, s, f)) }
	step(func(s *goal.State) error { return s.Classified(4, 0) })
	step(func(s *goal.State) error { return s.Propose(0, "planner", draft("A"), 0, at) })
	step(func(s *goal.State) error { return s.Approve(1, "d", at) })
	for version := 1; version <= 4; version++ {
		x := number(s, 1)
		step(func(s *goal.State) error { return s.Claim(x.ID, 1, at) })
		run := number(s, 1).Lease
		step(func(s *goal.State) error { return s.FailTask(run, "X", "no", false, at) })
		if version < 4 {
			step(func(s *goal.State) error { return s.Propose(version, "planner", draft("A"), 0, at) })
			step(func(s *goal.State) error { return s.Approve(version+1, "d", at) })
		}
	}
	again := []string{"replanning", "plan_review", "executing"}
	want := slices.Concat([]string{"planning", "plan_review", "executing"}, again, again, again, []string{"failed"}) // the 4th failure
	// A phase is announced again while it has strays.
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestFewSteps checks the vectors V-33 (docs/reference/goals.md, Test vectors): a goal of
// few steps needs no planner.
func TestFewSteps(t *testing.T) {
	t.Parallel()
	for steps, planned := range map[int]bool{-3: false, 1: false, 3: false, 4: true, 99: true} {
		s, _ := change(t, fresh(), func(s *goal.State) error { return s.Classified(steps, 0) })
		if s.Planned() != planned || s.Steps < 1 || s.Steps > 20 {
			t.Errorf("%d steps: planned %t, %d kept", steps, s.Planned(), s.Steps)
		}
	}
}

// TestCancel checks that a goal that is cancelled in any phase ends at once, with its
// open tasks (docs/reference/goals.md, cancelled goal).
func TestCancel(t *testing.T) {
	t.Parallel()
	classified, _ := change(t, fresh(), func(s *goal.State) error { return s.Classified(5, 0) })
	proposed, _ := change(t, classified, func(s *goal.State) error { return s.Propose(0, "planner", draft("A", "B>0"), 0, at) })
	held, _ := change(t, proposed, func(s *goal.State) error { return s.Hold(1, "d", "too dear") })
	running, run := begin(t, executing(t, draft("A", "B>0")), 1)
	for phase, s := range map[api.GoalPhase]goal.State{
		api.PhaseClassifying: fresh(), api.PhasePlanning: classified, api.PhaseReview: proposed, "waiting": held,
		"queued": executing(t, draft("A", "B>0")), api.PhaseExecuting: running, api.PhaseReplanning: lose(t, executing(t, draft("A", "B>0")), 1),
	} {
		s, e := change(t, s, func(s *goal.State) error { return s.Cancel("no more", at) })
		if s.Phase() != api.PhaseCancelled || s.Reason != "no more" || s.EndedAt != at {
			t.Errorf("%s: %+v", phase, s.Goal)
		}
		for _, x := range s.Tasks {
			if x.Status != api.TaskCancelled && x.Status != api.TaskFailed {
				t.Errorf("%s: task %s is %s", phase, x.ID, x.Status)
			}
		}
		if !slices.Contains(subjects(e), "goal_changed") || slices.Contains(subjects(e), "task") {
			t.Errorf("%s: said %v", phase, subjects(e))
		}
		if phase == api.PhaseExecuting && (len(s.Strays()) != 1 || s.Strays()[0].Run != run) {
			t.Errorf("strays %+v", s.Strays())
		}
		for what, f := range map[string]func(*goal.State) error{
			"classify": func(s *goal.State) error { return s.Classified(1, 0) },
			"propose":  func(s *goal.State) error { return s.Propose(s.Version, "planner", draft("A"), 0, at) },
			"approve":  func(s *goal.State) error { return s.Approve(1, "d", at) },
			"claim":    func(s *goal.State) error { return s.Claim(goal.NewID("k")+"-1-1", 1, at) },
			"complete": func(s *goal.State) error { return s.Complete(run, "x", "", at) },
		} {
			if _, _, err := goal.Apply(s, at, f); api.CodeOf(err) != api.Conflict {
				t.Errorf("%s, then %s: %v, want conflict", phase, what, err)
			}
		}
	}
}

// TestReplan checks that a new plan closes the previous one in the same change, and that
// rejected plans are limited in number (docs/reference/goals.md, old plan).
func TestReplan(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A", "B", "C>0"))
	s, run := begin(t, s, 2)
	s = lose(t, s, 1)
	if _, _, err := goal.Apply(s, at, func(s *goal.State) error { return s.Propose(0, "planner", draft("D"), 0, at) }); api.CodeOf(err) != api.Conflict {
		t.Errorf("a plan in place of another version: %v", err)
	}
	s, e := change(t, s, func(s *goal.State) error { return s.Propose(1, "planner", draft("D"), 0, at) })
	var closed []api.TaskStatus
	for _, x := range s.Tasks {
		closed = append(closed, x.Status)
	}
	if want := []api.TaskStatus{api.TaskFailed, api.TaskCancelled, api.TaskCancelled}; !slices.Equal(closed, want) {
		t.Errorf("tasks before: %v, want %v", closed, want)
	}
	if len(s.Strays()) != 2 || s.Replans != 1 || s.Version != 2 || s.Phase() != api.PhaseReview {
		t.Errorf("strays %+v of %s, state %+v", s.Strays(), run, s.Goal)
	}
	if !slices.Contains(subjects(e), "goal_changed") {
		t.Errorf("said %v", subjects(e))
	}
	for version := 2; version <= 4; version++ {
		if s, _ = change(t, s, func(s *goal.State) error { return s.Reject(version, "not so", at) }); version < 4 {
			if s.Phase() != api.PhasePlanning {
				t.Fatalf("version %d rejected: %s", version, s.Phase())
			}
			s, _ = change(t, s, func(s *goal.State) error { return s.Propose(version, "planner", draft("D"), 0, at) })
		}
	}
	if s.Phase() != api.PhaseFailed || s.Replans != goal.MaxReplans {
		t.Errorf("the last plan rejected: %s after %d", s.Phase(), s.Replans)
	}
}

// TestBudgetBreach checks that a plan whose cost exceeds 1.5 times its estimate is
// replaced while a task is open.
func TestBudgetBreach(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A", "B>0")) // 20 cents
	s, run := begin(t, s, 1)
	s, _ = change(t, s, func(s *goal.State) error { return s.Complete(run, "x", "", at) })
	at30, _ := change(t, s, func(s *goal.State) error { return s.Ended(run, 30*api.Cent, at) })
	above, e := change(t, s, func(s *goal.State) error { return s.Ended(run, 30*api.Cent+1, at) })
	if at30.Phase() != api.PhaseExecuting || above.Phase() != api.PhaseReplanning || !slices.Contains(subjects(e), "goal_changed") {
		t.Errorf("at 1.5 times %s, above %s, said %v", at30.Phase(), above.Phase(), subjects(e))
	}
	last := executing(t, draft("A"))
	last, run = begin(t, last, 1)
	last, _ = change(t, last, func(s *goal.State) error {
		if err := s.Ended(run, api.Dollar, at); err != nil {
			return err
		}
		return s.Complete(run, "x", "", at)
	})
	if last.Phase() != api.PhaseComplete {
		t.Errorf("nothing is left to save: %s", last.Phase())
	}
}

// TestCostCap checks that a task which has reached its cost cap is not retried.
func TestCostCap(t *testing.T) {
	t.Parallel()
	s := executing(t, draft("A", "B", "C")) // 10 cents each
	s, run := begin(t, s, 1)
	s, _ = change(t, s, func(s *goal.State) error {
		if err := s.Ended(run, 15*api.Cent+1, at); err != nil {
			return err
		}
		return s.FailTask(run, "X", "no", true, at)
	})
	if x := number(s, 1); x.Status != api.TaskFailed || x.Retries != 0 {
		t.Errorf("%+v", x)
	}
}

// legal are the transitions of the phase (docs/reference/goals.md, Phases): a rejected
// plan returns to planning, few steps need no planner, and a goal can be cancelled in any
// phase.
var legal = map[api.GoalPhase][]api.GoalPhase{
	api.PhaseClassifying: {api.PhasePlanning, api.PhaseReview},
	api.PhasePlanning:    {api.PhaseReview},
	api.PhaseReview:      {api.PhaseExecuting, api.PhasePlanning},
	api.PhaseExecuting:   {api.PhaseReplanning, api.PhaseComplete},
	api.PhaseReplanning:  {api.PhaseReview, api.PhaseExecuting}, // a breach without open tasks requires no replan
}

// TestRandomLives applies random changes and checks that the phase follows legal
// transitions (V-34 in docs/reference/goals.md, Test vectors), that the number of replans
// is bounded, and that no run is published twice.
func TestRandomLives(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		s, runs := fresh(), []string{"nobody"}
		pick := func() string { return runs[r.IntN(len(runs))] }
		for n := range 400 {
			was := s.Phase()
			next, e, err := goal.Apply(s, later(n), func(s *goal.State) error {
				v := max(0, s.Version-r.IntN(2))
				switch r.IntN(11) {
				case 0:
					return s.Classified(r.IntN(8), 1)
				case 1:
					return s.Propose(v, "planner", draft("A", "B", "C>0,1", "D>2"), 1, later(n))
				case 2:
					return s.Approve(v, "d", later(n))
				case 3:
					return s.Hold(v, "d", "why")
				case 4:
					if r.IntN(4) > 0 {
						return nil
					}
					return s.Reject(v, "no", later(n))
				case 5, 6:
					if len(s.Tasks) == 0 {
						return nil
					}
					x := s.Tasks[r.IntN(len(s.Tasks))]
					return s.Claim(x.ID, x.Attempt, later(n))
				case 7:
					return s.Complete(pick(), "ok", "", later(n))
				case 8:
					return s.FailTask(pick(), "X", "no", r.IntN(3) > 0, later(n))
				case 9:
					return s.Ended(pick(), api.Micros(r.IntN(5))*api.Cent, later(n))
				}
				s.Expire(later(n))
				return nil
			})
			if err != nil {
				if api.CodeOf(err) != api.Conflict {
					t.Fatalf("seed %d: %v", seed, err)
				}
				continue
			}
			is := next.Phase()
			if was != is && is != api.PhaseFailed && is != api.PhaseCancelled && !slices.Contains(legal[was], is) {
				t.Fatalf("seed %d: from %s to %s", seed, was, is)
			}
			ids := map[string]bool{}
			for _, m := range e.Messages {
				if ids[m.ID] {
					t.Fatalf("seed %d: %s is said twice", seed, m.ID)
				}
				ids[m.ID] = true
				if cmd, ok := m.M.(api.Run); ok {
					if slices.Contains(runs, cmd.Run) {
						t.Fatalf("seed %d: run %s is sent twice", seed, cmd.Run)
					}
					runs = append(runs, cmd.Run)
				}
			}
			s = next
		}
		if s.Replans > goal.MaxReplans {
			t.Fatalf("seed %d: %d replans", seed, s.Replans)
		}
	}
}

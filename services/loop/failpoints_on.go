//go:build failpoint

package loop

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
)

// addFailpoints adds a failpoint to each tool and to each durable write of a goal. No
// begin is recorded before the first turn: that depends on timing, and each run of a
// crash test must pass the same points. With [failpoint.NoExpectedSequence] a run
// continues after its lease is lost, because it would otherwise depend on timing whether
// the previous owner writes.
func addFailpoints(h *handlers) {
	for name, t := range h.engine.Tools {
		run := t.Run
		t.Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
			return failpoint.Value(ctx, failpoint.LoopTool, func(ctx context.Context) (engine.Output, error) { return run(ctx, c) })
		}
		h.engine.Tools[name] = t
	}
	h.engine.Begun = func(context.Context, api.Run, engine.Input, api.Tier, int64) (func(), error) { return func() {}, nil }
	h.goals.orchestrator.Store = failpointGoalStore{h.goals.orchestrator.Store}
	h.locks.KeepStale = failpoint.Broken(failpoint.NoExpectedSequence)
}

// failpointGoalStore is a goal.Store with a failpoint at each durable write.
type failpointGoalStore struct{ goal.Store }

func (s failpointGoalStore) CreateGoal(ctx context.Context, n goal.New, at int64) (g goal.State, refused goal.Refusal, err error) {
	err = failpoint.Do(ctx, failpoint.LoopGoalCreate, func(ctx context.Context) (err error) { g, refused, err = s.Store.CreateGoal(ctx, n, at); return err })
	return g, refused, err
}

// ChangeGoal applies the change to a copy first, to select the failpoint.
func (s failpointGoalStore) ChangeGoal(ctx context.Context, id string, at int64, change func(*goal.State) error) (goal.State, error) {
	take := func(ctx context.Context) (goal.State, error) { return s.Store.ChangeGoal(ctx, id, at, change) }
	before, err := s.Goal(ctx, id)
	if err != nil {
		return take(ctx)
	}
	after, _, err := goal.Apply(before, at, change)
	if p, ok := pointOfGoal(before, after); ok && err == nil {
		return failpoint.Value(ctx, p, take)
	}
	return take(ctx)
}

// pointOfGoal returns the failpoint of a change of a goal; ok is false if it has none.
func pointOfGoal(before, after goal.State) (p failpoint.Point, ok bool) {
	more := func(n func(goal.State) int) int { return n(after) - n(before) }
	waiting := more(func(s goal.State) int {
		return count(s.Plans, func(p goal.Plan) bool { return p.Status == api.PlanWaiting })
	})
	tasks := func(status api.TaskStatus) int {
		return more(func(s goal.State) int { return count(s.Tasks, func(t goal.Task) bool { return t.Status == status }) })
	}
	switch {
	case before.Status != after.Status && after.Status == api.GoalCancelled:
		return failpoint.LoopGoalCancel, true
	case before.Steps != after.Steps:
		return failpoint.LoopGoalClassify, true
	case len(before.Plans) < len(after.Plans) && before.Version == 0:
		return failpoint.LoopGoalPlan, true
	case len(before.Plans) < len(after.Plans):
		return failpoint.LoopGoalReplan, true
	case waiting > 0:
		return failpoint.LoopGoalHold, true
	case waiting < 0:
		return failpoint.LoopGoalReview, true
	case len(before.Tasks) < len(after.Tasks):
		return failpoint.LoopGoalApprove, true
	case len(before.Attempts) < len(after.Attempts):
		return failpoint.LoopTaskStart, true
	case more(func(s goal.State) int { return count(s.Attempts, func(a goal.Attempt) bool { return a.EndedAt != 0 }) }) > 0:
		return failpoint.LoopTaskEnd, true
	case more(func(s goal.State) int {
		return count(s.Attempts, func(a goal.Attempt) bool { return a.StoppedAt != 0 })
	}) > 0:
		return failpoint.LoopGoalStop, true
	case tasks(api.TaskCompleted) > 0:
		return failpoint.LoopTaskComplete, true
	case tasks(api.TaskRunning) < 0: // by its deadline; the cases above cover all other ends of an attempt
		return failpoint.LoopTaskExpire, true
	}
	return p, false
}

func count[T any](all []T, is func(T) bool) (n int) {
	for _, v := range all {
		if is(v) {
			n++
		}
	}
	return n
}

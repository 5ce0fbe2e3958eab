//go:build failpoint

package loop

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
)

// addFailpoints adds a failpoint to each durable write and each tool of e. No begin is
// recorded before the first turn: that depends on timing, and each run of a crash test
// must pass the same points.
func addFailpoints(e *engine.Engine) {
	e.Store = failpointStore{e.Store}
	for name, t := range e.Tools {
		run := t.Run
		t.Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
			return failpoint.Value(ctx, failpoint.LoopTool, func(ctx context.Context) (engine.Output, error) { return run(ctx, c) })
		}
		e.Tools[name] = t
	}
	e.Begun = func(api.Run, engine.Input, api.Tier, int64) func() { return func() {} }
}

// addGoalFailpoints adds a failpoint to each durable write of o.
func addGoalFailpoints(o *goal.Orchestrator) { o.Store = failpointGoalStore{o.Store} }

// keepsStaleRun reports whether a run continues after its lease is lost. With
// [failpoint.NoExpectedSequence] it does: whether the previous owner writes would
// otherwise depend on timing.
func keepsStaleRun() bool { return failpoint.Broken(failpoint.NoExpectedSequence) }

// failpointStore is an engine.Store with a failpoint at each durable write.
type failpointStore struct{ engine.Store }

func (s failpointStore) Drop(ctx context.Context, end engine.End) (engine.End, error) {
	return failpoint.Value(ctx, failpoint.LoopDrop, func(ctx context.Context) (engine.End, error) { return s.Store.Drop(ctx, end) })
}

func (s failpointStore) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	if len(merged) == 0 {
		return s.Store.Merge(ctx, into, merged, at) // no write
	}
	return failpoint.Do(ctx, failpoint.LoopMerge, func(ctx context.Context) error { return s.Store.Merge(ctx, into, merged, at) })
}

func (s failpointStore) Persist(ctx context.Context, rec *engine.Record, input engine.Input, end *engine.End) error {
	return failpoint.Do(ctx, failpoint.LoopPersist, func(ctx context.Context) error { return s.Store.Persist(ctx, rec, input, end) })
}

// failpointGoalStore is a goal.Store with a failpoint at each durable write.
type failpointGoalStore struct{ goal.Store }

type made struct {
	goal    goal.State
	refused goal.Refusal
}

func (s failpointGoalStore) CreateGoal(ctx context.Context, n goal.New, at int64) (goal.State, goal.Refusal, error) {
	m, err := failpoint.Value(ctx, failpoint.LoopGoalCreate, func(ctx context.Context) (m made, err error) {
		m.goal, m.refused, err = s.Store.CreateGoal(ctx, n, at)
		return m, err
	})
	return m.goal, m.refused, err
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
	was, is := tallyOf(before), tallyOf(after)
	switch {
	case before.Status != after.Status && after.Status == api.GoalCancelled:
		return failpoint.LoopGoalCancel, true
	case before.Steps != after.Steps:
		return failpoint.LoopGoalClassify, true
	case len(before.Plans) < len(after.Plans) && before.Version == 0:
		return failpoint.LoopGoalPlan, true
	case len(before.Plans) < len(after.Plans):
		return failpoint.LoopGoalReplan, true
	case was.waiting < is.waiting:
		return failpoint.LoopGoalHold, true
	case was.waiting > is.waiting:
		return failpoint.LoopGoalReview, true
	case len(before.Tasks) < len(after.Tasks):
		return failpoint.LoopGoalApprove, true
	case len(before.Attempts) < len(after.Attempts):
		return failpoint.LoopTaskStart, true
	case was.ended < is.ended:
		return failpoint.LoopTaskEnd, true
	case was.stopped < is.stopped:
		return failpoint.LoopGoalStop, true
	case was.completed < is.completed:
		return failpoint.LoopTaskComplete, true
	case was.running > is.running: // by its deadline; the cases above cover all other ends of an attempt
		return failpoint.LoopTaskExpire, true
	}
	return p, false
}

// tally holds the counts of a goal that a step changes.
type tally struct {
	waiting            int // plans that wait for the creator's approval
	running, completed int // tasks
	ended, stopped     int // attempts
}

func tallyOf(s goal.State) (n tally) {
	for _, p := range s.Plans {
		if p.Status == api.PlanWaiting {
			n.waiting++
		}
	}
	for _, t := range s.Tasks {
		switch t.Status {
		case api.TaskRunning:
			n.running++
		case api.TaskCompleted:
			n.completed++
		case api.TaskPending, api.TaskBlocked, api.TaskAssigned, api.TaskFailed, api.TaskCancelled:
		}
	}
	for _, a := range s.Attempts {
		if a.EndedAt != 0 {
			n.ended++
		}
		if a.StoppedAt != 0 {
			n.stopped++
		}
	}
	return n
}

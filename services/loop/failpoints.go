package loop

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
)

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
	if !failpoint.Enabled {
		return take(ctx)
	}
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

// effects adds a failpoint to the execution of each tool.
func effects(tools map[string]engine.Tool) map[string]engine.Tool {
	if !failpoint.Enabled {
		return tools
	}
	for name, t := range tools {
		run := t.Run
		t.Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
			return failpoint.Value(ctx, failpoint.LoopTool, func(ctx context.Context) (engine.Output, error) { return run(ctx, c) })
		}
		tools[name] = t
	}
	return tools
}

// pointOf returns the failpoint of the append of a journal entry.
func pointOf(s engine.Step) failpoint.Point {
	switch {
	case s.Begin != nil:
		return failpoint.LoopBegin
	case s.Joined != nil:
		return failpoint.LoopJoined
	case s.Completion != nil:
		return failpoint.LoopThought
	case s.Intent != nil:
		return failpoint.LoopIntent
	case s.End != nil:
		return failpoint.LoopEnd
	case s.Release:
		return failpoint.LoopRelease
	}
	return failpoint.LoopResult
}

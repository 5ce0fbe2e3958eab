package goal

import (
	"github.com/anima-run/anima/pkg/api"
)

// Claim begins a queued attempt: its run holds the task until the deadline.
func (s *State) Claim(task string, number int, at int64) error {
	t := s.task(task)
	if s.Status != api.GoalActive || t == nil || t.Status != api.TaskAssigned || t.Attempt != number {
		return stale("attempt %d at task %s is out of date", number, task)
	}
	if s.overBudget(t) { // a run whose deadline passed may have ended, with its cost, after this attempt was queued
		s.failed(t, reasonCode(api.ReasonCostCap)+": it has cost "+s.SpentOn(t.ID).String()+" before this attempt", false, at)
		return nil
	}
	t.Status, t.Lease, t.Deadline = api.TaskRunning, runOf(t.ID, number), at+t.TimeoutMS*1000
	if t.StartedAt == 0 {
		t.StartedAt = at
	}
	s.Attempts = append(s.Attempts, Attempt{Run: t.Lease, Task: t.ID, Number: number, StartedAt: at})
	return nil
}

// held returns the task that a run holds. Only that run may end it
// (docs/reference/goals.md, foreign result).
func (s *State) held(run string) (*Task, error) {
	for i := range s.Tasks {
		if t := &s.Tasks[i]; t.Lease == run && t.Status == api.TaskRunning {
			return t, nil
		}
	}
	return nil, stale("run %s holds no task of goal %s", run, s.ID)
}

// Complete completes the task that a run holds.
func (s *State) Complete(run, result, artifacts string, at int64) error {
	t, err := s.held(run)
	if err != nil {
		return err
	}
	t.Status, t.Result, t.Artifacts, t.Error = api.TaskCompleted, result, artifacts, ""
	t.Deadline, t.EndedAt = 0, at
	return nil
}

// FailTask ends the attempt of a run without a result. With retry the task is retried
// while it has retries left; otherwise it fails permanently.
func (s *State) FailTask(run, code, text string, retry bool, at int64) error {
	t, err := s.held(run)
	if err != nil {
		return err
	}
	s.failed(t, code+": "+text, retry, at)
	return nil
}

func (s *State) failed(t *Task, why string, retry bool, at int64) {
	t.Deadline, t.Error = 0, why
	if retry && t.Retries < t.MaxRetries && !s.overBudget(t) {
		t.Retries++
		t.Status = s.open(t)
		return
	}
	t.Status, t.EndedAt = api.TaskFailed, at
	for _, d := range s.current() {
		for _, id := range d.Dependencies {
			if id == t.ID && !final(d.Status) {
				d.Status, d.Deadline = api.TaskBlocked, 0
			}
		}
	}
}

// overBudget reports whether a task has reached the cost at which it is not retried.
func (s *State) overBudget(t *Task) bool { return t.Estimate > 0 && s.left(t) == 0 }

// left returns the cost at which a task's next run ends: the least amount that breaches
// the task's estimate, without what was spent. It is 0 if nothing is left, and also for a
// task without an estimate, which has no limit.
func (s *State) left(t *Task) api.Micros {
	if t.Estimate <= 0 {
		return 0
	}
	return max(0, 3*t.Estimate/2+1-s.SpentOn(t.ID))
}

// Ended records the end of a run and its cost, once. Its effect on the task is a separate
// change.
func (s *State) Ended(run string, cost api.Micros, at int64) error {
	a := s.attempt(run)
	if a == nil || a.EndedAt != 0 {
		return stale("run %s has ended before", run)
	}
	a.EndedAt, a.Cost = at, cost
	return nil
}

// Stopped records that the runs of strays were cancelled.
func (s *State) Stopped(runs []string, at int64) {
	for _, run := range runs {
		if a := s.attempt(run); a != nil && a.StoppedAt == 0 {
			a.StoppedAt = at
		}
	}
}

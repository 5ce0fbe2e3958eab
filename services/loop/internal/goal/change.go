package goal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// The changes of a goal. Each checks the state first: a duplicate, late or early change
// is refused with Conflict and changes nothing (docs/reference/goals.md, late result).

// stale returns the error of a change that does not apply to the goal's state.
func stale(format string, args ...any) error { return api.Errorf(api.Conflict, format, args...) }

func (s *State) in(phases ...api.GoalPhase) error {
	if at := s.Phase(); !slices.Contains(phases, at) {
		return stale("goal %s is in phase %s", s.ID, at)
	}
	return nil
}

// Classified records the estimated number of steps and the cost of the estimate.
func (s *State) Classified(steps int, cost api.Micros) error {
	if err := s.in(api.PhaseClassifying); err != nil {
		return err
	}
	s.Steps, s.Overhead = min(max(steps, 1), maxSteps), s.Overhead+cost
	return nil
}

// Planned reports whether the goal needs the planner: a goal of a few steps is one task,
// unless its first plan failed.
func (s *State) Planned() bool { return s.Steps > manySteps || s.Version > 0 }

// Propose adds a plan after version last and cancels the open tasks of that version, in
// one change (docs/reference/goals.md, old plan).
func (s *State) Propose(last int, source string, d Draft, cost api.Micros, at int64) error {
	if err := s.in(api.PhasePlanning, api.PhaseReplanning); err != nil {
		return err
	}
	if s.Version != last {
		return stale("goal %s has version %d of its plan already", s.ID, s.Version)
	}
	for _, t := range s.current() {
		s.close(t, "REPLANNED: another plan took its place", at)
	}
	if last > 0 {
		s.Replans++
	}
	s.Version++
	s.Overhead += cost
	s.Reason = ""
	s.Plans = append(s.Plans, Plan{Version: s.Version, Status: api.PlanProposed, Source: source, Draft: d, Cost: d.Total(), At: at})
	return nil
}

// close cancels a task unless it has ended.
func (s *State) close(t *Task, why string, at int64) {
	if final(t.Status) {
		return
	}
	t.Status, t.Error, t.Deadline, t.EndedAt = api.TaskCancelled, why, 0, at
}

// Approve approves the plan under review and creates its tasks.
func (s *State) Approve(version int, decision string, at int64) error {
	p, err := s.reviewed(version)
	if err != nil {
		return err
	}
	tasks, err := Decompose(s.ID, s.Agent, version, p.Draft.Specs(), at)
	if err != nil {
		return err
	}
	p.Status, p.Feedback, p.Decision = api.PlanApproved, "", cmp.Or(decision, p.Decision)
	s.Reason = ""
	s.Tasks = append(s.Tasks, tasks...)
	return nil
}

// Hold makes the plan wait for the creator's decision.
func (s *State) Hold(version int, decision, why string) error {
	p, err := s.reviewed(version)
	if err != nil {
		return err
	}
	if p.Status == api.PlanWaiting {
		return stale("version %d waits already", version)
	}
	p.Status, p.Decision, p.Feedback, s.Reason = api.PlanWaiting, decision, why, why
	return nil
}

// Reject rejects the plan under review, with feedback for the planner. It counts as a
// replacement: the goal fails if there was none left.
func (s *State) Reject(version int, feedback string, at int64) error {
	p, err := s.reviewed(version)
	if err != nil {
		return err
	}
	p.Status, p.Feedback, s.Reason = api.PlanRejected, feedback, "the plan was rejected: "+feedback
	if s.Replans >= MaxReplans {
		return s.Fail("the last plan was rejected: "+feedback, at)
	}
	return nil
}

func (s *State) reviewed(version int) (*Plan, error) {
	if err := s.in(api.PhaseReview); err != nil {
		return nil, err
	}
	if p := s.plan(); p.Version == version {
		return p, nil
	}
	return nil, stale("goal %s has version %d of its plan", s.ID, s.Version)
}

// isReviewed reports whether a version of the plan was approved, or rejected with this
// feedback.
func (s *State) isReviewed(version int, approve bool, feedback string) bool {
	return slices.ContainsFunc(s.Plans, func(p Plan) bool {
		switch {
		case p.Version != version:
			return false
		case approve:
			return p.Status == api.PlanApproved
		}
		return p.Status == api.PlanRejected && p.Feedback == feedback
	})
}

// Expire ends the attempts whose deadline has passed. Their runs become strays.
func (s *State) Expire(at int64) {
	for i := range s.Tasks {
		if t := &s.Tasks[i]; t.Status == api.TaskRunning && t.Deadline < at {
			s.failed(t, fmt.Sprintf("TIMEOUT: no result within %d s", t.TimeoutMS/1000), true, at)
		}
	}
}

// Cancel cancels the goal, in any phase.
func (s *State) Cancel(why string, at int64) error {
	return s.end(api.GoalCancelled, cmp.Or(why, "cancelled"), at)
}

// question returns the id of the model call that may have been made last: the estimate of
// the steps, or the next version of the plan.
func (s *State) question() string {
	if s.Steps == 0 {
		return classifyID(s.ID)
	}
	return planID(s.ID, s.Version+1)
}

// AddLateCost adds the cost of a model call that ended after the goal was cancelled. A plan
// that came too late counts as a rejected version.
func (s *State) AddLateCost(question string, cost api.Micros, at int64) error {
	if s.Status != api.GoalCancelled || question != s.question() {
		return stale("goal %s is %s and waits for no answer to %s", s.ID, s.Status, question)
	}
	s.Overhead += cost
	if s.Steps == 0 {
		s.Steps = StepsByWords(s.text())
		return nil
	}
	if s.Version > 0 {
		s.Replans++
	}
	s.Version++
	s.Plans = append(s.Plans, Plan{
		Version: s.Version, Status: api.PlanRejected, Source: "planner", Feedback: "the goal was cancelled before the planner had answered", At: at,
	})
	return nil
}

// Fail ends the goal as failed.
func (s *State) Fail(why string, at int64) error { return s.end(api.GoalFailed, why, at) }

func (s *State) end(status api.GoalStatus, why string, at int64) error {
	if s.Status != api.GoalActive {
		return stale("goal %s is %s", s.ID, s.Status)
	}
	for _, t := range s.current() {
		s.close(t, "CANCELLED: the goal is "+string(status), at)
	}
	s.Status, s.Reason, s.EndedAt = status, why, at
	return nil
}

// settle applies the consequences of a change to an active goal with an approved plan: it
// unblocks tasks, ends the goal and queues ready tasks.
func (s *State) settle(at int64) {
	if s.Status != api.GoalActive || s.plan() == nil || s.plan().Status != api.PlanApproved {
		return
	}
	for _, t := range s.current() {
		if t.Status == api.TaskBlocked && s.unblocked(t) {
			t.Status = api.TaskPending
		}
	}
	p := s.Progress()
	switch {
	case p.Total > 0 && p.Completed == p.Total:
		s.Status, s.EndedAt, s.Reason = api.GoalCompleted, at, ""
		return
	case p.Failed > 0 && s.Replans >= MaxReplans:
		var why []string
		for _, t := range s.current() {
			if t.Status == api.TaskFailed {
				why = append(why, t.Title+": "+t.Error)
			}
		}
		_ = s.Fail("no plan worked out; "+strings.Join(why, "; "), at) // it cannot fail: the goal is active
		return
	}
	if s.Phase() != api.PhaseExecuting {
		return
	}
	free := inFlight - p.Running
	for _, t := range s.ready() {
		if free--; free < 0 {
			return
		}
		t.Status, t.Attempt = api.TaskAssigned, t.Attempt+1
	}
}

package goal

import (
	"cmp"
	"fmt"
	"reflect"
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

// Claim begins a queued attempt: its run holds the task until the deadline.
func (s *State) Claim(task string, number int, at int64) error {
	t := s.task(task)
	if s.Status != api.GoalActive || t == nil || t.Status != api.TaskAssigned || t.Attempt != number {
		return stale("attempt %d at task %s is out of date", number, task)
	}
	if s.dear(t) { // a run whose deadline passed may have ended, with its cost, after this attempt was queued
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
	if retry && t.Retries < t.MaxRetries && !s.dear(t) {
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

// dear reports whether a task has reached the cost at which it is not retried.
func (s *State) dear(t *Task) bool { return t.Estimate > 0 && s.left(t) == 0 }

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

// Unheard adds the cost of a model call that ended after the goal was cancelled. A plan
// that came too late counts as a rejected version.
func (s *State) Unheard(question string, cost api.Micros, at int64) error {
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

// Message is a message to be published with a change.
type Message struct {
	ID string
	M  api.Message
}

// Effects are the consequences of a change, to be committed with it.
type Effects struct {
	Messages []Message
	Sessions [][2]string // session and its agent, to be created if they do not exist
	Cancels  []Cancel    // runs that became strays
}

// Cancel is a run to be cancelled.
type Cancel struct{ Run, Session, Reason string }

// cancelOf returns the cancellation of a stray's run.
func (s *State) cancelOf(a Attempt) Cancel {
	t := s.task(a.Task)
	return Cancel{a.Run, Session(*t), "the attempt at task " + t.ID + " is over: " + t.Error}
}

// Apply applies a change to before, which it does not modify, and returns the new state
// and its effects. If change returns an error, nothing is to be stored. A change that
// changes nothing has no effects and does not increase Seq.
func Apply(before State, at int64, change func(*State) error) (State, Effects, error) {
	s := before.clone()
	if err := change(&s); err != nil {
		return before, Effects{}, err
	}
	s.settle(at)
	if reflect.DeepEqual(before, s) {
		return before, Effects{}, nil
	}
	s.Seq, s.UpdatedAt = before.Seq+1, at
	var out Effects
	add := func(id string, m api.Message) { out.Messages = append(out.Messages, Message{id, m}) }
	for _, t := range s.Tasks {
		was := before.task(t.ID)
		if was != nil && was.Status == t.Status && was.Attempt == t.Attempt {
			continue
		}
		changed := api.TaskChanged{
			Task: t.ID, Goal: s.ID, Agent: s.Agent, Title: t.Title, Status: t.Status, Attempt: t.Attempt, Run: t.Lease, Error: t.Error,
			Seq: s.Seq, At: at,
		}
		if was != nil {
			changed.Previous = was.Status
		}
		add(fmt.Sprintf("task_changed/%s/%d", t.ID, s.Seq), changed)
		switch t.Status {
		case api.TaskAssigned:
			add(fmt.Sprintf("task/%s/%d", t.ID, t.Attempt), api.DoTask{Goal: s.ID, Task: t.ID, Agent: t.Assignee, Attempt: t.Attempt})
		case api.TaskRunning:
			out.Sessions = append(out.Sessions, [2]string{Session(t), t.Assignee})
			add("run/"+t.Lease, api.Run{
				Run: t.Lease, Agent: t.Assignee, Session: Session(t), Kind: api.RunTask, Content: s.brief(&t),
				By: api.Lowest(api.Principal{Kind: api.Self}, s.By), Cause: t.ID, AcceptedAt: at, CostCap: s.left(&t),
			})
		case api.TaskPending, api.TaskBlocked, api.TaskCompleted, api.TaskFailed, api.TaskCancelled:
		}
	}
	for _, a := range s.Strays() {
		if !slices.Contains(before.Strays(), a) {
			out.Cancels = append(out.Cancels, s.cancelOf(a))
		}
	}
	was, is := before.Phase(), s.Phase()
	if was != is || len(s.Strays()) > 0 || was == api.PhaseReview && before.Reason != s.Reason {
		add(fmt.Sprintf("goal_changed/%s/%d", s.ID, s.Seq), api.GoalChanged{
			Goal: s.ID, Agent: s.Agent, Title: s.Title, Status: s.Status, Phase: is, Previous: was, Reason: s.Reason, Version: s.Version,
			Seq: s.Seq, At: at,
		})
	}
	return s, out, nil
}

// Created returns the effects of creating a goal.
func Created(s State) Effects {
	return Effects{Messages: []Message{{"goal_created/" + s.ID, api.GoalCreated{
		Goal: s.ID, Agent: s.Agent, Title: s.Title, By: s.By, At: s.CreatedAt,
	}}}}
}

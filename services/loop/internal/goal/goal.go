// Package goal is the orchestrator: it turns what an agent wants into a plan, the
// plan into tasks, and the tasks into runs, also while the agent sleeps
// (spec-core-5 §8, with the mends of spec-core-7 W-18 to W-26).
//
//	create_goal ─▶ classifying ─▶ planning ─▶ plan_review ─▶ executing ─▶ complete
//	                    │            ▲  ▲          │            │  │
//	                    └────────────│──│──────────┘ approved   │  └─▶ failed
//	                  few steps      │  └── rejected            │       (no replan left)
//	                                 └──────── replanning ◀─────┘ a task failed for good,
//	                                                              or it costs too much
//	cancel_goal ─▶ cancelled, from anywhere
//
// The phase is derived from goal, plan and tasks ([State.Phase]) and stored
// nowhere, so a cancelled goal cannot leave a phase behind (W-20). Everything that
// happens to a goal is one change of its [State] under the lock of its row, and what
// follows from it (the next tasks in the queue, runs, events) is committed with it
// by [Apply]. What needs somebody else (the model, policy, the end of a run) is done
// by [Orchestrator.Step] in between: it may be done twice, late or by two replicas,
// because the change that it leads to compares before it sets.
//
// The package must not execute anything by itself: an attempt at a task is a run
// like every other, judged and paid like every other (W-21).
package goal

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

// Numbers of spec-core-5 §8.
const (
	// MaxReplans is how many plans of a goal may be given up for another.
	MaxReplans = 3
	// DefaultLimit is the cost from which a plan waits for the creator: 5,000 cents.
	DefaultLimit = 5000 * api.Cent

	manySteps       = 3 // more than this, and the goal is planned
	maxSteps        = 20
	defaultPriority = 50
	maxPriority     = 100
	defaultRetries  = 3       // of a task, after its first attempt
	defaultTimeout  = 300_000 // of an attempt, in ms
	fallbackCost    = 200 * api.Cent
	// inFlight is how many tasks of a goal are in the queue or running at a time: as
	// many as its queue holds beside one (see [api.QueueDepth]).
	inFlight = api.QueueDepth
)

// Goal is a goal without its plans and tasks.
type Goal struct {
	ID, Agent                    string
	Title, Description, Strategy string
	Status                       api.GoalStatus
	Reason                       string
	By                           api.Principal
	Steps                        int // estimated; 0: not yet
	Version                      int // of the last plan; 0: there is none
	Replans                      int
	Limit                        api.Micros
	Overhead                     api.Micros // spent on classifying and planning
	Seq                          int64
	CreatedAt, UpdatedAt         int64 // Unix microseconds, as all times here
	EndedAt                      int64 // 0: it goes on
}

// Plan is one version of a goal's plan.
type Plan struct {
	Version  int
	Status   api.PlanStatus
	Source   string
	Draft    Draft
	Cost     api.Micros
	Decision string // id of policy's
	Feedback string
	At       int64
}

// Task is a task of one version of the plan.
type Task struct {
	ID, Parent         string
	Version, Number    int // Number counts from 1 within the version
	Title, Description string
	Status             api.TaskStatus
	Role               string
	Assignee           string // the agent whose runs work on it
	Priority           int
	Dependencies       []string // ids of tasks
	Estimate           api.Micros
	TimeoutMS          int64
	Retries            int // attempts that failed
	MaxRetries         int
	Attempt            int    // number of the last attempt; 0: none
	Lease              string // the run of the attempt under way or last made
	Deadline           int64  // of the lease, 0: none is held
	Result, Artifacts  string
	Error              string // of the last attempt that failed
	CreatedAt          int64
	StartedAt, EndedAt int64
}

// Attempt is one run of a task.
type Attempt struct {
	Run, Task string
	Number    int
	StartedAt int64
	EndedAt   int64 // 0: its run goes on, as far as is known
	StoppedAt int64 // its run was cancelled; 0: it was not
	Cost      api.Micros
}

// State is a goal with all that belongs to it. Of every list the order is that of
// making.
type State struct {
	Goal
	Plans    []Plan
	Tasks    []Task
	Attempts []Attempt
}

// final says whether a task's status never changes again.
func final(s api.TaskStatus) bool {
	return s == api.TaskCompleted || s == api.TaskFailed || s == api.TaskCancelled
}

// Phase derives what the goal waits for.
func (s *State) Phase() api.GoalPhase {
	switch s.Status {
	case api.GoalCompleted:
		return api.PhaseComplete
	case api.GoalFailed:
		return api.PhaseFailed
	case api.GoalCancelled:
		return api.PhaseCancelled
	case api.GoalActive:
	}
	p := s.plan()
	switch {
	case s.Steps == 0:
		return api.PhaseClassifying
	case p == nil, p.Status == api.PlanRejected:
		return api.PhasePlanning
	case p.Status != api.PlanApproved:
		return api.PhaseReview
	}
	if _, again := s.replan(); again {
		return api.PhaseReplanning
	}
	return api.PhaseExecuting
}

// plan is the last version, nil when there is none.
func (s *State) plan() *Plan {
	if len(s.Plans) == 0 {
		return nil
	}
	return &s.Plans[len(s.Plans)-1]
}

// current are the tasks of the last plan.
func (s *State) current() []*Task {
	var out []*Task
	for i := range s.Tasks {
		if s.Tasks[i].Version == s.Version {
			out = append(out, &s.Tasks[i])
		}
	}
	return out
}

func (s *State) task(id string) *Task {
	for i := range s.Tasks {
		if s.Tasks[i].ID == id {
			return &s.Tasks[i]
		}
	}
	return nil
}

func (s *State) attempt(run string) *Attempt {
	for i := range s.Attempts {
		if s.Attempts[i].Run == run {
			return &s.Attempts[i]
		}
	}
	return nil
}

// Spent is what the goal has cost so far: its runs that are over, and planning.
func (s *State) Spent() api.Micros {
	sum := s.Overhead
	for _, a := range s.Attempts {
		sum += a.Cost
	}
	return sum
}

// spentOn is what a task has cost.
func (s *State) spentOn(task string) api.Micros {
	var sum api.Micros
	for _, a := range s.Attempts {
		if a.Task == task {
			sum += a.Cost
		}
	}
	return sum
}

// Strays are runs whose attempt is none any more and that may still go on: nobody
// waits for them, so they are to be cancelled. The run that completed its task ends
// by itself.
func (s *State) Strays() []Attempt {
	var out []Attempt
	for _, a := range s.Attempts {
		t := s.task(a.Task)
		held := t != nil && t.Lease == a.Run && (t.Status == api.TaskRunning || t.Status == api.TaskCompleted)
		if a.EndedAt == 0 && a.StoppedAt == 0 && !held {
			out = append(out, a)
		}
	}
	return out
}

// Progress counts the tasks of the last plan. Running ones are those in the queue,
// too.
type Progress struct{ Total, Completed, Running, Failed, Blocked, Pending int }

// Progress of the goal.
func (s *State) Progress() Progress {
	var p Progress
	for _, t := range s.current() {
		p.Total++
		switch t.Status {
		case api.TaskCompleted:
			p.Completed++
		case api.TaskAssigned, api.TaskRunning:
			p.Running++
		case api.TaskFailed:
			p.Failed++
		case api.TaskBlocked:
			p.Blocked++
		case api.TaskPending:
			p.Pending++
		case api.TaskCancelled:
		}
	}
	return p
}

// NewID is the id of the goal that a call of create_goal makes: the same for the
// same call.
func NewID(key string) string {
	sum := sha256.Sum256([]byte("goal/" + key))
	return fmt.Sprintf("g%x", sum[:8])
}

// taskID is the id of a version's n-th task, from 1.
func taskID(goal string, version, n int) string { return fmt.Sprintf("%s-%d-%d", goal, version, n) }

// classifyID is the id under which a model is asked how long a goal is: the same on
// every replica, so that it is paid once.
func classifyID(goal string) string { return goal + ".classify" }

// planID is the id under which the planner is asked for a version of a plan, likewise.
func planID(goal string, version int) string { return fmt.Sprintf("%s.plan.%d", goal, version) }

// sessionMark is in the name of every task's session.
const sessionMark = "-task-"

// Session is where a task's runs happen.
func Session(t Task) string { return t.Assignee + sessionMark + t.ID }

// Worked says whether a session may be a task's; most runs need no look into the
// store.
func Worked(session string) bool { return strings.Contains(session, sessionMark) }

// runOf is the run of an attempt, the same on every replica.
func runOf(task string, attempt int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:task:"+task+"/"+strconv.Itoa(attempt))).String()
}

// View is the goal as others see it; whole adds its plan and its tasks.
func (s *State) View(whole bool) api.Goal {
	g := api.Goal{
		ID: s.ID, Agent: s.Agent, Title: s.Title, Description: s.Description, Strategy: s.Strategy, Status: s.Status, Phase: s.Phase(),
		Reason: s.Reason, By: s.By, Steps: s.Steps, Version: s.Version, Replans: s.Replans, Limit: s.Limit, Spent: s.Spent(), Seq: s.Seq,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, EndedAt: s.EndedAt,
	}
	if p := s.plan(); p != nil {
		g.Estimate = p.Cost
	}
	if !whole {
		return g
	}
	for _, p := range s.Plans {
		g.Plans = append(g.Plans, api.GoalPlan{
			Version: p.Version, Status: p.Status, Source: p.Source, Analysis: p.Draft.Analysis, Strategy: p.Draft.Strategy,
			Risks: append([]string{}, p.Draft.Risks...), Cost: p.Cost, Minutes: p.Draft.Minutes, Decision: p.Decision, Feedback: p.Feedback, At: p.At,
		})
	}
	for _, t := range s.Tasks {
		g.Tasks = append(g.Tasks, api.GoalTask{
			ID: t.ID, Version: t.Version, Parent: t.Parent, Title: t.Title, Description: t.Description, Status: t.Status, Role: t.Role,
			Assignee: t.Assignee, Session: Session(t), Priority: t.Priority, Dependencies: append([]string{}, t.Dependencies...), Attempt: t.Attempt,
			Run: t.Lease, Retries: t.Retries, MaxRetries: t.MaxRetries, Deadline: t.Deadline, TimeoutMS: t.TimeoutMS, Estimate: t.Estimate,
			Spent: s.spentOn(t.ID), Result: t.Result, Artifacts: t.Artifacts, Error: t.Error, StartedAt: t.StartedAt, EndedAt: t.EndedAt,
		})
	}
	return g
}

// clone copies all that a change may write to.
func (s *State) clone() State {
	c := *s
	c.Plans, c.Tasks, c.Attempts = slices.Clone(s.Plans), slices.Clone(s.Tasks), slices.Clone(s.Attempts)
	return c
}

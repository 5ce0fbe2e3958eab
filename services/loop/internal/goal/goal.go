// Package goal is the orchestrator of goals: it plans a goal by a model call, makes the
// plan into a graph of tasks, and executes each task by runs, also while the agent sleeps
// (docs/reference/goals.md).
//
//	create_goal ─▶ classifying ─▶ planning ─▶ plan_review ─▶ executing ─▶ complete
//	                    │            ▲  ▲          │            │  │
//	                    └────────────│──│──────────┘ approved   │  └─▶ failed
//	                  few steps      │  └── rejected            │       (no replan left)
//	                                 └──────── replanning ◀─────┘ a task failed, or
//	                                                              a budget breach
//	cancel_goal ─▶ cancelled, from any phase
//
// The phase is derived from goal, plan and tasks ([State.Phase]) and not stored, so a
// cancelled goal cannot have a phase left over (docs/reference/goals.md, cancelled goal).
// Everything that happens to a goal is a change of its [State] under the lock of its row.
// [Apply] computes the effects of a change (queued tasks, runs, events), which are
// committed with it. Calls of other components (the model, policy) are made by
// [Orchestrator.Step] between two changes. A step may be executed repeatedly, late or by
// concurrent replicas, because the change that ends it checks the state before it is
// applied.
//
// The package must not execute tasks itself: an attempt of a task is a run like any
// other, with the same policy and the same costs (docs/reference/goals.md, unguarded
// worker).
//
// Of the messages in pkg/api the package uses [api.ApprovePlan] with its [api.Decision],
// and those that a change publishes, because the outbox stores them as they are; an own
// type would be a copy of each. The root package converts all other messages.
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

// Limits of goals, plans and tasks (docs/reference/goals.md, Limits and Cost).
const (
	// MaxReplans is the number of plans of a goal that may be replaced by another.
	MaxReplans = 3
	// DefaultLimit is the cost above which a plan waits for the creator: 5,000 cents.
	DefaultLimit = 5000 * api.Cent

	manySteps       = 3 // a goal with more steps is planned by a model call
	maxSteps        = 20
	defaultPriority = 50
	maxPriority     = 100
	defaultRetries  = 3       // of a task, after its first attempt
	defaultTimeout  = 300_000 // of an attempt, in ms
	fallbackCost    = 200 * api.Cent
	// inFlight is the number of tasks of a goal that are queued or running at a time. The
	// queue accepts one more (see [api.QueueDepth]).
	inFlight = api.QueueDepth
)

// Goal is a goal without its plans and tasks.
type Goal struct {
	ID, Agent                    string
	Title, Description, Strategy string
	Status                       api.GoalStatus
	Reason                       string
	By                           api.Principal
	Steps                        int // estimated number; 0: not estimated yet
	Version                      int // of the last plan; 0: there is none
	Replans                      int
	Limit                        api.Micros
	Overhead                     api.Micros // spent on classifying and planning
	Seq                          int64
	CreatedAt, UpdatedAt         int64 // Unix microseconds, as all times here
	EndedAt                      int64 // 0: the goal is active
}

// Plan is one version of a goal's plan.
type Plan struct {
	Version  int
	Status   api.PlanStatus
	Source   string
	Draft    Draft
	Cost     api.Micros
	Decision string // id of policy's decision
	Feedback string
	At       int64
}

// Task is a task of one version of the plan.
type Task struct {
	ID, Parent         string
	Version, Number    int // Number begins at 1 in each version
	Title, Description string
	Status             api.TaskStatus
	Role               string
	Assignee           string // the agent that executes its runs
	Priority           int
	Dependencies       []string // ids of tasks
	Estimate           api.Micros
	TimeoutMS          int64
	Retries            int // attempts that failed
	MaxRetries         int
	Attempt            int    // number of the last attempt; 0: none
	Lease              string // the run of the current or last attempt
	Deadline           int64  // of the lease; 0: there is no lease
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
	EndedAt   int64 // 0: its end is not known
	StoppedAt int64 // when its run was cancelled; 0: it was not
	Cost      api.Micros
}

// State is a goal with its plans, tasks and attempts, each in the order of creation.
type State struct {
	Goal
	Plans    []Plan
	Tasks    []Task
	Attempts []Attempt
}

// final reports whether a task's status does not change any more.
func final(s api.TaskStatus) bool {
	return s == api.TaskCompleted || s == api.TaskFailed || s == api.TaskCancelled
}

// Phase derives the phase of the goal from its status, plan and tasks.
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

// plan returns the last version of the plan, nil if there is none.
func (s *State) plan() *Plan {
	if len(s.Plans) == 0 {
		return nil
	}
	return &s.Plans[len(s.Plans)-1]
}

// current returns the tasks of the last plan.
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

// Spent returns the cost of the goal so far: of its runs that have ended, and of
// planning.
func (s *State) Spent() api.Micros {
	sum := s.Overhead
	for _, a := range s.Attempts {
		sum += a.Cost
	}
	return sum
}

// SpentOn returns the cost of a task's runs that have ended.
func (s *State) SpentOn(task string) api.Micros {
	var sum api.Micros
	for _, a := range s.Attempts {
		if a.Task == task {
			sum += a.Cost
		}
	}
	return sum
}

// Strays returns the attempts that no longer hold their task and whose runs may still be
// executing. Their results are not used, so the runs are to be cancelled. The run that
// completed its task is no stray, because it ends by itself.
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

// Progress holds the numbers of tasks of the last plan, by status. Running includes
// queued tasks.
type Progress struct{ Total, Completed, Running, Failed, Blocked, Pending int }

// Progress counts the tasks of the last plan.
func (s *State) Progress() Progress {
	tasks, n := s.current(), map[api.TaskStatus]int{}
	for _, t := range tasks {
		n[t.Status]++
	}
	return Progress{
		Total: len(tasks), Completed: n[api.TaskCompleted], Running: n[api.TaskAssigned] + n[api.TaskRunning], Failed: n[api.TaskFailed],
		Blocked: n[api.TaskBlocked], Pending: n[api.TaskPending],
	}
}

// NewID returns the id of the goal that a call of create_goal creates. The same
// idempotency key gives the same id.
func NewID(key string) string {
	sum := sha256.Sum256([]byte("goal/" + key))
	return fmt.Sprintf("g%x", sum[:8])
}

// taskID returns the id of the n-th task of a version, from 1.
func taskID(goal string, version, n int) string { return fmt.Sprintf("%s-%d-%d", goal, version, n) }

// classifyID returns the id of the model call that estimates a goal's steps. It is the
// same on every replica, so that the call is paid once.
func classifyID(goal string) string { return goal + ".classify" }

// planID returns the id of the model call for a version of the plan, likewise.
func planID(goal string, version int) string { return fmt.Sprintf("%s.plan.%d", goal, version) }

// SessionMark is part of the id of every task's session.
const SessionMark = "-task-"

// Session returns the id of the session of a task's runs.
func Session(t Task) string { return t.Assignee + SessionMark + t.ID }

// Worked reports whether a session may be a task's. It avoids a query of the store for
// most runs.
func Worked(session string) bool { return strings.Contains(session, SessionMark) }

// runOf returns the id of an attempt's run, the same on every replica.
func runOf(task string, attempt int) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:task:"+task+"/"+strconv.Itoa(attempt))).String()
}

// clone copies everything that a change may write to.
func (s *State) clone() State {
	c := *s
	c.Plans, c.Tasks, c.Attempts = slices.Clone(s.Plans), slices.Clone(s.Tasks), slices.Clone(s.Attempts)
	return c
}

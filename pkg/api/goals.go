package api

// Messages about goals. A goal is worked on beside the conversation of its agent: loop
// plans it as a graph of tasks and executes each task in a session of its own, also
// while the agent sleeps (docs/reference/goals.md, Phases). An agent has at most one
// active goal.
//
// History: v1 2026-11 first version.

// GoalStatus is the status of a goal.
type GoalStatus string

// The statuses of a goal; only active changes.
const (
	GoalActive    GoalStatus = "active"
	GoalCompleted GoalStatus = "completed"
	GoalFailed    GoalStatus = "failed"
	GoalCancelled GoalStatus = "cancelled"
)

// GoalStatuses returns all statuses of a goal.
func GoalStatuses() []GoalStatus {
	return []GoalStatus{GoalActive, GoalCompleted, GoalFailed, GoalCancelled}
}

// GoalPhase is the next step of a goal. It is derived from the goal, its plan and its
// tasks, and is not stored (docs/reference/platform.md, stale phase).
type GoalPhase string

// The phases of a goal.
const (
	PhaseClassifying GoalPhase = "classifying" // the number of steps is estimated
	PhasePlanning    GoalPhase = "planning"    // a model call plans the goal
	PhaseReview      GoalPhase = "plan_review" // policy or the creator decides on the plan
	PhaseExecuting   GoalPhase = "executing"   // its tasks are executed
	PhaseReplanning  GoalPhase = "replanning"  // the plan failed, and a model call plans the goal again
	PhaseComplete    GoalPhase = "complete"
	PhaseFailed      GoalPhase = "failed"
	PhaseCancelled   GoalPhase = "cancelled"
)

// TaskStatus is the status of a task.
type TaskStatus string

// The statuses of a task; the last three are final.
const (
	TaskPending   TaskStatus = "pending"  // ready for an attempt
	TaskBlocked   TaskStatus = "blocked"  // depends on tasks that are not completed
	TaskAssigned  TaskStatus = "assigned" // in the work queue
	TaskRunning   TaskStatus = "running"  // an attempt is executed by a run
	TaskCompleted TaskStatus = "completed"
	TaskFailed    TaskStatus = "failed"
	TaskCancelled TaskStatus = "cancelled"
)

// Goal describes a goal.
type Goal struct {
	ID          string     `json:"id"`
	Agent       string     `json:"agent"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Strategy    string     `json:"strategy,omitempty"`
	Status      GoalStatus `json:"status"`
	Phase       GoalPhase  `json:"phase"`
	Reason      string     `json:"reason,omitempty"` // what it waits for, or why it ended
	By          Principal  `json:"by"`               // the least trusted principal of the inputs that led to it
	Steps       int        `json:"steps,omitempty"`  // estimated; 0: not yet
	Version     int        `json:"version"`          // of its plan; 0: no plan yet
	Replans     int        `json:"replans"`          // plans that were replaced
	Estimate    Micros     `json:"estimate"`         // of its plan
	Limit       Micros     `json:"limit"`            // above this, a plan needs the creator's approval
	Spent       Micros     `json:"spent"`            // on its tasks and its planning
	Seq         int64      `json:"seq"`              // number of its changes
	CreatedAt   int64      `json:"createdAt"`
	UpdatedAt   int64      `json:"updatedAt"`
	EndedAt     int64      `json:"endedAt,omitempty"`
	Plans       []GoalPlan `json:"plans,omitempty"` // all versions, of which the last is valid; only in the answer to [GetGoal]
	Tasks       []GoalTask `json:"tasks,omitempty"` // of all versions; only in the answer to [GetGoal]
}

// PlanStatus is the status of a plan.
type PlanStatus string

// The statuses of a plan.
const (
	PlanProposed PlanStatus = "proposed" // waits for policy
	PlanWaiting  PlanStatus = "waiting"  // waits for the creator
	PlanApproved PlanStatus = "approved"
	PlanRejected PlanStatus = "rejected"
)

// GoalPlan is one version of a goal's plan.
type GoalPlan struct {
	Version  int        `json:"version"`
	Status   PlanStatus `json:"status"`
	Source   string     `json:"source"` // planner; single, for few steps; fallback, if the planner failed
	Analysis string     `json:"analysis"`
	Strategy string     `json:"strategy"`
	Risks    []string   `json:"risks"`
	Cost     Micros     `json:"cost"`
	Minutes  int64      `json:"minutes"`
	Decision string     `json:"decision,omitempty"` // id in policy
	Feedback string     `json:"feedback,omitempty"` // of policy or the creator
	At       int64      `json:"at"`
}

// GoalTask is one task of a goal.
type GoalTask struct {
	ID           string     `json:"id"`
	Version      int        `json:"version"` // of the plan that it belongs to
	Parent       string     `json:"parent,omitempty"`
	Title        string     `json:"title"`
	Description  string     `json:"description"`
	Status       TaskStatus `json:"status"`
	Role         string     `json:"role"`
	Assignee     string     `json:"assignee"` // the agent that executes it
	Session      string     `json:"sessionId"`
	Priority     int        `json:"priority"` // 0 to 100; the highest is executed first
	Dependencies []string   `json:"dependencies"`
	Attempt      int        `json:"attempt"`         // number of the last attempt; 0: none
	Run          string     `json:"runId,omitempty"` // of the last attempt
	Retries      int        `json:"retries"`         // failed attempts
	MaxRetries   int        `json:"maxRetries"`
	Deadline     int64      `json:"deadline,omitempty"` // of the current attempt
	TimeoutMS    int64      `json:"timeoutMs"`
	Estimate     Micros     `json:"estimate"` // above 1.5 times this, the current run ends and no other is started; 0: no cap
	Spent        Micros     `json:"spent"`
	Result       string     `json:"result,omitempty"`
	Artifacts    string     `json:"artifacts,omitempty"`
	Error        string     `json:"error,omitempty"` // of the last attempt that failed, "CODE: text"
	StartedAt    int64      `json:"startedAt,omitempty"`
	EndedAt      int64      `json:"endedAt,omitempty"`
}

// ListGoals requests [Goals], the latest first. An empty filter matches all; Limit 0
// means 50. Errors: Invalid (limit, After, Status).
type ListGoals struct {
	Agent  string     `json:"agent,omitempty"`
	Status GoalStatus `json:"status,omitempty"`
	After  string     `json:"after,omitempty"` // Next of the previous page
	Limit  int        `json:"limit,omitempty"`
}

// Goals is a list of goals, without plans and tasks.
type Goals struct {
	Goals []Goal `json:"goals"`
	Page
}

// GetGoal requests one [Goal] with its plans and tasks. Errors: NotFound.
type GetGoal struct {
	Goal string `json:"goal"`
}

// CancelGoal cancels a goal in any phase. Its open tasks and their runs are cancelled,
// and the agent may begin the next goal at once. Cancelling a goal that has ended
// changes nothing. The answer is the [Goal]. Errors: NotFound.
type CancelGoal struct {
	Goal   string `json:"goal"`
	Reason string `json:"reason,omitempty"`
}

// ReviewPlan is the creator's decision on a plan under review. A rejected plan is
// planned again with the feedback. The same decision again changes nothing. The answer is
// the [Goal]. Errors: NotFound; Conflict (this version is not under review).
type ReviewPlan struct {
	Goal     string `json:"goal"`
	Version  int    `json:"version"`
	Approve  bool   `json:"approve"`
	Feedback string `json:"feedback,omitempty"`
}

// GoalCreated is published when an agent has a new goal.
type GoalCreated struct {
	Goal  string    `json:"goal"`
	Agent string    `json:"agent"`
	Title string    `json:"title"`
	By    Principal `json:"by"`
	At    int64     `json:"at"`
}

// GoalChanged is published when the phase of a goal changes, or when runs of it have to
// be cancelled.
type GoalChanged struct {
	Goal     string     `json:"goal"`
	Agent    string     `json:"agent"`
	Title    string     `json:"title"`
	Status   GoalStatus `json:"status"`
	Phase    GoalPhase  `json:"phase"`
	Previous GoalPhase  `json:"previous"`
	Reason   string     `json:"reason,omitempty"`
	Version  int        `json:"version"`
	Seq      int64      `json:"seq"`
	At       int64      `json:"at"`
}

// TaskChanged is published when the status or the attempt of a task changes.
type TaskChanged struct {
	Task     string     `json:"task"`
	Goal     string     `json:"goal"`
	Agent    string     `json:"agent"`
	Title    string     `json:"title"`
	Status   TaskStatus `json:"status"`
	Previous TaskStatus `json:"previous,omitempty"` // "": a new task
	Attempt  int        `json:"attempt"`
	Run      string     `json:"runId,omitempty"`
	Error    string     `json:"error,omitempty"`
	Seq      int64      `json:"seq"` // of its goal
	At       int64      `json:"at"`
}

// DoTask is the command to make one attempt at a task that is ready. Loop sends it to
// itself. The replica that receives it takes the lease of the attempt, or discards an
// attempt that is out of date.
type DoTask struct {
	Goal    string `json:"goal"`
	Task    string `json:"task"`
	Agent   string `json:"agent"`
	Attempt int    `json:"attempt"`
}

// PlanTool is the tool name in decisions on plans.
const PlanTool = "plan"

// ApprovePlan requests policy's [Decision] on a plan. Policy stores the decision before
// it sends it, with the goal as its turn, the version as its index and [PlanTool] as
// its tool. The action is allow, deny, or quarantine if the creator has to approve: the
// plan may cost more than Limit, or its principal is not trusted. Repeating the request
// for the same version returns the stored decision. The decision has no token because
// no call is executed by it. Errors: Invalid, Conflict (same version, another plan).
type ApprovePlan struct {
	Agent   string    `json:"agent"`
	Goal    string    `json:"goal"`
	Version int       `json:"version"`
	Title   string    `json:"title"`
	Tasks   int       `json:"tasks"`
	Cost    Micros    `json:"cost"`  // estimated
	Limit   Micros    `json:"limit"` // up to which no approval is required
	Hash    string    `json:"hash"`  // SHA-256 of the plan, in hex
	By      Principal `json:"by"`
}

// The implementations of [Message] by the types of this file.

func (ListGoals) Subject() Subject     { return request(Loop, "list_goals") }
func (GetGoal) Subject() Subject       { return request(Loop, "get_goal") }
func (CancelGoal) Subject() Subject    { return request(Loop, "cancel_goal") }
func (ReviewPlan) Subject() Subject    { return request(Loop, "review_plan") }
func (m GoalCreated) Subject() Subject { return event(Loop, "goal_created", m.Agent) }
func (m GoalChanged) Subject() Subject { return event(Loop, "goal_changed", m.Agent) }
func (m TaskChanged) Subject() Subject { return event(Loop, "task_changed", m.Agent) }
func (m DoTask) Subject() Subject      { return keyed(Loop, Command, "task", m.Goal) }
func (ApprovePlan) Subject() Subject   { return request(Policy, "approve_plan") }

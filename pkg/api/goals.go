package api

// Goals are what an agent wants done beside its own conversation: loop plans them
// into tasks, and works on the tasks in sessions of their own, also while the agent
// sleeps (spec-core-5 §8). An agent has one active goal at a time.
//
// History: v1 2026-11 first version.

// GoalStatus is whether a goal is still worked on.
type GoalStatus string

// The statuses; active is the only one that changes.
const (
	GoalActive    GoalStatus = "active"
	GoalCompleted GoalStatus = "completed"
	GoalFailed    GoalStatus = "failed"
	GoalCancelled GoalStatus = "cancelled"
)

// GoalPhase is what a goal waits for. It derives from the goal, its plan and its
// tasks, and is stored nowhere (W-20).
type GoalPhase string

// The phases.
const (
	PhaseClassifying GoalPhase = "classifying" // how many steps will it take?
	PhasePlanning    GoalPhase = "planning"    // the planner is asked
	PhaseReview      GoalPhase = "plan_review" // policy, or the creator, is asked whether the plan may be followed
	PhaseExecuting   GoalPhase = "executing"   // its tasks are worked on
	PhaseReplanning  GoalPhase = "replanning"  // the plan does not work out: the planner is asked for another
	PhaseComplete    GoalPhase = "complete"
	PhaseFailed      GoalPhase = "failed"
	PhaseCancelled   GoalPhase = "cancelled"
)

// TaskStatus is where a task is.
type TaskStatus string

// The statuses; the last three are final.
const (
	TaskPending   TaskStatus = "pending"  // may begin
	TaskBlocked   TaskStatus = "blocked"  // needs tasks that are not completed
	TaskAssigned  TaskStatus = "assigned" // lies in the work queue
	TaskRunning   TaskStatus = "running"  // a run works on it
	TaskCompleted TaskStatus = "completed"
	TaskFailed    TaskStatus = "failed"
	TaskCancelled TaskStatus = "cancelled"
)

// Goal is a goal as others see it.
type Goal struct {
	ID          string     `json:"id"`
	Agent       string     `json:"agent"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Strategy    string     `json:"strategy,omitempty"`
	Status      GoalStatus `json:"status"`
	Phase       GoalPhase  `json:"phase"`
	Reason      string     `json:"reason,omitempty"` // what it waits for, or why it is over
	By          Principal  `json:"by"`               // the least trusted of what made the agent want it
	Steps       int        `json:"steps,omitempty"`  // estimated; 0: not yet
	Version     int        `json:"version"`          // of its plan; 0: there is none yet
	Replans     int        `json:"replans"`          // plans that were given up
	Estimate    Micros     `json:"estimate"`         // of its plan
	Limit       Micros     `json:"limit"`            // a dearer plan waits for the creator
	Spent       Micros     `json:"spent"`            // on its tasks and on planning them
	Seq         int64      `json:"seq"`              // counts its changes
	CreatedAt   int64      `json:"createdAt"`
	UpdatedAt   int64      `json:"updatedAt"`
	EndedAt     int64      `json:"endedAt,omitempty"`
	Plans       []GoalPlan `json:"plans,omitempty"` // all versions, the last one counts; only in the answer to [GetGoal]
	Tasks       []GoalTask `json:"tasks,omitempty"` // of all versions, likewise
}

// PlanStatus is what became of a plan.
type PlanStatus string

// The statuses.
const (
	PlanProposed PlanStatus = "proposed" // policy is asked
	PlanWaiting  PlanStatus = "waiting"  // the creator is asked
	PlanApproved PlanStatus = "approved"
	PlanRejected PlanStatus = "rejected"
)

// GoalPlan is one version of a goal's plan.
type GoalPlan struct {
	Version  int        `json:"version"`
	Status   PlanStatus `json:"status"`
	Source   string     `json:"source"` // planner, single (few steps), fallback (the planner failed)
	Analysis string     `json:"analysis"`
	Strategy string     `json:"strategy"`
	Risks    []string   `json:"risks"`
	Cost     Micros     `json:"cost"`
	Minutes  int64      `json:"minutes"`
	Decision string     `json:"decision,omitempty"` // of policy
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
	Assignee     string     `json:"assignee"` // the agent that works on it
	Session      string     `json:"sessionId"`
	Priority     int        `json:"priority"` // 0 to 100, the highest first
	Dependencies []string   `json:"dependencies"`
	Attempt      int        `json:"attempt"`         // the number of the last one; 0: none
	Run          string     `json:"runId,omitempty"` // of the last attempt
	Retries      int        `json:"retries"`         // failed attempts
	MaxRetries   int        `json:"maxRetries"`
	Deadline     int64      `json:"deadline,omitempty"` // of the attempt under way
	TimeoutMS    int64      `json:"timeoutMs"`
	Estimate     Micros     `json:"estimate"` // when more than 1.5 times this is spent, the run under way ends and no other is begun; 0: no cap
	Spent        Micros     `json:"spent"`
	Result       string     `json:"result,omitempty"`
	Artifacts    string     `json:"artifacts,omitempty"`
	Error        string     `json:"error,omitempty"` // of the last attempt that failed, "CODE: text"
	StartedAt    int64      `json:"startedAt,omitempty"`
	EndedAt      int64      `json:"endedAt,omitempty"`
}

// ListGoals answers [Goals], the latest first; empty filters match everything,
// Limit 0 means 50. Errors: Invalid (limit, After).
type ListGoals struct {
	Agent  string     `json:"agent,omitempty"`
	Status GoalStatus `json:"status,omitempty"`
	After  string     `json:"after,omitempty"` // Next of the page before
	Limit  int        `json:"limit,omitempty"`
}

// Subject of the message.
func (ListGoals) Subject() Subject { return request(Loop, "list_goals") }

// Goals is a list of goals, without their plans and tasks.
type Goals struct {
	Goals []Goal `json:"goals"`
	Page
}

// GetGoal answers [Goal] with plan and tasks. Errors: NotFound.
type GetGoal struct {
	Goal string `json:"goal"`
}

// Subject of the message.
func (GetGoal) Subject() Subject { return request(Loop, "get_goal") }

// CancelGoal gives a goal up in whatever phase it is: its open tasks and their
// runs are cancelled, and the agent may begin the next goal at once. Cancelling one
// that is over changes nothing. Answers [Goal]. Errors: NotFound.
type CancelGoal struct {
	Goal   string `json:"goal"`
	Reason string `json:"reason,omitempty"`
}

// Subject of the message.
func (CancelGoal) Subject() Subject { return request(Loop, "cancel_goal") }

// ReviewPlan is the creator's word on a plan under review. A rejected plan goes back
// to the planner with the feedback. Answers [Goal]. Errors: NotFound; Conflict (this
// version is not under review).
type ReviewPlan struct {
	Goal     string `json:"goal"`
	Version  int    `json:"version"`
	Approve  bool   `json:"approve"`
	Feedback string `json:"feedback,omitempty"`
}

// Subject of the message.
func (ReviewPlan) Subject() Subject { return request(Loop, "review_plan") }

// GoalCreated says that an agent has a new goal.
type GoalCreated struct {
	Goal  string    `json:"goal"`
	Agent string    `json:"agent"`
	Title string    `json:"title"`
	By    Principal `json:"by"`
	At    int64     `json:"at"`
}

// Subject of the message.
func (m GoalCreated) Subject() Subject { return event(Loop, "goal_created", m.Agent) }

// GoalChanged says that a goal is in another phase, or has runs to be stopped.
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

// Subject of the message.
func (m GoalChanged) Subject() Subject { return event(Loop, "goal_changed", m.Agent) }

// TaskChanged says that a task has another status or attempt.
type TaskChanged struct {
	Task     string     `json:"task"`
	Goal     string     `json:"goal"`
	Agent    string     `json:"agent"`
	Title    string     `json:"title"`
	Status   TaskStatus `json:"status"`
	Previous TaskStatus `json:"previous,omitempty"` // "": it is new
	Attempt  int        `json:"attempt"`
	Run      string     `json:"runId,omitempty"`
	Error    string     `json:"error,omitempty"`
	Seq      int64      `json:"seq"` // of its goal
	At       int64      `json:"at"`
}

// Subject of the message.
func (m TaskChanged) Subject() Subject { return event(Loop, "task_changed", m.Agent) }

// DoTask asks for one attempt at a task that is ready. Loop sends it to itself; who
// pulls it takes the attempt's lease, or finds that it is out of date.
type DoTask struct {
	Goal    string `json:"goal"`
	Task    string `json:"task"`
	Agent   string `json:"agent"`
	Attempt int    `json:"attempt"`
}

// Subject of the message.
func (m DoTask) Subject() Subject {
	return Subject{Owner: Loop, Class: Command, Name: "task", Version: 1, Key: m.Goal, Keyed: true}
}

// PlanTool is the tool that decisions on plans name.
const PlanTool = "plan"

// ApprovePlan asks policy whether a plan may be followed. The answer, [Decision],
// is stored before it is sent, with the goal as its turn, the version as its index
// and [PlanTool] as its tool: allow; quarantine, when the creator must be asked
// (the plan may cost more than Limit, or a stranger is behind it); deny. Asking again for the same version returns the stored
// decision. It carries no token: nothing is executed by it.
// Errors: Invalid, Conflict (same version, another plan).
type ApprovePlan struct {
	Agent   string    `json:"agent"`
	Goal    string    `json:"goal"`
	Version int       `json:"version"`
	Title   string    `json:"title"`
	Tasks   int       `json:"tasks"`
	Cost    Micros    `json:"cost"`  // estimated
	Limit   Micros    `json:"limit"` // of what the agent may plan by itself
	Hash    string    `json:"hash"`  // SHA-256 of the plan, in hex
	By      Principal `json:"by"`
}

// Subject of the message.
func (ApprovePlan) Subject() Subject { return request(Policy, "approve_plan") }

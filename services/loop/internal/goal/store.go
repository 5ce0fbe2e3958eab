package goal

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// New is a goal to be created.
type New struct {
	ID, Agent, Title, Description, Strategy string
	By                                      api.Principal
	Limit                                   api.Micros
}

// Refusal is the reason why a goal was not created.
type Refusal string

// The refusals; "" is none.
const (
	Duplicate Refusal = "duplicate" // the active goal has this title or description
	Blocked   Refusal = "blocked"   // another goal is active
)

// Query selects goals; an empty field matches every goal.
type Query struct {
	Agent  string
	Status api.GoalStatus
	Limit  int // 0: 50
	// AfterAt and AfterID are the time and the id of a goal in the list; the result
	// begins after it. AfterAt 0 is the beginning of the list.
	AfterAt int64
	AfterID string
}

// Outcome is the outcome of a task's run.
type Outcome struct {
	Success  bool
	Code     api.Code // of the error
	Reason   string
	Error    string
	Response string // text of the model's last completion
	Turns    int
	MaxTurns int  // the agent's limit of turns in a run
	Calls    bool // the last turn made tool calls, so it did not end with text
	Cost     api.Micros
}

// Store stores goals. A change and its effects are one transaction.
type Store interface {
	// CreateGoal creates a goal. If the agent has an active one, it returns that one and
	// a refusal. It is idempotent by ID.
	CreateGoal(ctx context.Context, n New, at int64) (State, Refusal, error)
	// Goal returns a goal. Errors: NotFound.
	Goal(ctx context.Context, id string) (State, error)
	// Goals returns the goals that match a query, the latest first.
	Goals(ctx context.Context, q Query) ([]State, error)
	// ChangeGoal applies a change to a goal, see [Apply]; changes of one goal are
	// serialized. Errors: NotFound, and those of change, after which nothing is stored.
	ChangeGoal(ctx context.Context, id string, at int64, change func(*State) error) (State, error)
	// GoalOfRun returns the id of the goal that a run is an attempt for. Errors:
	// NotFound.
	GoalOfRun(ctx context.Context, run string) (string, error)
	// RunOutcome returns the outcome of a run. Errors: NotFound for one that has not
	// ended.
	RunOutcome(ctx context.Context, run string) (Outcome, error)
	// Overdue returns goals with an attempt whose deadline is before a time, in Unix
	// microseconds.
	Overdue(ctx context.Context, at int64) ([]string, error)
}

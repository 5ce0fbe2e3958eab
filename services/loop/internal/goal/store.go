package goal

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// New is a goal to be made.
type New struct {
	ID, Agent, Title, Description, Strategy string
	By                                      api.Principal
	Limit                                   api.Micros
}

// Refusal is why a goal was not made.
type Refusal string

// The refusals; "" is none.
const (
	Duplicate Refusal = "duplicate" // the active goal has this title or description
	Blocked   Refusal = "blocked"   // another goal is active
)

// Query picks goals; what is empty matches everything.
type Query struct {
	Agent  string
	Status api.GoalStatus
	Limit  int // 0: 50
	// AfterAt and AfterID are the time and the id of a goal: only what the list has
	// behind it. 0 is the begin of the list.
	AfterAt int64
	AfterID string
}

// Outcome is how a task's run ended.
type Outcome struct {
	Success  bool
	Code     api.Code // of the error
	Reason   string
	Error    string
	Response string // the model's last words
	Turns    int
	MaxTurns int  // that the agent may have in a run
	Calls    bool // the last turn made calls: it did not end in words
	Cost     api.Micros
}

// Store keeps goals. A change is one transaction, with all its effects.
type Store interface {
	// CreateGoal makes a goal, unless the agent has an active one: then it returns
	// that and why. The same ID again returns the goal that was made.
	CreateGoal(ctx context.Context, n New, at int64) (State, Refusal, error)
	// Goal returns a goal. Errors: NotFound.
	Goal(ctx context.Context, id string) (State, error)
	// Goals returns goals that match, the latest first.
	Goals(ctx context.Context, q Query) ([]State, error)
	// ChangeGoal applies a change to a goal, see [Apply], while no other caller changes
	// it. Errors: NotFound, and those of change, after which nothing is stored.
	ChangeGoal(ctx context.Context, id string, at int64, change func(*State) error) (State, error)
	// GoalOfRun returns the goal of the attempt that a run is. Errors: NotFound.
	GoalOfRun(ctx context.Context, run string) (string, error)
	// RunOutcome says how a run ended. Errors: NotFound for one that has not ended.
	RunOutcome(ctx context.Context, run string) (Outcome, error)
	// Overdue returns active goals with an attempt whose deadline has passed.
	Overdue(ctx context.Context, at int64) ([]string, error)
}

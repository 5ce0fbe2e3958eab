package goal

import (
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Cause is a reason to replace a plan (docs/reference/goals.md, Replanning).
type Cause string

// The causes.
const (
	TaskFailure       Cause = "task_failure"
	BudgetBreach      Cause = "budget_breach"
	RequirementChange Cause = "requirement_change"
	EnvironmentChange Cause = "environment_change"
	Opportunity       Cause = "opportunity"
)

// Trigger is an event that may require another plan. Fields that its cause does not use
// are zero.
type Trigger struct {
	Cause            Cause
	Task, Error      string     // of a task failure; Error also of a changed environment
	Estimate, Actual api.Micros // of a budget breach
	Conflict         float64    // of a changed requirement with the plan, 0 to 1
	Resource         string     // of a changed environment
	Suggestion       string     // of an opportunity
}

// Thresholds of the causes (docs/reference/goals.md, Replanning).
const (
	conflictAt     = 0.55
	suggestionFrom = 24 // characters
)

// ShouldReplan reports whether a trigger requires another plan. left is the number of
// plans that may still be replaced.
func ShouldReplan(t Trigger, left int) bool {
	if left <= 0 {
		return false
	}
	switch t.Cause {
	case TaskFailure:
		return t.Task != "" && t.Error != ""
	case BudgetBreach:
		return breached(t.Estimate, t.Actual)
	case RequirementChange:
		return t.Conflict >= conflictAt
	case EnvironmentChange:
		return t.Resource != "" && t.Error != ""
	case Opportunity:
		return left > 1 && utf8.RuneCountInString(strings.TrimSpace(t.Suggestion)) >= suggestionFrom
	}
	return false
}

// breached reports whether an actual cost is more than 1.5 times its estimate. Without an
// estimate every cost is.
func breached(estimate, actual api.Micros) bool {
	if estimate <= 0 {
		return actual > 0
	}
	return 2*actual > 3*estimate
}

// replan derives whether the approved plan is to be replaced, and why. A budget breach
// counts only while a task is open.
func (s *State) replan() (Trigger, bool) {
	left := MaxReplans - s.Replans
	spent, open := api.Micros(0), false
	for _, t := range s.current() {
		spent += s.SpentOn(t.ID)
		open = open || !final(t.Status)
		if t.Status != api.TaskFailed {
			continue
		}
		if why := (Trigger{Cause: TaskFailure, Task: t.ID, Error: t.Error}); ShouldReplan(why, left) {
			return why, true
		}
	}
	why := Trigger{Cause: BudgetBreach, Estimate: s.plan().Cost, Actual: spent}
	return why, open && ShouldReplan(why, left)
}

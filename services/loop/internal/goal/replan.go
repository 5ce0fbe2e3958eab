package goal

import (
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Cause is why a plan may have to be given up for another, spec-core-5 §8.5.
type Cause string

// The causes.
const (
	TaskFailure       Cause = "task_failure"
	BudgetBreach      Cause = "budget_breach"
	RequirementChange Cause = "requirement_change"
	EnvironmentChange Cause = "environment_change"
	Opportunity       Cause = "opportunity"
)

// Trigger is an occasion to give a plan up. What a cause does not need is zero.
type Trigger struct {
	Cause            Cause
	Task, Error      string     // of a failure; Error of a changed environment, too
	Estimate, Actual api.Micros // of a breach
	Conflict         float64    // of a changed requirement with the plan, 0 to 1
	Resource         string     // of a changed environment
	Suggestion       string     // of an opportunity
}

// Thresholds of spec-core-5 §8.5.
const (
	conflictAt     = 0.55
	suggestionFrom = 24 // characters
)

// ShouldReplan says whether an occasion is one, when left plans may still be given
// up.
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

// breached says whether something costs more than one and a half times what it was
// estimated at. Without an estimate everything is more.
func breached(estimate, actual api.Micros) bool {
	if estimate <= 0 {
		return actual > 0
	}
	return 2*actual > 3*estimate
}

// replan derives the occasion to give up the plan that is followed. Breaches count
// while there is something left to save.
func (s *State) replan() (Trigger, bool) {
	left := MaxReplans - s.Replans
	spent, open := api.Micros(0), false
	for _, t := range s.current() {
		spent += s.spentOn(t.ID)
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

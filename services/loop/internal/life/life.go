// Package life holds the rules of an agent's life that need no I/O: which state
// may follow which (seed 001), and what its habits over many turns lead to
// (spec-core-1 §1.5 and §2A #1–#7). It keeps nothing: the counters come in and go
// out, and whoever stores turns stores them in the same transaction.
package life

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// after has the states that may follow each state.
var after = map[api.AgentState][]api.AgentState{
	api.StateSetup:    {api.StateWaking, api.StateSleeping, api.StateDead},
	api.StateWaking:   {api.StateRunning, api.StateLow, api.StateCritical, api.StateSleeping, api.StateDead},
	api.StateRunning:  {api.StateLow, api.StateCritical, api.StateSleeping, api.StateDead},
	api.StateLow:      {api.StateRunning, api.StateCritical, api.StateSleeping, api.StateDead},
	api.StateCritical: {api.StateRunning, api.StateLow, api.StateWaking, api.StateSleeping, api.StateDead},
	api.StateSleeping: {api.StateWaking, api.StateSleeping, api.StateDead},
	api.StateDead:     {api.StateSleeping}, // by money alone (W-8)
}

// Allowed says whether an agent may go from one state to another.
func Allowed(from, to api.AgentState) bool { return slices.Contains(after[from], to) }

// Awake says whether an agent in this state is executing a run. A critical agent
// may rest: then it is not told apart here, and a run may begin.
func Awake(s api.AgentState) bool {
	return s == api.StateWaking || s == api.StateRunning || s == api.StateLow
}

// StateAt is the state of an agent that thinks, by its tier. Unknown is not poor:
// the agent goes on as it was (W-7).
func StateAt(t api.Tier, was api.AgentState) api.AgentState {
	switch t {
	case api.TierHigh, api.TierNormal:
		return api.StateRunning
	case api.TierLow:
		return api.StateLow
	case api.TierCritical, api.TierDead:
		return api.StateCritical
	case api.TierUnknown:
	}
	if was == api.StateLow || was == api.StateCritical {
		return was
	}
	return api.StateRunning
}

// Limits of spec-core-1 §1.5.
const (
	maxIdle   = 10 // turns in a row without a change to the world
	warnAt    = 3  // turns in a row of one pattern, or that only look
	sleepAt   = 6
	maxErrors = 5 // runs in a row that failed
)

// Pause is the least time between two cycles that nobody asked for (W-8).
const Pause = time.Second

// How long an agent sleeps, by why; spec-core-1 §1.5 and seed 000.
const (
	AfterNothing = 60 * time.Second  // it had nothing to do
	AfterHabit   = 60 * time.Second  // idle, repeating itself, or only looking at itself
	AfterCycle   = 120 * time.Second // the limit of turns in a run
	AfterErrors  = 300 * time.Second
	AfterNoModel = 300 * time.Second
	AfterBudget  = 60 * time.Second // when nobody says until when
	AfterPolicy  = 60 * time.Second // policy does not answer
)

// Blocked is how long an agent sleeps after a goal was refused because one is
// active, for the n-th time in a row, from 1: 2, 4, 8 and at most 10 minutes.
func Blocked(n int) time.Duration {
	return min(2*time.Minute<<min(max(n, 1)-1, 8), 10*time.Minute)
}

// Call is what a tool call says about its agent's habits.
type Call struct {
	Tool             string
	Mutating, Status bool // of the tool
	Blocked          bool // the call was create_goal, and refused because a goal is active
	Created          bool // the call was create_goal, and not refused
}

// Turn is what a turn says about them.
type Turn struct {
	Asked bool // somebody else's words came into it: what was before does not count
	Calls []Call
}

// Verdict is what follows from a turn.
type Verdict struct {
	Notice string        // for the agent's next turn; "" is none
	Why    string        // it must sleep now, and why; "" goes on
	For    time.Duration // that long
}

// Observe counts a turn and says what follows. A notice is no input: it does not
// keep the agent awake.
func Observe(c api.Counters, t Turn) (api.Counters, Verdict) {
	mutating, status, blocked, created := false, len(t.Calls) > 0, false, false
	names := make([]string, len(t.Calls))
	for i, call := range t.Calls {
		names[i] = call.Tool
		mutating = mutating || call.Mutating
		status = status && call.Status
		blocked = blocked || call.Blocked
		created = created || call.Created
	}
	slices.Sort(names)
	pattern := strings.Join(names, ",")
	if t.Asked {
		c.Idle, c.Repeated, c.Maintenance, c.Pattern = 0, 0, 0, ""
	} else {
		c.Idle++
	}
	if mutating {
		c.Idle = 0
	}
	switch pattern {
	case "": // words alone neither repeat anything nor break a row
	case c.Pattern:
		c.Repeated++
	default:
		c.Pattern, c.Repeated = pattern, 1
	}
	switch {
	case status:
		c.Maintenance++
	case pattern != "":
		c.Maintenance = 0
	}
	if created {
		c.Blocked = 0
	}

	switch {
	case blocked:
		c.Blocked++
		c.Idle, c.Repeated, c.Maintenance, c.Pattern = 0, 0, 0, ""
		return c, Verdict{Why: "a goal is active already", For: Blocked(c.Blocked)}
	case c.Repeated >= sleepAt:
		c.Idle, c.Repeated, c.Maintenance, c.Pattern = 0, 0, 0, ""
		return c, Verdict{Why: fmt.Sprintf("called %s %d times in a row, after a warning", pattern, sleepAt), For: AfterHabit}
	case c.Maintenance >= sleepAt:
		c.Idle, c.Repeated, c.Maintenance, c.Pattern = 0, 0, 0, ""
		return c, Verdict{Why: fmt.Sprintf("only looked at itself for %d turns, after a warning", sleepAt), For: AfterHabit}
	case c.Idle >= maxIdle:
		c.Idle = 0
		return c, Verdict{Why: fmt.Sprintf("changed nothing for %d turns", maxIdle), For: AfterHabit}
	case c.Repeated == warnAt && pattern != "":
		return c, Verdict{Notice: fmt.Sprintf("You have called %s %d times in a row. Do something else, or sleep: after %d times you are put to sleep.", pattern, warnAt, sleepAt)}
	case c.Maintenance == warnAt && status:
		return c, Verdict{Notice: fmt.Sprintf("For %d turns you have only looked at your own state. Work on something, or sleep: after %d such turns you are put to sleep.", warnAt, sleepAt)}
	}
	return c, Verdict{}
}

// Failed counts a run that failed, and says whether the agent must rest.
func Failed(c api.Counters) (api.Counters, Verdict) {
	c.Errors++
	if c.Errors < maxErrors {
		return c, Verdict{}
	}
	c.Errors = 0
	return c, Verdict{Why: fmt.Sprintf("%d runs in a row failed", maxErrors), For: AfterErrors}
}

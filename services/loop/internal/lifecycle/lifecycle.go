// Package lifecycle holds the rules of an agent's states: which state may follow which, and
// what follows from repeated behaviour over many turns (docs/reference/loop.md, Agent
// states, Loop detection and Sleep). Its functions are pure. The package must not do I/O
// or store anything: the caller stores the counters in the transaction that stores the
// turn.
package lifecycle

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
	api.StateDead:     {api.StateSleeping}, // only by funding (docs/reference/loop.md, revived without funding)
}

// Allowed reports whether an agent may change from one state to another.
func Allowed(from, to api.AgentState) bool { return slices.Contains(after[from], to) }

// Awake reports whether an agent in this state is executing a run. It is false for a
// critical agent, which may be executing one or not; then a run may begin.
func Awake(s api.AgentState) bool {
	return s == api.StateWaking || s == api.StateRunning || s == api.StateLow
}

// StateAt returns the state of an agent during a run, by its tier. An unknown tier does
// not count as a low one: the state does not change (docs/reference/loop.md, unknown
// tier).
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

// Limits (docs/reference/loop.md, Loop detection).
const (
	maxIdle   = 10 // consecutive turns without a mutating call
	warnAt    = 3  // consecutive turns with the same tools, or with status tools only
	sleepAt   = 6
	maxErrors = 5 // consecutive runs that failed
)

// Pause is the least time between two runs that no input requested
// (docs/reference/loop.md, continuous wake).
const Pause = time.Second

// Durations of sleep, by the reason (docs/reference/loop.md, Sleep).
const (
	AfterNothing = 60 * time.Second  // there was nothing to do
	AfterHabit   = 60 * time.Second  // the agent was idle, repeated itself, or used status tools only
	AfterCycle   = 120 * time.Second // the run reached its limit of turns
	AfterErrors  = 300 * time.Second
	AfterNoModel = 300 * time.Second
	AfterBudget  = 60 * time.Second // the end of the exhausted budget's period is not known
	AfterPolicy  = 60 * time.Second // policy does not answer
)

// Blocked returns how long an agent sleeps after a goal was refused because another one
// is active, for the n-th consecutive time, from 1: 2, 4, 8 and at most 10 minutes.
func Blocked(n int) time.Duration {
	return min(2*time.Minute<<min(max(n, 1)-1, 8), 10*time.Minute)
}

// Call describes a tool call for [Observe].
type Call struct {
	Tool             string
	Mutating, Status bool // properties of the tool
	Blocked          bool // create_goal was refused because a goal is active
	Created          bool // create_goal was not refused
}

// Turn describes a turn for [Observe].
type Turn struct {
	Asked bool // it has an input of another principal, which resets the counters
	Calls []Call
}

// Verdict is the consequence of a turn or of a failed run.
type Verdict struct {
	Notice string        // for the agent's next turn; "": none
	Why    string        // reason why the agent must sleep now; "": it need not
	For    time.Duration // duration of the sleep
}

// Observe counts a turn and returns its consequence. A notice is no input: it does not
// reset the counters.
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
		c = Asked(c)
	} else {
		c.Idle++
	}
	if mutating {
		c.Idle = 0
	}
	switch pattern {
	case "": // a turn without calls neither continues nor ends a repetition
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

// Asked returns the counters after an input of another principal.
func Asked(c api.Counters) api.Counters {
	c.Idle, c.Repeated, c.Maintenance, c.Pattern = 0, 0, 0, ""
	return c
}

// Failed counts a failed run and returns its consequence.
func Failed(c api.Counters) (api.Counters, Verdict) {
	c.Errors++
	if c.Errors < maxErrors {
		return c, Verdict{}
	}
	c.Errors = 0
	return c, Verdict{Why: fmt.Sprintf("%d runs in a row failed", maxErrors), For: AfterErrors}
}

package schedule

import (
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// MaxAhead is how far in the future an alarm may be; a schedule is for longer times.
const MaxAhead = 24 * time.Hour

// clockDifference is how much further in the future an alarm may be than [MaxAhead]: loop
// limits a sleep to 24 h and a minute by its own clock, which may be a minute ahead of this
// one.
const clockDifference = 2 * time.Minute

// Alarm wakes an agent once. An agent has at most one.
type Alarm struct {
	ID     string // idempotency key of SetAlarm
	Agent  string
	At     time.Time
	Reason string
	Set    time.Time // when it was set
}

// Check returns an error if an alarm that is set now is invalid. A time in the past is
// valid: such an alarm fires immediately.
func (a Alarm) Check(now time.Time) error {
	switch {
	case !api.ValidKey(a.Agent):
		return fmt.Errorf("agent %q is not an agent's id", a.Agent)
	case a.ID == "" || !validText(a.ID):
		return fmt.Errorf("an alarm needs an id of 1 to %d bytes of plain UTF-8", MaxText)
	case a.At.UnixMicro() <= 0:
		return fmt.Errorf("an alarm needs a time, in Unix microseconds")
	case a.At.After(now.Add(MaxAhead + clockDifference)):
		return fmt.Errorf("%s is more than %s away", a.At.UTC().Format(time.RFC3339), MaxAhead)
	}
	return nil
}

// Agent is the state of an agent that heartbeat stores.
type Agent struct {
	ID      string
	Address string
	State   api.AgentState
	Seq     int64     // of its latest change
	Changed time.Time // time of that change
}

// Stale reports whether an alarm that was set at the time set is obsolete: the agent has died
// since.
func (a Agent) Stale(set time.Time) bool {
	return a.State == api.StateDead && a.Changed.After(set)
}

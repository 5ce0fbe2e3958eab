package beat

import (
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// MaxAhead is how far away an alarm may be; who sleeps longer wants a schedule.
const MaxAhead = 24 * time.Hour

// Alarm wakes an agent once. An agent has at most one.
type Alarm struct {
	ID     string // who sets it again under this id has set it already
	Agent  string
	At     time.Time
	Reason string
	Set    time.Time // when it was set
}

// Check says what is wrong with an alarm that is to be set now. A time in the
// past is not wrong: such an alarm fires at once.
func (a Alarm) Check(now time.Time) error {
	switch {
	case !api.ValidKey(a.Agent):
		return fmt.Errorf("agent %q is not an agent's id", a.Agent)
	case a.ID == "" || !sayable(a.ID):
		return fmt.Errorf("an alarm needs an id of 1 to %d bytes of plain UTF-8", MaxText)
	case a.At.UnixMicro() <= 0:
		return fmt.Errorf("an alarm needs a time, in Unix microseconds")
	case a.At.After(now.Add(MaxAhead)):
		return fmt.Errorf("%s is more than %s away", a.At.UTC().Format(time.RFC3339), MaxAhead)
	}
	return nil
}

// Agent is what the heartbeat knows of an agent.
type Agent struct {
	ID      string
	Address string
	State   api.AgentState
	Seq     int64     // of its latest change
	Changed time.Time // when that was
}

// Stale reports whether an alarm for a time is pointless, which was set at another:
// the agent was awake before that time, and it was not the setting itself that kept
// it so. An agent sets its alarm while it still runs, so being awake alone says
// nothing; and one that awoke since may have been woken by this very alarm, whose
// clock died before it recorded that.
func (a Agent) Stale(set, at time.Time) bool {
	return a.State != api.StateSleeping && a.Changed.After(set) && (a.Changed.Before(at) || a.State == api.StateDead)
}

// Package beat holds the rules of time: when a schedule is due, when an alarm
// still matters, and the clock that fires both. It must not know how a wake
// reaches an agent, nor where anything is stored.
package beat

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/robfig/cron/v3"

	"github.com/anima-run/anima/pkg/api"
)

// Limits of a schedule. An AGENT.md may have 32 entries; the rest is for those
// who speak to the service directly.
const (
	MaxBeats = 64   // entries of one agent
	MaxName  = 64   // bytes of an entry's name, so that its causes are bucket keys
	MaxText  = 1000 // bytes of a reason or an alarm's id
)

// Beat is an entry of an agent's schedule. Times are UTC; a zero Last means
// that it has not run yet.
type Beat struct {
	Agent  string
	Name   string
	Cron   string // five fields, one space between them
	Reason string
	Next   time.Time // when it is due; in the past after an outage
	Last   time.Time // when it fired
	Runs   int64
}

// Check completes the entries of an agent's schedule at the time now: Cron is
// brought into one form and Next is set. The faults, one a line, are all there
// are; entries are valid only if there is none.
func Check(agent string, beats []Beat, now time.Time) (checked []Beat, faults []string) {
	if !api.ValidKey(agent) {
		faults = append(faults, fmt.Sprintf("agent %q is not an agent's id", agent))
	}
	if len(beats) > MaxBeats {
		return nil, append(faults, fmt.Sprintf("%d entries, at most %d", len(beats), MaxBeats))
	}
	seen := map[string]bool{}
	for i, b := range beats {
		where := fmt.Sprintf("entry %d (%s)", i, b.Name)
		if !api.ValidKey(b.Name) || len(b.Name) > MaxName {
			faults = append(faults, fmt.Sprintf("entry %d: name %q is not 1 to %d of letters, digits, - and _", i, b.Name, MaxName))
		}
		if seen[b.Name] {
			faults = append(faults, where+": the name is there twice")
		}
		seen[b.Name] = true
		if !sayable(b.Reason) {
			faults = append(faults, fmt.Sprintf("%s: reason is longer than %d bytes, or not plain UTF-8", where, MaxText))
		}
		b.Agent, b.Cron = agent, strings.Join(strings.Fields(b.Cron), " ")
		next, err := Following(b.Cron, now)
		if err != nil {
			faults = append(faults, where+": "+err.Error())
		}
		b.Next, b.Last, b.Runs = next, time.Time{}, 0
		checked = append(checked, b)
	}
	return checked, faults
}

// Clip makes any text a reason: a model's may be long.
func Clip(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "")
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText-len("…")], "") + "…"
}

// sayable says whether a reason is short enough and can be a column of type text.
func sayable(s string) bool {
	return len(s) <= MaxText && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// Following is the first time after now at which a cron expression of five
// fields fires, in UTC. An expression that never fires is an error.
func Following(expr string, now time.Time) (time.Time, error) {
	// The parser also takes @every and time zones; a schedule is five fields in
	// UTC, so that it means the same on every machine.
	if n := len(strings.Fields(expr)); n != 5 {
		return time.Time{}, fmt.Errorf("cron %q has %d fields, wants 5: minute, hour, day of month, month, day of week", expr, n)
	}
	if strings.ContainsAny(expr, "@=") {
		return time.Time{}, fmt.Errorf("cron %q: only the five fields are known, in UTC", expr)
	}
	schedule, err := cron.ParseStandard(expr)
	if err != nil {
		return time.Time{}, fmt.Errorf("cron %q: %w", expr, err)
	}
	next := schedule.Next(now.UTC())
	if next.IsZero() {
		return time.Time{}, fmt.Errorf("cron %q never fires; check day of month and month", expr)
	}
	return next, nil
}

// Due is something whose time has come.
type Due struct {
	Agent  string
	Name   string // of the entry; AlarmName for an alarm
	Alarm  string // id of the alarm, "" for an entry
	Cron   string // of the entry
	Reason string
	At     time.Time // the time it was due
	// Stale alarms fire nothing: the agent was woken by something else since.
	Stale bool
}

// AlarmName is what an alarm is called in the history.
const AlarmName = "alarm"

// Cause is the name of the wake that d makes. It depends on nothing but what was
// due, so that a second try, by this replica or another, is the same wake.
func (d Due) Cause() string {
	if d.Alarm != "" {
		return "alarm-" + strconv.FormatInt(d.At.UnixMicro(), 10)
	}
	return "cron-" + d.Name + "-" + strconv.FormatInt(d.At.Unix()/60, 10)
}

// Fired is a due thing that has been dealt with.
type Fired struct {
	Due
	When time.Time // when the clock dealt with it
	Next time.Time // of an entry: when it is due again
}

// Tick is a line of the history.
type Tick struct {
	Agent string
	Name  string
	Due   time.Time
	At    time.Time
}

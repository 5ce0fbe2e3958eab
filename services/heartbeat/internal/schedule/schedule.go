// Package schedule contains the rules of schedules and alarms: when a schedule is due, when
// an alarm is obsolete, and the clock that fires both. It must not depend on how a wake
// is delivered or where the data is stored.
package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/robfig/cron/v3"

	"github.com/anima-run/anima/pkg/api"
)

// Limits of a schedule. An AGENT.md may have 32 entries; the remaining ones are for
// callers of the service's API.
const (
	MaxEntries = 64   // entries of one agent
	MaxName    = 64   // bytes of an entry's name, so that its causes are bucket keys
	MaxText    = 1000 // bytes of a reason or an alarm's id
)

// Entry is an entry of an agent's schedule. Times are UTC; a zero Last means that the
// entry has not fired yet.
type Entry struct {
	Agent  string
	Name   string
	Cron   string // five fields, separated by single spaces
	Reason string
	Next   time.Time // next due time; in the past after an outage
	Last   time.Time // time of the last firing
	Runs   int64
}

// Check normalises the entries of an agent's schedule at the time now: it brings Cron
// into one form and sets Next. It returns all faults, one for each line; the entries are
// valid only if there are none.
func Check(agent string, entries []Entry, now time.Time) (checked []Entry, faults []string) {
	if !api.ValidKey(agent) {
		faults = append(faults, fmt.Sprintf("agent %q is not an agent's id", agent))
	}
	if len(entries) > MaxEntries {
		return nil, append(faults, fmt.Sprintf("%d entries, at most %d", len(entries), MaxEntries))
	}
	seen := map[string]bool{}
	for i, b := range entries {
		where := fmt.Sprintf("entry %d (%s)", i, b.Name)
		if !api.ValidKey(b.Name) || len(b.Name) > MaxName {
			faults = append(faults, fmt.Sprintf("entry %d: name %q is not 1 to %d of letters, digits, - and _", i, b.Name, MaxName))
		}
		if seen[b.Name] {
			faults = append(faults, where+": the name is there twice")
		}
		seen[b.Name] = true
		if !validText(b.Reason) {
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

// Clip turns any text into a valid reason: it removes invalid bytes and truncates it,
// because a model may write a longer one.
func Clip(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "")
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText-len("…")], "") + "…"
}

// validText reports whether a reason is short enough and can be stored in a column of type
// text.
func validText(s string) bool {
	return len(s) <= MaxText && utf8.ValidString(s) && !strings.ContainsRune(s, 0)
}

// Following returns the first time after now at which a cron expression of five fields
// fires, in UTC. It returns an error for an expression that never fires.
func Following(expr string, now time.Time) (time.Time, error) {
	// package cron also accepts @every and time zones; a schedule has five fields in UTC,
	// so that it means the same on every machine.
	clean, err := api.ParseCron(expr)
	if err != nil {
		return time.Time{}, fmt.Errorf("cron %q: %w", expr, err)
	}
	schedule, err := cron.ParseStandard(clean)
	if err != nil {
		return time.Time{}, fmt.Errorf("cron %q: %w", expr, err)
	}
	next := schedule.Next(now.UTC())
	if next.IsZero() {
		return time.Time{}, fmt.Errorf("cron %q never fires; check day of month and month", expr)
	}
	return next, nil
}

// Micros returns t in Unix microseconds; 0 for the zero time.
func Micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Due is an entry or an alarm that is due.
type Due struct {
	Agent  string
	Name   string // of the entry; AlarmName for an alarm
	Alarm  string // id of the alarm, "" for an entry
	Cron   string // of the entry
	Reason string
	At     time.Time // the time at which it was due
	// Stale alarms cause no wake: see [Agent.Stale].
	Stale bool
	// Postponed is set for an alarm whose agent was awake at its time.
	Postponed bool
}

// AlarmName is the name of alarms in the history.
const AlarmName = "alarm"

// Cause returns the name of the wake that d causes. It depends only on what was due, so
// that a retry, by this replica or another, results in the same wake.
func (d Due) Cause() string {
	if d.Alarm != "" {
		return "alarm-" + strconv.FormatInt(d.At.UnixMicro(), 10)
	}
	return "cron-" + d.Name + "-" + strconv.FormatInt(d.At.Unix()/60, 10)
}

// Fired is a Due that the clock has processed.
type Fired struct {
	Due
	When time.Time // time at which the clock processed it
	Next time.Time // of an entry: the next due time
}

// Tick is an entry of the history.
type Tick struct {
	Agent string
	Name  string
	Due   time.Time
	At    time.Time
}

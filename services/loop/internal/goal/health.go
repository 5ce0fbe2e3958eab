package goal

import (
	"cmp"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Signal is a fault of a worker (docs/reference/goals.md, Health).
type Signal string

// The signals.
const (
	ProcessCrashed   Signal = "process_crashed"
	HeartbeatMissing Signal = "heartbeat_missing"
	StuckOnTask      Signal = "stuck_on_task"
	OutOfCredits     Signal = "out_of_credits"
	ErrorLoop        Signal = "error_loop"
)

// Worker describes an agent that executes tasks. An unknown balance does not count as
// low (docs/reference/goals.md, unknown balance).
type Worker struct {
	Status  string // "": no fault is known
	Silent  bool   // it has never sent a heartbeat
	Seen    int64  // time of its last heartbeat
	Balance api.Micros
	Unknown bool // the balance is not known, which does not count as low
	Tasks   []Task
}

// Bounds of the signals (docs/reference/goals.md, Health).
const (
	crashedAfter = 45 * time.Minute
	stuckAfter   = 15 * time.Minute
	grace        = 2 * time.Minute
	poorBelow    = 10 * api.Cent
	fundTo       = 250 * api.Cent
	fundLeast    = 50 * api.Cent
	errorTasks   = 3
	errorWindow  = 6 * time.Hour
	errorLast    = 25
)

// Diagnose returns the faults of a worker, each once.
func Diagnose(w Worker, at int64) (out []Signal) {
	age := time.Duration(at-w.Seen) * time.Microsecond
	gone := !w.Silent && age >= crashedAfter
	quiet := !w.Silent && !gone && age >= stuckAfter
	for _, c := range []struct {
		signal Signal
		there  bool
	}{
		{ProcessCrashed, gone || slices.Contains([]string{"dead", "failed", "stopped", "unknown", "unhealthy"}, w.Status)},
		{HeartbeatMissing, w.Silent},
		{StuckOnTask, slices.ContainsFunc(w.Tasks, func(t Task) bool { return quiet && active(t) || stuck(t, at) })},
		{OutOfCredits, !w.Unknown && w.Balance < poorBelow},
		{ErrorLoop, looping(w.Tasks, at)},
	} {
		if c.there {
			out = append(out, c.signal)
		}
	}
	return out
}

func active(t Task) bool { return t.Status == api.TaskAssigned || t.Status == api.TaskRunning }

// stuck reports whether a task has been running or queued for too long.
func stuck(t Task, at int64) bool {
	in := time.Duration(at-t.StartedAt) * time.Microsecond
	switch {
	case t.Status == api.TaskRunning:
		return in > max(time.Duration(t.TimeoutMS)*time.Millisecond, stuckAfter)+grace
	case t.Status == api.TaskAssigned && t.StartedAt > 0:
		return in > stuckAfter
	}
	return false
}

// looping reports whether at least 60 % of the finished tasks failed. It counts those of
// the last six hours, or the last 25 if fewer than three finished in that time.
func looping(tasks []Task, at int64) bool {
	var done, recent []Task
	for _, t := range tasks {
		if t.Status != api.TaskCompleted && t.Status != api.TaskFailed {
			continue
		}
		done = append(done, t)
		if time.Duration(at-t.EndedAt)*time.Microsecond <= errorWindow {
			recent = append(recent, t)
		}
	}
	if len(recent) < errorTasks {
		slices.SortStableFunc(done, func(a, b Task) int { return cmp.Compare(a.EndedAt, b.EndedAt) })
		recent = done[max(0, len(done)-errorLast):]
	}
	failed := 0
	for _, t := range recent {
		if t.Status == api.TaskFailed {
			failed++
		}
	}
	return len(recent) >= errorTasks && failed*10 >= len(recent)*6
}

// Remedy is a measure against a fault.
type Remedy string

// The remedies.
const (
	Stop     Remedy = "stop"
	Fund     Remedy = "fund"
	Restart  Remedy = "restart"
	Reassign Remedy = "reassign"
)

// Heal returns the measures against the signals, and the amount of a funding. A worker
// with an error loop is only stopped.
func Heal(w Worker, signals []Signal) (remedies []Remedy, fund api.Micros) {
	if slices.Contains(signals, ErrorLoop) {
		return []Remedy{Stop}, 0 // further funding and work would be wasted
	}
	for _, s := range signals {
		switch s {
		case OutOfCredits:
			remedies, fund = append(remedies, Fund), max(fundLeast, fundTo-w.Balance)
		case ProcessCrashed, HeartbeatMissing:
			if !slices.Contains(remedies, Restart) {
				remedies = append(remedies, Restart)
			}
		case StuckOnTask:
			remedies = append(remedies, Reassign)
		case ErrorLoop:
		}
	}
	return remedies, fund
}

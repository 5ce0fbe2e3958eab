package goal

import (
	"cmp"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Signal is what is wrong with who works on tasks, spec-core-5 §8.8.
type Signal string

// The signals.
const (
	ProcessCrashed   Signal = "process_crashed"
	HeartbeatMissing Signal = "heartbeat_missing"
	StuckOnTask      Signal = "stuck_on_task"
	OutOfCredits     Signal = "out_of_credits"
	ErrorLoop        Signal = "error_loop"
)

// Worker is who works on tasks, as seen from outside.
type Worker struct {
	Status  string // "" is not known to be anything bad
	Silent  bool   // it has given no sign of life, ever
	Seen    int64  // when it did last
	Balance api.Micros
	Unknown bool // the balance is not known, which is not poor (W-7)
	Tasks   []Task
}

// Bounds of spec-core-5 §8.8.
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

// Diagnose finds what is wrong with a worker, each thing once.
func Diagnose(w Worker, at int64) []Signal {
	var out []Signal
	add := func(s Signal) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if slices.Contains([]string{"dead", "failed", "stopped", "unknown", "unhealthy"}, w.Status) {
		add(ProcessCrashed)
	}
	age := time.Duration(at-w.Seen) * time.Microsecond
	switch {
	case w.Silent:
		add(HeartbeatMissing)
	case age >= crashedAfter:
		add(ProcessCrashed)
	case age >= stuckAfter && slices.ContainsFunc(w.Tasks, active):
		add(StuckOnTask)
	}
	if slices.ContainsFunc(w.Tasks, func(t Task) bool { return stuck(t, at) }) {
		add(StuckOnTask)
	}
	if !w.Unknown && w.Balance < poorBelow {
		add(OutOfCredits)
	}
	if looping(w.Tasks, at) {
		add(ErrorLoop)
	}
	return out
}

func active(t Task) bool { return t.Status == api.TaskAssigned || t.Status == api.TaskRunning }

// stuck says whether a task has been in one place for too long.
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

// looping says whether most of the finished tasks failed: of those of the last six
// hours if there are enough, otherwise of the last 25.
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

// Remedy is what helps against a signal.
type Remedy string

// The remedies.
const (
	Stop     Remedy = "stop"
	Fund     Remedy = "fund"
	Restart  Remedy = "restart"
	Reassign Remedy = "reassign"
)

// Heal says what helps, the first thing alone when a worker is to be stopped, and
// how much money it takes.
func Heal(w Worker, signals []Signal) (remedies []Remedy, fund api.Micros) {
	if slices.Contains(signals, ErrorLoop) {
		return []Remedy{Stop}, 0 // money and work would only be burnt
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

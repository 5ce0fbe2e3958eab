package schedule

import (
	"context"
	"time"
)

// Timeline is the part of the store that the clock uses. It is safe for concurrent use,
// also by several replicas.
type Timeline interface {
	// Due returns at most limit things with a time not after now, the oldest first.
	// Entries of agents that are unknown or dead are not due; when that changes, a missed
	// entry is due once. An alarm does not require a known agent. It is not due while its
	// agent is awake for another cause, and is due when the agent sleeps again.
	Due(ctx context.Context, now time.Time, limit int) ([]Due, error)
	// Next returns the earliest time at which something will be due, or the zero time if
	// there is nothing.
	Next(ctx context.Context) (time.Time, error)
	// Fire records all of fired, with their history and announcements, in one
	// transaction, and returns those that it recorded. It omits those that another
	// replica has recorded, or that were replaced in the meantime. Stale alarms are
	// marked done and have no history.
	Fire(ctx context.Context, fired []Fired) ([]Fired, error)
	// Prune deletes a part of the history before a time, in one short transaction, and
	// reports whether there may be more.
	Prune(ctx context.Context, before time.Time) (more bool, err error)
}

// Store stores agents, schedules, alarms and the history. Times are returned in UTC with
// a precision of a microsecond.
type Store interface {
	Timeline

	// HasAgent reports whether a state of the agent was ever stored.
	HasAgent(ctx context.Context, agent string) (bool, error)
	// Poor returns at most limit agents whose state says that they cannot pay, critical or
	// dead, by id, from the first id after the given one.
	Poor(ctx context.Context, after string, limit int) ([]string, error)
	// SetSchedule replaces the schedule of an agent by checked entries. An existing entry
	// keeps Last and Runs, and also Next unless its cron expression changed.
	SetSchedule(ctx context.Context, agent string, entries []Entry) error
	// Schedule returns the entries of an agent, or of all agents for "", sorted by agent
	// and name.
	Schedule(ctx context.Context, agent string) ([]Entry, error)
	// Restore stores an agent that was lost with the database at a time: its state, unless a
	// later one is stored; checked entries, unless it has entries; and its alarm, unless it
	// has one of the same time, or one that was set since. An alarm without an ID is none.
	Restore(ctx context.Context, a Agent, entries []Entry, alarm Alarm, lost time.Time) error
	// SetAlarm sets the alarm of an agent and returns the stored one. It changes nothing
	// if the agent's latest alarm has the same id, even after that has fired.
	SetAlarm(ctx context.Context, a Alarm) (Alarm, error)
	// Ping stores the time of an agent's latest ping; an older one changes nothing.
	Ping(ctx context.Context, agent string, at time.Time) error
	// Record adds a tick with a cause to the history, unless the agent has one with this
	// cause, and returns the stored one.
	Record(ctx context.Context, cause string, t Tick) (Tick, error)
	// History returns the ticks of an agent, or of all agents for "", the latest first:
	// those not after until, without the first skip of them. A zero until means no bound.
	History(ctx context.Context, agent string, until time.Time, skip, limit int) ([]Tick, error)
}

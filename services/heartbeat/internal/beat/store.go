package beat

import (
	"context"
	"time"
)

// Timeline is what the clock reads and writes. It is safe for concurrent use, by
// several replicas too.
type Timeline interface {
	// Due returns at most limit things whose time is not after now, the oldest
	// first. Entries of agents that are unknown or dead wait until that changes,
	// and are then due once. Alarms do not need to know their agent.
	Due(ctx context.Context, now time.Time, limit int) ([]Due, error)
	// Next is the earliest time at which something will be due, zero if nothing
	// will.
	Next(ctx context.Context) (time.Time, error)
	// Fire records all of fired, their history and their announcement, together
	// or not at all, and returns those that it recorded: what another replica has
	// recorded before, or what was replaced meanwhile, is left out. Stale alarms
	// are done with and leave no history.
	Fire(ctx context.Context, fired []Fired) ([]Fired, error)
	// Prune forgets the history before a time.
	Prune(ctx context.Context, before time.Time) error
}

// Store keeps agents, schedules, alarms and the history. Times come back in UTC
// with the precision of a microsecond.
type Store interface {
	Timeline

	// HasAgent reports whether a state of the agent was ever kept.
	HasAgent(ctx context.Context, agent string) (bool, error)
	// SetSchedule replaces the schedule of an agent by checked entries. An entry
	// that was there keeps Last and Runs, and Next too unless its cron changed.
	SetSchedule(ctx context.Context, agent string, beats []Beat) error
	// Schedule returns an agent's entries, or everyone's for "", by agent and name.
	Schedule(ctx context.Context, agent string) ([]Beat, error)
	// SetAlarm sets the alarm of an agent and returns the one that is set. The id
	// that the agent's latest alarm has changes nothing, even after it fired.
	SetAlarm(ctx context.Context, a Alarm) (Alarm, error)
	// Ping keeps the latest sign of life of an agent; an older one changes nothing.
	Ping(ctx context.Context, agent string, at time.Time) error
	// LastPing is the latest sign of life, zero if there was none.
	LastPing(ctx context.Context, agent string) (time.Time, error)
	// History returns the latest ticks of an agent, or of everyone for "", the
	// latest first: those not after until, without the first skip of them. The zero
	// time is no bound.
	History(ctx context.Context, agent string, until time.Time, skip, limit int) ([]Tick, error)
}

package api

// Messages of heartbeat, which owns schedules, alarms and all wakes
// (docs/reference/heartbeat.md, Wakes).
//
// History: v1 2026-11 first version.

// Beat describes one entry of an agent's schedule.
type Beat struct {
	Name   string `json:"name"`
	Cron   string `json:"cron"` // five fields, UTC
	Reason string `json:"reason,omitempty"`
	Next   int64  `json:"next,omitempty"` // only in answers
	Last   int64  `json:"last,omitempty"` // only in answers
	Runs   int64  `json:"runs,omitempty"` // only in answers
}

// SetSchedule replaces an agent's schedule. Entries that remain keep the time of their
// last run, so a restart or a repeated request starts no run. The answer is the
// [Schedule]. Errors: Invalid with every invalid entry in Details.
type SetSchedule struct {
	Agent string `json:"agent"`
	Beats []Beat `json:"beats"`
}

// GetSchedule requests the [Schedule] of an agent; Agent "" means all agents.
type GetSchedule struct {
	Agent string `json:"agent,omitempty"`
}

// Schedule holds the schedule entries of one agent or of all agents.
type Schedule struct {
	Entries []ScheduleEntry `json:"entries"`
}

// ScheduleEntry is a [Beat] with its agent.
type ScheduleEntry struct {
	Agent string `json:"agent"`
	Beat  Beat   `json:"beat"`
}

// SetAlarm sets the alarm of an agent, which wakes it once. An agent has one alarm:
// another SetAlarm replaces it, and the same one again changes nothing. The answer is
// the [Alarm]. Errors: Invalid (At more than 24 h ahead).
type SetAlarm struct {
	ID     string `json:"id"` // idempotency key: turn and index of the sleep call
	Agent  string `json:"agent"`
	At     int64  `json:"at"`
	Reason string `json:"reason,omitempty"`
}

// Alarm describes the alarm of an agent.
type Alarm struct {
	Agent string `json:"agent"`
	At    int64  `json:"at"`
}

// RequestWake wakes an agent now, with the creator as principal. It is idempotent by
// Cause: while a wake of the cause is pending, another request returns it. The answer
// is the [Wake]. Errors: NotFound (the agent is unknown to heartbeat), Invalid.
type RequestWake struct {
	Agent  string `json:"agent"`
	Cause  string `json:"cause"`
	Reason string `json:"reason,omitempty"`
}

// RunBeat wakes an agent now as an entry of its schedule would: with the reason of the
// entry and heartbeat as principal. The next time of the entry does not change. It is
// idempotent by ID, which heartbeat keeps as long as its history: a repeated request
// returns the same wake and starts no other run. The answer is the [Wake]. Errors:
// NotFound (the agent has no such entry), Conflict with ReasonKeyTaken (the ID was used
// for another entry), Invalid (ID).
type RunBeat struct {
	Agent string `json:"agent"`
	Name  string `json:"name"`
	ID    string `json:"id"`
}

// ListTicks requests [Ticks], the latest first; Limit 0 means 50. Errors: Invalid
// (limit, After).
type ListTicks struct {
	Agent string `json:"agent,omitempty"`
	After string `json:"after,omitempty"` // Next of the previous page
	Limit int    `json:"limit,omitempty"`
}

// Ticks is a part of the history of heartbeat.
type Ticks struct {
	Ticks []Ticked `json:"ticks"`
	Page
}

// Ticked is published when a schedule entry or an alarm has fired.
type Ticked struct {
	Agent string `json:"agent"`
	Name  string `json:"name"`
	Due   int64  `json:"due"` // the time it was scheduled for
	At    int64  `json:"at"`  // the time it fired
}

// WakeRequested is published when heartbeat has put a wake into the bucket.
type WakeRequested struct {
	Wake Wake `json:"wake"`
}

// The implementations of [Message] by the types of this file.

func (SetSchedule) Subject() Subject     { return request(Heartbeat, "set_schedule") }
func (GetSchedule) Subject() Subject     { return request(Heartbeat, "get_schedule") }
func (SetAlarm) Subject() Subject        { return request(Heartbeat, "set_alarm") }
func (RequestWake) Subject() Subject     { return request(Heartbeat, "request_wake") }
func (RunBeat) Subject() Subject         { return request(Heartbeat, "run_beat") }
func (ListTicks) Subject() Subject       { return request(Heartbeat, "list_ticks") }
func (m Ticked) Subject() Subject        { return event(Heartbeat, "ticked", m.Agent) }
func (m WakeRequested) Subject() Subject { return event(Heartbeat, "wake_requested", m.Wake.Agent) }

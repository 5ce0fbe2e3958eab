package api

// heartbeat owns time: schedules, alarms and every wake (design §3).
//
// History: v1 2026-11 first version.

// Beat is one entry of an agent's schedule.
type Beat struct {
	Name   string `json:"name"`
	Cron   string `json:"cron"` // five fields, UTC
	Reason string `json:"reason,omitempty"`
	Next   int64  `json:"next,omitempty"` // only in answers
	Last   int64  `json:"last,omitempty"` // only in answers
	Runs   int64  `json:"runs,omitempty"` // only in answers
}

// SetSchedule replaces an agent's schedule: entries that stay keep their last
// run, so a restart or a second apply fires nothing. Answers [Schedule].
// Errors: Invalid with every bad entry in Details.
type SetSchedule struct {
	Agent string `json:"agent"`
	Beats []Beat `json:"beats"`
}

// Subject of the message.
func (SetSchedule) Subject() Subject { return request(Heartbeat, "set_schedule") }

// GetSchedule answers [Schedule]; Agent "" means everyone's.
type GetSchedule struct {
	Agent string `json:"agent,omitempty"`
}

// Subject of the message.
func (GetSchedule) Subject() Subject { return request(Heartbeat, "get_schedule") }

// Schedule is what will wake whom.
type Schedule struct {
	Entries []ScheduleEntry `json:"entries"`
}

// ScheduleEntry is a beat of an agent.
type ScheduleEntry struct {
	Agent string `json:"agent"`
	Beat  Beat   `json:"beat"`
}

// SetAlarm wakes an agent once, at a time. An agent has one alarm: a later
// SetAlarm replaces it, the same one again changes nothing. Answers [Alarm].
// Errors: Invalid (At more than 24 h away).
type SetAlarm struct {
	ID     string `json:"id"` // idempotency key: turn and index of the sleep call
	Agent  string `json:"agent"`
	At     int64  `json:"at"`
	Reason string `json:"reason,omitempty"`
}

// Subject of the message.
func (SetAlarm) Subject() Subject { return request(Heartbeat, "set_alarm") }

// Alarm is an alarm that is set.
type Alarm struct {
	Agent string `json:"agent"`
	At    int64  `json:"at"`
}

// RequestWake wakes an agent now, for its creator. Cause makes it idempotent: while
// a wake of this cause waits, another one is the same. Answers [Wake].
// Errors: NotFound (heartbeat knows no such agent), Invalid.
type RequestWake struct {
	Agent  string `json:"agent"`
	Cause  string `json:"cause"`
	Reason string `json:"reason,omitempty"`
}

// Subject of the message.
func (RequestWake) Subject() Subject { return request(Heartbeat, "request_wake") }

// RunBeat wakes an agent now as an entry of its schedule would: with the entry's
// reason and the heartbeat's authority. The entry's own time stays. ID makes it
// idempotent: while the wake of this ID waits, another one is the same. Answers
// [Wake]. Errors: NotFound (the agent has no such entry), Invalid (ID).
type RunBeat struct {
	Agent string `json:"agent"`
	Name  string `json:"name"`
	ID    string `json:"id"`
}

// Subject of the message.
func (RunBeat) Subject() Subject { return request(Heartbeat, "run_beat") }

// ListTicks answers [Ticks], the latest first; Limit 0 means 50. Errors: Invalid
// (limit, After).
type ListTicks struct {
	Agent string `json:"agent,omitempty"`
	After string `json:"after,omitempty"` // Next of the page before
	Limit int    `json:"limit,omitempty"`
}

// Subject of the message.
func (ListTicks) Subject() Subject { return request(Heartbeat, "list_ticks") }

// Ticks is a part of the heartbeat's history.
type Ticks struct {
	Ticks []Ticked `json:"ticks"`
	Page
}

// Ticked says that a scheduled entry or an alarm was due and fired.
type Ticked struct {
	Agent string `json:"agent"`
	Name  string `json:"name"`
	Due   int64  `json:"due"` // the time it was scheduled for
	At    int64  `json:"at"`  // the time it fired
}

// Subject of the message.
func (m Ticked) Subject() Subject { return event(Heartbeat, "ticked", m.Agent) }

// WakeRequested says that a wake was put into the bucket.
type WakeRequested struct {
	Wake Wake `json:"wake"`
}

// Subject of the message.
func (m WakeRequested) Subject() Subject { return event(Heartbeat, "wake_requested", m.Wake.Agent) }

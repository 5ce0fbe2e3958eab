package heartbeat

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// tools returns the tools of heartbeat for agents.
func (h *handlers) tools() map[string]executor.Func {
	return map[string]executor.Func{"heartbeat_ping": h.ping, "modify_heartbeat": h.modify}
}

// hourly is the cron expression of a new entry without a schedule
// (docs/reference/heartbeat.md, Cron).
const hourly = "0 * * * *"

// modify changes one entry of the schedule and returns the schedule that is stored
// afterwards (docs/reference/heartbeat.md, ineffective schedule change). A concurrent
// change of the same agent's schedule between the read and the write may be lost. A
// repeated call after a crash changes nothing.
func (h *handlers) modify(ctx context.Context, c executor.Call) (string, error) {
	stored, err := h.store.Schedule(ctx, c.Agent)
	if err != nil {
		return "", err
	}
	name, action := c.Args.String("name"), c.Args.String("action")
	at := slices.IndexFunc(stored, func(b schedule.Entry) bool { return b.Name == name })
	m := api.SetSchedule{Agent: c.Agent, Beats: []api.Beat{}}
	for _, b := range stored {
		m.Beats = append(m.Beats, api.Beat{Name: b.Name, Cron: b.Cron, Reason: b.Reason})
	}
	gone := action == "remove" || !c.Args.Bool("enabled", true)
	switch {
	case gone && at < 0:
		return summary(stored), nil
	case gone:
		m.Beats = slices.Delete(m.Beats, at, at+1)
	case action == "update" && at < 0:
		return "", &api.Error{Code: api.NotFound, Message: fmt.Sprintf("there is no entry %q", name), Next: "add it"}
	default:
		entry := api.Beat{Name: name, Cron: hourly, Reason: name}
		if at >= 0 {
			entry = m.Beats[at]
		}
		if s := strings.TrimSpace(c.Args.String("schedule")); s != "" {
			entry.Cron = s
		}
		if s := c.Args.String("task"); s != "" {
			entry.Reason = schedule.Clip(s)
		}
		if at >= 0 {
			m.Beats[at] = entry
		} else {
			m.Beats = append(m.Beats, entry)
		}
	}
	if _, err := h.setSchedule(ctx, m); err != nil {
		return "", err
	}
	if stored, err = h.store.Schedule(ctx, c.Agent); err != nil {
		return "", err
	}
	return summary(stored), nil
}

// summary returns a schedule as text for the model.
func summary(entries []schedule.Entry) string {
	if len(entries) == 0 {
		return "your schedule is empty: nothing but messages and your own alarms wake you"
	}
	var b strings.Builder
	b.WriteString("your schedule, in UTC:\n")
	for _, e := range entries {
		fmt.Fprintf(&b, "%s: %s, next at %s, told %q\n", e.Name, e.Cron, e.Next.UTC().Format(time.RFC3339), e.Reason)
	}
	return b.String()
}

// ping records that the agent was active at the time of the completion.
func (h *handlers) ping(ctx context.Context, c executor.Call) (string, error) {
	at := time.UnixMicro(c.At).UTC()
	if err := h.store.Ping(ctx, c.Agent, at); err != nil {
		return "", err
	}
	entries, err := h.store.Schedule(ctx, c.Agent)
	if err != nil {
		return "", err
	}
	return "noted that you were alive at " + at.Format(time.RFC3339) + "; " + summary(entries), nil
}

package heartbeat

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// losses restores what loop stores of the agents if heartbeat's database was lost and the
// operator accepted the loss.
type losses struct {
	h   *handlers
	db  *sqldb.DB
	log *slog.Logger
}

// run restores the agents. It is idempotent and repeated after a crash, and while loop does
// not answer.
func (l losses) run(ctx context.Context) error {
	for {
		err := l.settle(ctx)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // the service is stopping
		}
		l.log.WarnContext(ctx, "schedules of an accepted loss not restored, retrying", "err", err)
		if wait.For(ctx, time.Second) != nil {
			return nil
		}
	}
}

func (l losses) settle(ctx context.Context) error {
	all, err := sqldb.Losses(ctx, l.db)
	if err != nil {
		return err
	}
	var until, lost int64
	for _, v := range all {
		if v.Settled == 0 {
			until = max(until, v.At)
			if host.LostDatabase(v.Fault) {
				lost = max(lost, v.At)
			}
		}
	}
	if until == 0 {
		return nil
	}
	if lost > 0 {
		if err := l.restore(ctx, time.UnixMicro(lost)); err != nil {
			return err
		}
	}
	return sqldb.SettleLosses(ctx, l.db, until, l.h.now().UnixMicro())
}

func (l losses) restore(ctx context.Context, lost time.Time) error {
	count := 0
	for after := ""; ; {
		page, err := bus.Call[api.Schedules](ctx, l.h.bus, api.ListSchedules{After: after})
		if err != nil {
			return err
		}
		for _, a := range page.Agents {
			if err := l.restoreAgent(ctx, a, lost); err != nil {
				return err
			}
			count++
		}
		if after = page.Next; after == "" {
			break
		}
	}
	l.log.WarnContext(ctx, "agents restored because of an accepted loss", "count", count)
	l.h.kick(ctx, l.h.now())
	return nil
}

// restoreAgent restores one agent. The alarm of a sleeping agent has the time until which it
// sleeps.
func (l losses) restoreAgent(ctx context.Context, a api.AgentSchedule, lost time.Time) error {
	entries, faults := schedule.Check(a.State.Agent, entriesOf(a.Beats), l.h.now().UTC())
	if len(faults) > 0 {
		l.log.ErrorContext(ctx, "schedule not restored", "agent", a.State.Agent, "faults", faults)
		entries = nil
	}
	var alarm schedule.Alarm
	if a.State.State == api.StateSleeping && a.State.SleepUntil > 0 {
		alarm = schedule.Alarm{
			ID: fmt.Sprintf("%s/lost/%d", a.State.Agent, a.State.SleepUntil), Agent: a.State.Agent, At: time.UnixMicro(a.State.SleepUntil).UTC(),
			Reason: schedule.Clip(a.State.Reason), Set: lost,
		}
	}
	return l.h.store.Restore(ctx, agentOf(a.State), entries, alarm, lost)
}

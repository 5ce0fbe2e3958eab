package sqlstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// postponed is the condition of alarms l, joined with their agents a, that are not due
// although their time has come: another cause woke the agent between the time at which the
// alarm was set and its time, and the agent is still awake. The run in progress replaces the
// alarm if it sets one; mail, for example, sets none. An agent that was woken at that time or
// later may have been woken by this alarm, before a crash of the clock that had not recorded
// it.
const postponed = `coalesce(a.state not in ('sleeping', 'dead') and a.changed_at > l.set_at and a.changed_at < l.at, false)`

// Due implements [schedule.Timeline].
func (s *Store) Due(ctx context.Context, now time.Time, limit int) ([]schedule.Due, error) {
	entries, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (d schedule.Due, err error) {
		var at int64
		err = row.Scan(&d.Agent, &d.Name, &d.Cron, &d.Reason, &at)
		d.At = moment(at)
		return d, err
	}, `select b.agent, b.name, b.cron, b.reason, b.next_at from beats b join agents a on a.id = b.agent
		where b.next_at <= $1 and a.state <> 'dead' order by b.next_at, b.agent, b.name limit $2`, schedule.Micros(now), limit)
	if err != nil {
		return nil, err
	}
	alarms, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (schedule.Due, error) {
		d := schedule.Due{Name: schedule.AlarmName}
		var a schedule.Agent
		var at, set, changed int64
		err := row.Scan(&d.Agent, &d.Alarm, &d.Reason, &at, &set, &a.ID, &a.State, &changed)
		a.Changed = moment(changed)
		d.At, d.Stale, d.Postponed = moment(at), a.Stale(moment(set)), a.Changed.After(moment(at))
		return d, err
	}, `select l.agent, l.id, l.reason, l.at, l.set_at, coalesce(a.id, ''), coalesce(a.state, ''), coalesce(a.changed_at, 0)
		from alarms l left join agents a on a.id = l.agent
		where l.done = 0 and l.at <= $1 and not `+postponed+` order by l.at, l.agent limit $2`, schedule.Micros(now), limit)
	if err != nil {
		return nil, err
	}
	due := slices.Concat(entries, alarms)
	slices.SortStableFunc(due, func(a, b schedule.Due) int { return a.At.Compare(b.At) })
	return due[:min(limit, len(due))], nil
}

// Next implements [schedule.Timeline].
func (s *Store) Next(ctx context.Context) (time.Time, error) {
	var next sqldb.Null[int64]
	err := s.db.QueryRowContext(ctx, `select min(at) from (
			select min(b.next_at) as at from beats b join agents a on a.id = b.agent where a.state <> $1
			union all select at from (select l.at from alarms l left join agents a on a.id = l.agent
				where l.done = 0 and not `+postponed+` order by l.at limit 1) as soon
		) as times`, string(api.StateDead)).Scan(&next)
	return moment(next.V), err
}

// Fire implements [schedule.Timeline].
func (s *Store) Fire(ctx context.Context, fired []schedule.Fired) (recorded []schedule.Fired, err error) {
	// All replicas lock the rows in the same order, which prevents deadlocks.
	fired = slices.SortedFunc(slices.Values(fired), func(a, b schedule.Fired) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Alarm, b.Alarm))
	})
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		recorded = nil
		var loud []schedule.Fired
		for _, f := range fired {
			mine, err := advance(ctx, tx, f)
			if err != nil {
				return err
			}
			if !mine {
				continue
			}
			recorded = append(recorded, f)
			if f.Stale {
				continue
			}
			loud = append(loud, f)
			tx.Queue(ctx, insertTick, f.Agent, f.Cause(), f.Name, schedule.Micros(f.At), schedule.Micros(f.When))
		}
		if len(loud) == 0 {
			return nil
		}
		return s.announce(ctx, tx, loud)
	})
	return recorded, err
}

// advance marks f as fired, and reports whether it was still due.
func advance(ctx context.Context, tx *sqldb.Tx, f schedule.Fired) (bool, error) {
	var res sqldb.Result
	var err error
	if f.Alarm != "" {
		res, err = tx.ExecContext(ctx, "update alarms set done = 1 where agent = $1 and id = $2 and done = 0", f.Agent, f.Alarm)
	} else {
		res, err = tx.ExecContext(ctx, `update beats set next_at = $1, last_at = $2, runs = runs + 1
			where agent = $3 and name = $4 and next_at = $5`, schedule.Micros(f.Next), schedule.Micros(f.When), f.Agent, f.Name, schedule.Micros(f.At))
	}
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// prunedAtOnce is the number of ticks that one call of [Store.Prune] deletes.
const prunedAtOnce = 1000

// Prune implements [schedule.Timeline].
func (s *Store) Prune(ctx context.Context, before time.Time) (more bool, err error) {
	res, err := s.db.ExecContext(ctx, "delete from ticks where (agent, cause) in (select agent, cause from ticks where at < $1 order by at limit $2)",
		schedule.Micros(before), int64(prunedAtOnce))
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == prunedAtOnce, err
}

// Package sqlstore stores the agents, schedules, alarms and history of heartbeat in SQL,
// on SQLite and Postgres. It must not depend on the content or the recipients of
// announcements: it only ensures that they are in the same transaction as the change.
package sqlstore

import (
	"cmp"
	"context"
	"embed"
	"io/fs"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the store, including those of the outbox.
func Migrations() fs.FS { return outbox.WithMigrations(files) }

// Announce adds the events of fired to the outbox in tx. It is called again if the
// transaction is retried.
type Announce func(ctx context.Context, tx *sqldb.Tx, fired []schedule.Fired) error

// Store implements [schedule.Store].
type Store struct {
	db       *sqldb.DB
	announce Announce
}

var _ schedule.Store = (*Store)(nil)

// New returns the store in db, whose schema must be up to date.
func New(db *sqldb.DB, announce Announce) *Store { return &Store{db: db, announce: announce} }

// SeeAgents stores the latest states of agents in tx, and ignores older ones. stirred
// reports whether entries of schedules or alarms that waited for an agent may be due after
// the commit.
func (s *Store) SeeAgents(ctx context.Context, tx *sqldb.Tx, all []schedule.Agent) (stirred bool, err error) {
	all = latest(all)
	for some := range slices.Chunk(all, abreast) {
		s, err := see(ctx, tx, some)
		if err != nil {
			return false, err
		}
		stirred = stirred || s
	}
	return stirred, nil
}

func see(ctx context.Context, tx *sqldb.Tx, all []schedule.Agent) (stirred bool, err error) {
	ids := make([]any, len(all))
	for i, a := range all {
		ids[i] = a.ID
	}
	rows, err := sqldb.All(ctx, tx, scanState, `select id, state, seq from agents where id in `+sqldb.Placeholders(1, len(ids))+` order by id`+tx.ForUpdate(), ids...)
	if err != nil {
		return false, err
	}
	known := map[string]schedule.Agent{}
	for _, a := range rows {
		known[a.ID] = a
	}
	const columns = 5
	var fresh, asleep []any
	for _, a := range all {
		was, there := known[a.ID]
		if there && a.Seq <= was.Seq {
			continue
		}
		fresh = append(fresh, a.ID, a.Address, string(a.State), a.Seq, schedule.Micros(a.Changed))
		stirred = stirred || a.State != api.StateDead && (!there || was.State == api.StateDead)
		if there && a.State == api.StateSleeping {
			asleep = append(asleep, a.ID)
		}
	}
	if len(fresh) == 0 {
		return false, nil
	}
	if len(asleep) > 0 && !stirred {
		stirred, err = sqldb.One[bool](ctx, tx, `select exists (select 1 from alarms l join agents a on a.id = l.agent
			where l.done = 0 and l.agent in `+sqldb.Placeholders(1, len(asleep))+` and `+postponed+`)`, asleep...)
		if err != nil {
			return false, err
		}
	}
	tx.Queue(ctx, `insert into agents (id, address, state, seq, changed_at) values `+sqldb.Placeholders(len(fresh)/columns, columns)+`
		on conflict (id) do update set address = excluded.address, state = excluded.state, seq = excluded.seq,
		changed_at = excluded.changed_at where agents.seq < excluded.seq`, fresh...)
	return stirred, nil
}

// latest returns the latest state of each agent, sorted by id, so that replicas lock the
// rows in the same order.
func latest(all []schedule.Agent) []schedule.Agent {
	all = slices.SortedFunc(slices.Values(all), func(a, b schedule.Agent) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(b.Seq, a.Seq))
	})
	return slices.CompactFunc(all, func(a, b schedule.Agent) bool { return a.ID == b.ID })
}

func scanState(row sqldb.Scanner) (a schedule.Agent, err error) {
	err = row.Scan(&a.ID, &a.State, &a.Seq)
	return a, err
}

// abreast is the maximum number of agents in one statement: statements are cached by
// their text, which depends on the number.
const abreast = 32

// Poor implements [schedule.Store].
func (s *Store) Poor(ctx context.Context, after string, limit int) ([]string, error) {
	return sqldb.All(ctx, s.db, func(row sqldb.Scanner) (id string, err error) { return id, row.Scan(&id) },
		"select id from agents where state in ($1, $2) and id > $3 order by id limit $4", string(api.StateCritical), string(api.StateDead), after, limit)
}

// HasAgent implements [schedule.Store].
func (s *Store) HasAgent(ctx context.Context, agent string) (bool, error) {
	var n int64
	err := s.db.QueryRowContext(ctx, "select count(*) from agents where id = $1", agent).Scan(&n)
	return n > 0, err
}

// SetSchedule implements [schedule.Store].
func (s *Store) SetSchedule(ctx context.Context, agent string, entries []schedule.Entry) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		// Locks on the rows do not exclude a concurrent transaction that inserts others, and
		// the schedule would have the entries of both.
		if err := tx.Lock(ctx, "schedule "+agent); err != nil {
			return err
		}
		names, err := sqldb.All(ctx, tx, scanText, "select name from beats where agent = $1 order by name"+tx.ForUpdate(), agent)
		if err != nil {
			return err
		}
		stay := map[string]bool{}
		for _, b := range entries {
			stay[b.Name] = true
		}
		for _, name := range names {
			if stay[name] {
				continue
			}
			tx.Queue(ctx, "delete from beats where agent = $1 and name = $2", agent, name)
		}
		for _, b := range entries {
			putEntry(ctx, tx, agent, b)
		}
		return nil
	})
}

// putEntry adds an entry, or changes the one with its name.
func putEntry(ctx context.Context, tx *sqldb.Tx, agent string, b schedule.Entry) {
	tx.Queue(ctx, `insert into beats (agent, name, cron, reason, next_at, last_at, runs) values ($1, $2, $3, $4, $5, 0, 0)
		on conflict (agent, name) do update set cron = excluded.cron, reason = excluded.reason,
		next_at = case when beats.cron = excluded.cron then beats.next_at else excluded.next_at end`,
		agent, b.Name, b.Cron, b.Reason, schedule.Micros(b.Next))
}

// Restore implements [schedule.Store].
func (s *Store) Restore(ctx context.Context, a schedule.Agent, entries []schedule.Entry, alarm schedule.Alarm, lost time.Time) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		if _, err := s.SeeAgents(ctx, tx, []schedule.Agent{a}); err != nil {
			return err
		}
		has, err := sqldb.One[bool](ctx, tx, "select exists (select 1 from beats where agent = $1)", a.ID)
		if err != nil {
			return err
		}
		for _, b := range entries {
			if !has {
				putEntry(ctx, tx, a.ID, b)
			}
		}
		if alarm.ID != "" {
			tx.Queue(ctx, `insert into alarms (agent, id, at, reason, set_at, done) values ($1, $2, $3, $4, $5, 0)
				on conflict (agent) do update set id = excluded.id, at = excluded.at, reason = excluded.reason,
				set_at = excluded.set_at, done = 0 where alarms.at <> excluded.at and alarms.set_at <= $6`,
				a.ID, alarm.ID, schedule.Micros(alarm.At), alarm.Reason, schedule.Micros(alarm.Set), schedule.Micros(lost))
		}
		return nil
	})
}

// Schedule implements [schedule.Store].
func (s *Store) Schedule(ctx context.Context, agent string) ([]schedule.Entry, error) {
	return sqldb.All(ctx, s.db, func(row sqldb.Scanner) (b schedule.Entry, err error) {
		var next, last int64
		err = row.Scan(&b.Agent, &b.Name, &b.Cron, &b.Reason, &next, &last, &b.Runs)
		b.Next, b.Last = moment(next), moment(last)
		return b, err
	}, `select agent, name, cron, reason, next_at, last_at, runs from beats
		where $1 = '' or agent = $1 order by agent, name`, agent)
}

// SetAlarm implements [schedule.Store].
func (s *Store) SetAlarm(ctx context.Context, a schedule.Alarm) (set schedule.Alarm, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, `insert into alarms (agent, id, at, reason, set_at, done) values ($1, $2, $3, $4, $5, 0)
			on conflict (agent) do update set id = excluded.id, at = excluded.at, reason = excluded.reason,
			set_at = excluded.set_at, done = 0 where alarms.id <> excluded.id`,
			a.Agent, a.ID, schedule.Micros(a.At), a.Reason, schedule.Micros(a.Set))
		var at, when int64
		err := tx.QueryRowContext(ctx, "select agent, id, at, reason, set_at from alarms where agent = $1", a.Agent).
			Scan(&set.Agent, &set.ID, &at, &set.Reason, &when)
		set.At, set.Set = moment(at), moment(when)
		return err
	})
	return set, err
}

// Ping implements [schedule.Store].
func (s *Store) Ping(ctx context.Context, agent string, at time.Time) error {
	_, err := s.db.ExecContext(ctx, `insert into pings (agent, at) values ($1, $2)
		on conflict (agent) do update set at = excluded.at where pings.at < excluded.at`, agent, schedule.Micros(at))
	return err
}

// Record implements [schedule.Store].
func (s *Store) Record(ctx context.Context, cause string, t schedule.Tick) (stored schedule.Tick, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, insertTick, t.Agent, cause, t.Name, schedule.Micros(t.Due), schedule.Micros(t.At))
		stored, err = scanTick(tx.QueryRowContext(ctx, "select agent, name, due, at from ticks where agent = $1 and cause = $2", t.Agent, cause))
		return err
	})
	return stored, err
}

const insertTick = `insert into ticks (agent, cause, name, due, at) values ($1, $2, $3, $4, $5)
	on conflict (agent, cause) do nothing`

func scanTick(row sqldb.Scanner) (t schedule.Tick, err error) {
	var due, at int64
	err = row.Scan(&t.Agent, &t.Name, &due, &at)
	t.Due, t.At = moment(due), moment(at)
	return t, err
}

// History implements [schedule.Store].
func (s *Store) History(ctx context.Context, agent string, until time.Time, skip, limit int) ([]schedule.Tick, error) {
	return sqldb.All(ctx, s.db, scanTick, `select agent, name, due, at from ticks where ($1 = '' or agent = $1) and (at <= $2 or $2 = 0)
		order by at desc, agent, cause limit $3 offset $4`, agent, schedule.Micros(until), limit, skip)
}

func scanText(row sqldb.Scanner) (s string, err error) {
	err = row.Scan(&s)
	return s, err
}

// moment is the inverse of [schedule.Micros].
func moment(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

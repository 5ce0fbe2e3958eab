package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/lifecycle"
)

// Known implements engine.Store.
func (s *Store) Known(ctx context.Context, cmd api.Run) (engine.Known, error) {
	var k engine.Known
	var row definitionRow
	var cancelled, kind, address sqldb.Null[string]
	var terminated int64
	err := s.db.QueryRowContext(ctx, `select `+definitionColumns+`, s.journal, s.turns, coalesce(r.turns, 0), coalesce(r.cost, 0), r.input, r.ending,
			case when s.turns > 0 then s.updated_at else 0 end, s.counters, s.notice, s.reset_through, s.terminated_at, s.terminated_reason, c.reason,
			l.input_source, l.input_address, r.id is not null, coalesce(l.position = s.turns, false)
		from agents a join sessions s on s.id = $1 left join runs r on r.session = s.id and r.id = $2 left join cancels c on c.run = $2
		left join turns l on l.run = r.id and l.number = r.turns
		where a.id = $3`, cmd.Session, cmd.Run, cmd.Agent).
		Scan(append(row.columns(), &k.Journal, &k.Last, &k.Turns, &k.Cost, sqldb.JSON(&k.Input), sqldb.JSON(&k.Ended), &k.Before, sqldb.JSON(&k.Counters),
			&k.Notice, &k.Reset, &terminated, &k.Terminated, &cancelled, &kind, &address, &k.Begun, &k.Latest)...)
	if errors.Is(err, sqldb.ErrNotFound) {
		if _, err := s.definition(ctx, s.db, cmd.Agent); err != nil {
			return k, err
		}
		return k, api.Errorf(api.NotFound, "there is no session %s", cmd.Session)
	}
	if err != nil {
		return k, fmt.Errorf("run %s of session %s: %w", cmd.Run, cmd.Session, err)
	}
	if cancelled.Valid {
		k.Cancelled = cmp.Or(cancelled.V, "cancelled")
	}
	if terminated > 0 {
		k.Terminated = cmp.Or(k.Terminated, "terminated")
	}
	if kind.Valid { // a message that joined the run later has lowered its authority permanently
		k.Input.By = api.Principal{Kind: api.PrincipalKind(kind.V), Address: address.V}
	}
	k.Agent, err = s.agentOf(cmd.Agent, row)
	return k, err
}

// Announced records the beginning of a run before its first turn is persisted, and wakes
// its agent, in one transaction. It adds the state changes to the outbox, unless the run
// was recorded before. The agent's state does not change from dead. Errors: Denied when
// the agent is dead, Conflict when the run has ended.
func (s *Store) Announced(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		written, err := s.beginRun(ctx, tx, cmd, input, at)
		if err != nil {
			return err
		}
		was, err := s.lockState(ctx, tx, cmd.Agent)
		switch {
		case err != nil:
			return err
		case was == api.StateDead:
			return &api.Error{Code: api.Denied, Message: "the agent is dead", Next: "fund it: anima agent fund " + cmd.Agent + " 5"}
		case !written:
			over, err := isOver(ctx, tx, cmd.Run)
			if err == nil && over {
				err = api.Errorf(api.Conflict, "run %s is over", cmd.Run)
			}
			return err
		}
		made, err := s.moves(ctx, tx, cmd.Agent, was, waking(cmd, was, tier, at))
		if err != nil {
			return err
		}
		for _, c := range changed(made) {
			if err := announce(ctx, tx, &c); err != nil {
				return err
			}
		}
		return nil
	})
}

// waking returns the state changes with which a run begins; none if the agent is awake or
// the run is a task's.
func waking(cmd api.Run, was api.AgentState, tier api.Tier, at int64) []change {
	if lifecycle.Awake(was) || cmd.Kind == api.RunTask { // a task's run does not wake its agent
		return nil
	}
	why := "a message"
	switch cmd.Kind {
	case api.RunWake:
		why = "woken: " + cmd.Content
	case api.RunMail:
		why = cmd.Content
	case api.RunMessage, api.RunTask, api.RunImport:
	}
	return []change{{to: api.StateWaking, why: why, by: cmd.Run, at: at}, {to: lifecycle.StateAt(tier, was), why: why, by: cmd.Run, at: at}}
}

// Changes implements engine.Store.
func (s *Store) Changes(ctx context.Context, cmd api.Run) ([]api.AgentChanged, error) {
	return s.historyOf(ctx, s.db, cmd)
}

// Persist implements engine.Store.
func (s *Store) Persist(ctx context.Context, rec *engine.Record, input engine.Input, end *engine.End) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		rec.Position, rec.Changed = 0, nil
		begun := func() (bool, error) { return false, nil }
		if rec.Turn.Number == 1 {
			var err error
			if begun, err = s.persistRun(ctx, tx, rec.Run, input, cmp.Or(rec.Begun, rec.Turn.StartedAt), 1, rec.Turn.Cost); err != nil {
				return err
			}
		}
		p, err := s.persistTurn(ctx, tx, rec, begun, end)
		if err != nil {
			return err
		}
		if rec.Position == 0 {
			return s.persisted(ctx, tx, rec, end)
		}
		var asked []change
		if p.begins {
			asked = waking(rec.Run, p.state, rec.Tier, cmp.Or(rec.Begun, rec.Turn.StartedAt))
		}
		if end != nil {
			return s.persistEnd(ctx, tx, p, asked, end)
		}
		if rec.Run.Kind != api.RunTask {
			asked = append(asked, change{to: rec.Turn.State, why: "its tier", by: rec.Run.Run, at: rec.Turn.EndedAt})
		}
		made, err := s.moves(ctx, tx, rec.Run.Agent, p.state, asked)
		rec.Changed = changed(made)
		return err
	})
}

// persisted answers [Store.Persist] for a turn whose row was not inserted. If neither the
// caller nor the stored run has an end, or both have one after the same number of turns,
// the turn is the caller's, and end is set to the stored one. Otherwise another owner
// continued the run differently: Conflict.
func (s *Store) persisted(ctx context.Context, tx *sqldb.Tx, rec *engine.Record, end *engine.End) error {
	var stored *engine.End
	err := tx.QueryRowContext(ctx, `select r.ending from turns t join runs r on r.id = t.run where t.id = $1`, rec.Turn.ID).Scan(sqldb.JSON(&stored))
	switch {
	case errors.Is(err, sqldb.ErrNotFound): // a turn of another run has this position of the session
		return otherwise(rec)
	case err != nil:
		return err
	case stored == nil && end == nil:
		return nil
	case stored == nil || end == nil || stored.Turns != end.Turns:
		return otherwise(rec)
	}
	*end = *stored
	return nil
}

func otherwise(rec *engine.Record) error {
	return api.Errorf(api.Conflict, "another owner persisted run %s, and continued it differently from turn %d", rec.Turn.Run, rec.Turn.Number)
}

// Unfinished returns the commands of runs that began at or before a time, in Unix
// microseconds, and have not ended, the oldest first.
func (s *Store) Unfinished(ctx context.Context, until int64) ([]api.Run, error) {
	return sqldb.All(ctx, s.db, func(row sqldb.Scanner) (cmd api.Run, err error) {
		err = row.Scan(sqldb.JSON(&cmd))
		return cmd, err
	}, `select command from runs where ending is null and started_at <= $1 order by started_at`, until)
}

// beginRun inserts a run without a turn, unless it exists. It reports whether it inserted
// it.
func (s *Store) beginRun(ctx context.Context, tx *sqldb.Tx, cmd api.Run, input engine.Input, at int64) (bool, error) {
	written, err := s.persistRun(ctx, tx, cmd, input, at, 0, 0)
	if err != nil {
		return false, err
	}
	begun, err := written()
	if err == nil && begun {
		tx.Queue(ctx, `update sessions set runs = runs + 1 where id = $1`, cmd.Session)
	}
	return begun, err
}

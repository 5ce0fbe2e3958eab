package sqlstore

import (
	"cmp"
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Merge implements engine.Store.
func (s *Store) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	for _, cmd := range merged {
		if _, err := s.Drop(ctx, engine.End{Run: cmd, Input: engine.Input{By: cmd.By}, Success: true, At: at, Outcome: api.OutcomeMerged, Into: into.Run}); err != nil {
			return err
		}
	}
	return nil
}

// Drop ends a message with an outcome and without a turn. It returns the stored end, which is
// another one if the run had ended before.
func (s *Store) Drop(ctx context.Context, end engine.End) (engine.End, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (stored engine.End, err error) {
		cmd := end.Run
		if err := s.lockSession(ctx, tx, cmd.Session); err != nil {
			return end, err
		}
		written, err := s.beginRun(ctx, tx, cmd, end.Input, end.At)
		if err != nil {
			return end, err
		}
		var earlier *engine.End
		if err := tx.QueryRowContext(ctx, `select ending from runs where id = $1`, cmd.Run).Scan(sqldb.JSON(&earlier)); err != nil {
			return end, err
		}
		if earlier != nil {
			return *earlier, nil
		}
		if !written && end.Outcome == api.OutcomeExpired {
			return end, api.Errorf(api.Conflict, "run %s has begun", cmd.Run)
		}
		data, err := api.Encode(end)
		if err != nil {
			return end, err
		}
		tx.Queue(ctx, `update runs set ending = $2, ended_at = $3, fate = $4 where id = $1`, cmd.Run, string(data), end.At, end.Outcome)
		return end, nil
	})
}

// Waits implements engine.Store.
func (s *Store) Waits(ctx context.Context, run string) (bool, error) {
	return sqldb.One[bool](ctx, s.db, `select not exists (select 1 from runs where id = $1 and ending is not null)
		and not exists (select 1 from cancels where run = $1)`, run)
}

// Ending returns the end of a run, nil if there is none.
func (s *Store) Ending(ctx context.Context, run string) (end *engine.End, err error) {
	err = s.db.QueryRowContext(ctx, `select ending from runs where id = $1`, run).Scan(sqldb.JSON(&end))
	return end, missing(err, nil)
}

// Over reports whether a run has an outcome or an end.
func (s *Store) Over(ctx context.Context, run string) (bool, error) {
	return isOver(ctx, s.db, run)
}

func isOver(ctx context.Context, q sqldb.Querier, run string) (bool, error) {
	return sqldb.One[bool](ctx, q, `select count(*) > 0 from runs where id = $1 and ending is not null`, run)
}

// Cancel records the cancellation of a run. It is permanent: a later call does not change
// the reason, and a run that has ended does not change. Errors: NotFound.
func (s *Store) Cancel(ctx context.Context, run, session, reason string, at int64) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error { return s.cancel(ctx, tx, run, session, reason, at) })
}

func (s *Store) cancel(ctx context.Context, tx *sqldb.Tx, run, session, reason string, at int64) error {
	if err := s.lockSession(ctx, tx, session); err != nil {
		return err
	}
	tx.Queue(ctx, `insert into cancels (run, session, reason, at)
		select $1, $2, $3, $4 where not exists (select 1 from runs where id = $1 and ending is not null)
		on conflict (run) do nothing`, run, session, text(reason), at)
	return nil
}

// RunState returns the stored state of a run. Errors: NotFound, also for a run that waits
// in the queue and has no row yet.
func (s *Store) RunState(ctx context.Context, run string) (api.RunState, error) {
	var cmd api.Run
	var end *engine.End
	st := api.RunState{Run: run, Status: api.RunRunning}
	err := s.db.QueryRowContext(ctx, `select r.command, r.turns, r.cost, r.ending, r.fate, c.run is not null
		from runs r left join cancels c on c.run = r.id where r.id = $1`, run).
		Scan(sqldb.JSON(&cmd), &st.Turns, &st.Cost, sqldb.JSON(&end), &st.Outcome, &st.Cancelled)
	if err != nil {
		return st, missing(err, &api.Error{
			Code: api.NotFound, Message: "there is no run " + run + " yet",
			Next: "a run that still waits is found with its session: anima run get " + run + " --session SESSION",
		})
	}
	st.Session, st.Agent, st.Kind, st.AcceptedAt = cmd.Session, cmd.Agent, cmd.Kind, cmd.AcceptedAt
	if end == nil {
		st.Outcome = ""
		return st, nil
	}
	st.Outcome = cmp.Or(st.Outcome, api.OutcomeConsumed) // a previous release wrote none
	st.Status, st.Success, st.Code, st.Reason, st.Error, st.Next = api.RunEnded, end.Success, end.Code, end.Reason, end.Error, end.Next
	st.Response, st.Into, st.EndedAt = end.Response, end.Into, end.At
	return st, nil
}

// IsCancelled returns the reason why a run was cancelled, by itself or because its session
// was terminated. "": it was not.
func (s *Store) IsCancelled(ctx context.Context, run, session string) (string, error) {
	why, err := sqldb.One[string](ctx, s.db, `select coalesce((select reason from cancels where run = $1), terminated_reason)
		from sessions where id = $2 and (terminated_at > 0 or exists (select 1 from cancels where run = $1))`, run, session)
	if err == nil {
		why = cmp.Or(why, "cancelled")
	}
	return why, missing(err, nil)
}

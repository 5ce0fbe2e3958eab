package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/life"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Known implements turn.Store.
func (s *Store) Known(ctx context.Context, cmd api.Run) (turn.Known, error) {
	var k turn.Known
	var err error
	if k.Agent, err = s.definition(ctx, s.db, cmd.Agent); err != nil {
		return k, err
	}
	var input, ending, cancelled, kind, address sqldb.Null[string]
	var counters string
	var terminated int64
	err = s.db.QueryRowContext(ctx, `select s.journal, s.turns, coalesce(r.turns, 0), coalesce(r.cost, 0), r.input, r.ending,
			case when s.turns > 0 then s.updated_at else 0 end, s.counters, s.notice, s.reset_through, s.terminated_at, s.terminated_reason, c.reason,
			l.input_source, l.input_address, r.id is not null
		from sessions s left join runs r on r.session = s.id and r.id = $2 left join cancels c on c.run = $2
		left join turns l on l.run = r.id and l.number = r.turns
		where s.id = $1`, cmd.Session, cmd.Run).
		Scan(&k.Journal, &k.Last, &k.Turns, &k.Cost, &input, &ending, &k.Before, &counters, &k.Notice, &k.Reset, &terminated, &k.Terminated, &cancelled, &kind, &address, &k.Begun)
	if errors.Is(err, sqldb.ErrNotFound) {
		return k, api.Errorf(api.NotFound, "there is no session %s", cmd.Session)
	}
	if err != nil {
		return k, err
	}
	if k.Cancelled = cancelled.V; cancelled.Valid && k.Cancelled == "" {
		k.Cancelled = "cancelled"
	}
	if terminated > 0 && k.Terminated == "" {
		k.Terminated = "terminated"
	}
	if err := json.Unmarshal([]byte(counters), &k.Counters); err != nil {
		return k, fmt.Errorf("counters of session %s: %w", cmd.Session, err)
	}
	if input.Valid {
		if err := json.Unmarshal([]byte(input.V), &k.Input); err != nil {
			return k, fmt.Errorf("input of run %s: %w", cmd.Run, err)
		}
	}
	if kind.Valid { // a message that joined the run since has lowered its authority, for good
		k.Input.By = api.Principal{Kind: api.PrincipalKind(kind.V), Address: address.V}
	}
	if ending.Valid {
		k.Ended = &turn.End{}
		if err := json.Unmarshal([]byte(ending.V), k.Ended); err != nil {
			return k, fmt.Errorf("end of run %s: %w", cmd.Run, err)
		}
	}
	return k, nil
}

// Started implements turn.Store. A dead agent stays dead and runs nothing.
func (s *Store) Started(ctx context.Context, cmd api.Run, input turn.Input, tier api.Tier, at int64) ([]api.AgentChanged, error) {
	var changes []api.AgentChanged
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		changes = nil
		var was api.AgentState
		var by string
		if err := tx.QueryRowContext(ctx, `select state, state_by from agents where id = $1`+s.db.ForUpdate(), cmd.Agent).Scan(&was, &by); err != nil {
			return err
		}
		if was == api.StateDead {
			return &api.Error{Code: api.Denied, Message: "the agent is dead", Next: "fund it: anima agent fund " + cmd.Agent + " 5"}
		}
		written, err := s.persistRun(ctx, tx, cmd, input, at)
		if err != nil {
			return err
		}
		if !written {
			var over int
			if err := tx.QueryRowContext(ctx, `select count(*) from runs where id = $1 and ending is not null`, cmd.Run).Scan(&over); err != nil {
				return err
			}
			if over > 0 {
				return api.Errorf(api.Conflict, "run %s is over", cmd.Run)
			}
		}
		switch {
		case by == cmd.Run: // its owner may have died before it said so
			changes, err = s.historyOf(ctx, tx, cmd)
			return err
		case life.Awake(was), cmd.Kind == api.RunTask: // tasks are worked on while the agent sleeps, too
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
		for _, to := range []api.AgentState{api.StateWaking, life.StateAt(tier, was)} {
			c, err := s.moveFrom(ctx, tx, cmd.Agent, was, change{to: to, why: why, by: cmd.Run, at: at})
			if err != nil {
				return err
			}
			if c != nil {
				changes, was = append(changes, *c), c.State
			}
		}
		return nil
	})
	return changes, err
}

// Persist implements turn.Store.
func (s *Store) Persist(ctx context.Context, rec *turn.Record, input turn.Input, end *turn.End) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		if rec.Turn.Number == 1 { // a run that never was taken up, as one that was given up at once
			if _, err := s.persistRun(ctx, tx, rec.Run, input, rec.Turn.StartedAt); err != nil {
				return err
			}
		}
		state, written, err := s.persistTurn(ctx, tx, rec)
		switch {
		case err != nil:
			return err
		case !written:
			return s.persisted(ctx, tx, rec, end)
		}
		// After the session's row is locked: cancel holds it too.
		if end == nil || end.Reason != api.ReasonCancelled {
			if err := s.notCancelled(ctx, tx, rec.Run); err != nil {
				return err
			}
		}
		if end != nil {
			return s.persistEnd(ctx, tx, state, end)
		}
		if rec.Run.Kind == api.RunTask {
			return nil
		}
		rec.Changed, err = s.moveFrom(ctx, tx, rec.Run.Agent, state, change{to: rec.Turn.State, why: "its tier", by: rec.Run.Run, at: rec.Turn.EndedAt})
		return err
	})
}

// notCancelled refuses what would go on with a run that was cancelled.
func (s *Store) notCancelled(ctx context.Context, tx *sqldb.Tx, cmd api.Run) error {
	var why string
	err := tx.QueryRowContext(ctx, `select reason from cancels where run = $1`, cmd.Run).Scan(&why)
	if errors.Is(err, sqldb.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return turn.Cancelled(why)
}

// persisted answers the writer of a turn that is there: with the run's end as it is
// stored, if both see one.
func (s *Store) persisted(ctx context.Context, tx *sqldb.Tx, rec *turn.Record, end *turn.End) error {
	var ending sqldb.Null[string]
	err := tx.QueryRowContext(ctx, `select r.ending from turns t join runs r on r.id = t.run where t.id = $1`, rec.Turn.ID).Scan(&ending)
	switch {
	case errors.Is(err, sqldb.ErrNotFound): // another run took the place in the session
		return otherwise(rec)
	case err != nil:
		return err
	case !ending.Valid && end == nil:
		return nil
	case !ending.Valid || end == nil:
		return otherwise(rec)
	}
	var stored turn.End
	if err := json.Unmarshal([]byte(ending.V), &stored); err != nil {
		return fmt.Errorf("end of run %s: %w", rec.Turn.Run, err)
	}
	if stored.Turns != end.Turns {
		return otherwise(rec)
	}
	*end = stored
	return nil
}

func otherwise(rec *turn.Record) error {
	return api.Errorf(api.Conflict, "another owner persisted run %s, and it went on otherwise than with turn %d", rec.Turn.Run, rec.Turn.Number)
}

// Unfinished returns the commands of runs that have begun, not after a time in Unix
// microseconds, and not ended, the oldest first.
func (s *Store) Unfinished(ctx context.Context, until int64) ([]api.Run, error) {
	return sqldb.All(ctx, s.db, func(row sqldb.Scanner) (cmd api.Run, err error) {
		var text string
		if err := row.Scan(&text); err != nil {
			return cmd, err
		}
		return cmd, api.Decode([]byte(text), &cmd)
	}, `select command from runs where ending is null and started_at <= $1 order by started_at`, until)
}

// persistRun records a run, unless it is there, and says whether it did.
func (s *Store) persistRun(ctx context.Context, tx *sqldb.Tx, cmd api.Run, input turn.Input, at int64) (bool, error) {
	in, err := api.Encode(input)
	if err != nil {
		return false, err
	}
	command, err := api.Encode(cmd)
	if err != nil {
		return false, err
	}
	res, err := tx.ExecContext(ctx, `insert into runs (id, session, agent, command, input, started_at) values ($1, $2, $3, $4, $5, $6)
		on conflict (id) do nothing`, cmd.Run, cmd.Session, cmd.Agent, string(command), string(in), at)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	_, err = tx.ExecContext(ctx, `update sessions set runs = runs + 1 where id = $1`, cmd.Session)
	return true, err
}

// persistTurn writes a turn, unless it is there, and says whether it did, and the
// agent's state, whose row it locks.
func (s *Store) persistTurn(ctx context.Context, tx *sqldb.Tx, rec *turn.Record) (state api.AgentState, written bool, err error) {
	t := rec.Turn
	rec.Position = 0
	err = tx.QueryRowContext(ctx, `insert into turns (id, run, number, session, agent, position, state, input, input_source, input_address,
			thinking, model, provider, finish, input_tokens, output_tokens, cost, trace, started_at, ended_at)
		select $1, $2, $3, $4, $5, (select turns + 1 from sessions where id = $4), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19
		on conflict do nothing returning position`, // on any of three unique keys: on Postgres each may be the first to see another writer
		t.ID, t.Run, t.Number, t.Session, t.Agent, t.State, text(t.Input), t.By.Kind, t.By.Address, text(t.Thinking), t.Model, t.Provider, t.Finish,
		t.InputTokens, t.OutputTokens, int64(t.Cost), t.Trace, t.StartedAt, t.EndedAt).Scan(&rec.Position)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	if err := persistPrompt(ctx, tx, rec); err != nil {
		return "", false, err
	}
	for _, c := range t.Calls {
		if _, err := tx.ExecContext(ctx, `insert into tool_calls (turn_id, idx, provider_id, name, arguments, decision, action, outcome, result, error, duration_ms)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
			t.ID, c.Index, text(c.ID), text(c.Tool), text(string(c.Arguments)), c.Decision, c.Action, c.Outcome, text(c.Result), text(c.Error), c.DurationMS); err != nil {
			return "", false, err
		}
	}
	counters, err := api.Encode(rec.Counters)
	if err != nil {
		return "", false, err
	}
	if _, err := tx.ExecContext(ctx, `update sessions set journal = $2, turns = turns + 1, input_tokens = input_tokens + $3,
		output_tokens = output_tokens + $4, cost = cost + $5, updated_at = $6, counters = $7, notice = $8 where id = $1`,
		t.Session, int64(rec.Journal), t.InputTokens, t.OutputTokens, int64(t.Cost), t.EndedAt, string(counters), text(rec.Notice)); err != nil {
		return "", false, err
	}
	res, err := tx.ExecContext(ctx, `update runs set turns = turns + 1, cost = cost + $2 where id = $1 and ending is null`, t.Run, int64(t.Cost))
	if err != nil {
		return "", false, err
	}
	if n, err := res.RowsAffected(); err != nil {
		return "", false, err
	} else if n == 0 {
		return "", false, otherwise(rec)
	}
	err = tx.QueryRowContext(ctx, `update agents set turns = turns + 1 where id = $1 returning state`, t.Agent).Scan(&state)
	return state, true, err
}

// text is s without what Postgres cannot keep in a text column: bytes that are
// not UTF-8, and NUL.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// persistEnd follows persistTurn, which has locked the agent's row in that state.
func (s *Store) persistEnd(ctx context.Context, tx *sqldb.Tx, state api.AgentState, end *turn.End) error {
	cmd := end.Run
	end.Changed = nil
	awake, err := s.awake(ctx, tx, cmd)
	if err != nil {
		return err
	}
	if !awake {
		c, err := s.moveFrom(ctx, tx, cmd.Agent, state, change{to: end.State, why: end.Why, until: end.Sleep, by: cmd.Run, at: end.At})
		if err != nil {
			return err
		}
		end.Changed = c
	}
	ending, err := api.Encode(end)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `update runs set ending = $2, ended_at = $3, fate = $4 where id = $1`, cmd.Run, string(ending), end.At, api.FateConsumed)
	return err
}

// awake says whether the end of a run leaves its agent's state as it is: a task's does,
// and that of mail while the agent has another run.
func (s *Store) awake(ctx context.Context, tx *sqldb.Tx, cmd api.Run) (bool, error) {
	if cmd.Kind != api.RunMail {
		return cmd.Kind == api.RunTask, nil
	}
	var others int
	err := tx.QueryRowContext(ctx, `select count(*) from runs r join agents a on a.id = r.agent
		where r.agent = $1 and r.ending is null and r.id <> $2 and r.session = case a.main_session when '' then $3 else a.main_session end`,
		cmd.Agent, cmd.Run, MainSession(cmd.Agent)).Scan(&others)
	return others > 0, err
}

const turnColumns = `select id, run, number, session, agent, position, state, input, input_source, input_address, thinking, model, provider,
	finish, input_tokens, output_tokens, cost, trace, started_at, ended_at from turns`

// placed is a turn with its position in its session.
type placed struct {
	api.Turn
	position int64
}

func turnRow(r sqldb.Scanner) (placed, error) {
	var t placed
	err := r.Scan(&t.ID, &t.Run, &t.Number, &t.Session, &t.Agent, &t.position, &t.State, &t.Input, &t.By.Kind, &t.By.Address, &t.Thinking,
		&t.Model, &t.Provider, &t.Finish, &t.InputTokens, &t.OutputTokens, &t.Cost, &t.Trace, &t.StartedAt, &t.EndedAt)
	if errors.Is(err, sqldb.ErrNotFound) {
		return t, &api.Error{Code: api.NotFound, Message: "there is no such turn", Next: "anima turn list shows the ones there are"}
	}
	t.Calls = []api.CallState{}
	return t, err
}

// Turn returns a turn with its calls. Errors: NotFound.
func (s *Store) Turn(ctx context.Context, id string) (api.Turn, error) {
	t, err := turnRow(s.db.QueryRowContext(ctx, turnColumns+` where id = $1`, id))
	if err != nil {
		return api.Turn{}, err
	}
	all := []placed{t}
	if err := s.fillCalls(ctx, all); err != nil {
		return api.Turn{}, err
	}
	return all[0].Turn, nil
}

// Turns returns turns that match, the latest first.
func (s *Store) Turns(ctx context.Context, q api.ListTurns) ([]api.Turn, error) {
	all, err := s.turns(ctx, `where ($1 = '' or agent = $1) and ($2 = '' or session = $2) and ($3 = '' or run = $3)
		and ($4 = '' or (started_at, position, id) < (select started_at, position, id from turns where id = $4))
		order by started_at desc, position desc, id desc limit $5`, q.Agent, q.Session, q.Run, q.Before, q.Limit)
	return plain(all), err
}

// History is a session's latest turns, oldest first, at most n.
func (s *Store) History(ctx context.Context, session string, n int) ([]api.Turn, error) {
	all, err := s.turns(ctx, `where session = $1 order by position desc limit $2`, session, n)
	slices.Reverse(all)
	return plain(all), err
}

func plain(all []placed) []api.Turn {
	out := make([]api.Turn, len(all))
	for i, t := range all {
		out[i] = t.Turn
	}
	return out
}

// turns reads the turns that a condition picks, and their calls.
func (s *Store) turns(ctx context.Context, where string, args ...any) ([]placed, error) {
	all, err := sqldb.All(ctx, s.db, turnRow, turnColumns+` `+where, args...)
	if err != nil {
		return nil, err
	}
	return all, s.fillCalls(ctx, all)
}

// fillCalls reads the calls of all turns in one query. A turn never changes, so
// what was written since they were read does not matter.
func (s *Store) fillCalls(ctx context.Context, all []placed) error {
	if len(all) == 0 {
		return nil
	}
	at := map[string]int{}
	places := make([]string, len(all))
	ids := make([]any, len(all))
	for i, t := range all {
		at[t.ID], places[i], ids[i] = i, "$"+strconv.Itoa(i+1), t.ID
	}
	type owned struct {
		turn string
		api.CallState
	}
	calls, err := sqldb.All(ctx, s.db, func(r sqldb.Scanner) (owned, error) {
		var c owned
		var arguments string
		err := r.Scan(&c.turn, &c.Index, &c.ID, &c.Tool, &arguments, &c.Decision, &c.Action, &c.Outcome, &c.Result, &c.Error, &c.DurationMS)
		c.Arguments = json.RawMessage(arguments)
		return c, err
	}, `select turn_id, idx, provider_id, name, arguments, decision, action, outcome, result, error, duration_ms
		from tool_calls where turn_id in (`+strings.Join(places, ", ")+`) order by turn_id, idx`, ids...)
	if err != nil {
		return err
	}
	for _, c := range calls {
		t := &all[at[c.turn]]
		t.Calls = append(t.Calls, c.CallState)
	}
	return nil
}

package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/lifecycle"
	"github.com/anima-run/anima/services/loop/internal/prompt"
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
		state, begins, err := s.persistTurn(ctx, tx, rec, begun, end)
		if err != nil {
			return err
		}
		if rec.Position == 0 {
			return s.persisted(ctx, tx, rec, end)
		}
		var asked []change
		if begins {
			asked = waking(rec.Run, state, rec.Tier, cmp.Or(rec.Begun, rec.Turn.StartedAt))
		}
		if end != nil {
			return s.persistEnd(ctx, tx, state, asked, end)
		}
		if rec.Run.Kind != api.RunTask {
			asked = append(asked, change{to: rec.Turn.State, why: "its tier", by: rec.Run.Run, at: rec.Turn.EndedAt})
		}
		made, err := s.moves(ctx, tx, rec.Run.Agent, state, asked)
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

// persistRun inserts a run with the given number and cost of turns, unless it exists.
// written sends the queued statements and reports whether the run was inserted.
func (s *Store) persistRun(ctx context.Context, tx *sqldb.Tx, cmd api.Run, input engine.Input, at int64, turns int, cost api.Micros) (written func() (bool, error), err error) {
	in, err := api.Encode(input)
	if err != nil {
		return nil, err
	}
	command, err := api.Encode(cmd)
	if err != nil {
		return nil, err
	}
	row := tx.QueueRow(ctx, `insert into runs (id, session, agent, command, input, started_at, turns, cost)
		values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (id) do nothing returning true`,
		cmd.Run, cmd.Session, cmd.Agent, string(command), string(in), at, turns, int64(cost))
	return func() (begun bool, err error) {
		err = missing(row.Scan(&begun), nil)
		return begun, err
	}, nil
}

// persistTurn inserts a turn, unless it exists, sets its position, and locks the agent's
// row. It returns the agent's state and whether begun has inserted the run.
func (s *Store) persistTurn(ctx context.Context, tx *sqldb.Tx, rec *engine.Record, begun func() (bool, error), end *engine.End) (state api.AgentState, begins bool, err error) {
	t := rec.Turn
	var reference string
	var counted int64
	if rec.Prompt != nil {
		encoded, err := api.Encode(rec.Prompt)
		if err != nil {
			return "", false, err
		}
		reference, counted = string(encoded), rec.Prompt.Counted
	}
	err = tx.QueryRowContext(ctx, `insert into turns (`+turnColumns+`, reference, counted)
		select $1, $2, $3, $4, $5, (select turns + 1 from sessions where id = $4), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21
		on conflict do nothing returning position`, // on any of three unique keys: on PostgreSQL each may be the first to conflict
		t.ID, t.Run, t.Number, t.Session, t.Agent, t.State, text(t.Input), t.By.Kind, t.By.Address, text(t.Thinking), t.Model, t.Provider, t.Finish,
		t.InputTokens, t.OutputTokens, int64(t.Cost), t.Trace, t.StartedAt, t.EndedAt, text(reference), counted).Scan(&rec.Position)
	if err != nil {
		return "", false, missing(err, nil)
	}
	if begins, err = begun(); err != nil {
		return "", false, err
	}
	persistCalls(ctx, tx, t)
	counters, err := api.Encode(rec.Counters)
	if err != nil {
		return "", false, err
	}
	runs := 0
	if begins {
		runs = 1
	}
	tx.Queue(ctx, `update sessions set journal = $2, turns = turns + 1, input_tokens = input_tokens + $3,
		output_tokens = output_tokens + $4, cost = cost + $5, updated_at = $6, counters = $7, notice = $8, runs = runs + $9 where id = $1`,
		t.Session, int64(rec.Journal), t.InputTokens, t.OutputTokens, int64(t.Cost), t.EndedAt, string(counters), text(rec.Notice), runs)
	taken := s.count(ctx, tx, rec, begins, end)
	err = tx.QueryRowContext(ctx, `update agents set turns = turns + 1 where id = $1 returning state`, t.Agent).Scan(&state)
	if cerr := taken(); cerr != nil {
		return "", false, cerr
	}
	return state, begins, err
}

// count adds a turn to the sums of its run. The returned function refuses a turn of a run
// that has ended, or that was cancelled and does not end with this turn. count must
// follow the update of the session's row, which a transaction that cancels locks, too.
func (s *Store) count(ctx context.Context, tx *sqldb.Tx, rec *engine.Record, begins bool, end *engine.End) func() error {
	turns, cost := 1, int64(rec.Turn.Cost)
	if begins { // the inserted row has them
		turns, cost = 0, 0
	}
	row := tx.QueueRow(ctx, `update runs set turns = turns + $2, cost = cost + $3 where id = $1 and ending is null
		returning (select reason from cancels where run = $1)`, rec.Turn.Run, turns, cost)
	return func() error {
		var cancelled sqldb.Null[string]
		err := row.Scan(&cancelled)
		switch {
		case errors.Is(err, sqldb.ErrNotFound):
			return otherwise(rec)
		case err != nil:
			return err
		case cancelled.Valid && (end == nil || end.Reason != api.ReasonCancelled):
			return engine.Cancelled(cancelled.V)
		}
		return nil
	}
}

// persistCalls inserts the calls of a turn with one statement.
func persistCalls(ctx context.Context, tx *sqldb.Tx, t api.Turn) {
	if len(t.Calls) == 0 {
		return
	}
	const columns = 11
	args := make([]any, 0, columns*len(t.Calls))
	for _, c := range t.Calls {
		args = append(args, t.ID, c.Index, text(c.ID), text(c.Tool), text(string(c.Arguments)), c.Decision, c.Action, c.Outcome, text(c.Result), text(c.Error), c.DurationMS)
	}
	tx.Queue(ctx, `insert into tool_calls (`+callColumns+`) values `+rows(len(t.Calls), columns), args...)
}

// text replaces in s what PostgreSQL cannot store in a text column, invalid UTF-8 and
// NUL, by U+FFFD.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// persistEnd stores the end of a run and the agent's state changes: those in asked, and
// then the end's own. It follows persistTurn, which has locked the agent's row in that
// state.
func (s *Store) persistEnd(ctx context.Context, tx *sqldb.Tx, state api.AgentState, asked []change, end *engine.End) error {
	cmd := end.Run
	end.Changed, end.Earlier = nil, nil
	awake, err := s.awake(ctx, tx, cmd)
	if err != nil {
		return err
	}
	n := len(asked)
	if !awake {
		asked = append(asked, change{to: end.State, why: end.Why, until: end.Sleep, by: cmd.Run, at: end.At})
	}
	made, err := s.moves(ctx, tx, cmd.Agent, state, asked)
	if err != nil {
		return err
	}
	if !awake {
		end.Changed = made[n]
	}
	end.Earlier = changed(made[:n])
	ending, err := api.Encode(end)
	if err != nil {
		return err
	}
	tx.Queue(ctx, `update runs set ending = $2, ended_at = $3, fate = $4 where id = $1`, cmd.Run, string(ending), end.At, api.OutcomeConsumed)
	return nil
}

// awake reports whether the end of a run must not change its agent's state: the end of a
// task's run never does, and that of mail does not while the main session has a run.
func (s *Store) awake(ctx context.Context, tx *sqldb.Tx, cmd api.Run) (bool, error) {
	if cmd.Kind != api.RunMail {
		return cmd.Kind == api.RunTask, nil
	}
	return sqldb.One[bool](ctx, tx, `select count(*) > 0 from runs r join agents a on a.id = r.agent
		where r.agent = $1 and r.ending is null and r.id <> $2 and r.session = case a.main_session when '' then $3 else a.main_session end`,
		cmd.Agent, cmd.Run, MainSession(cmd.Agent))
}

// Columns of tables turns and tool_calls.
const (
	turnColumns = `id, run, number, session, agent, position, state, input, input_source, input_address, thinking, model, provider,
		finish, input_tokens, output_tokens, cost, trace, started_at, ended_at`
	callColumns = `turn_id, idx, provider_id, name, arguments, decision, action, outcome, result, error, duration_ms`
)

// turnRows returns a function that scans rows of turnColumns. It scans all rows into the
// same variables: a text that equals that of the previous row, as most ids of sessions
// and agents and names of models do, is not copied then.
func turnRows() func(sqldb.Scanner) (prompt.Turn, error) {
	var t prompt.Turn
	return func(r sqldb.Scanner) (prompt.Turn, error) {
		err := r.Scan(&t.ID, &t.Run, &t.Number, &t.Session, &t.Agent, &t.Position, &t.State, &t.Input, &t.By.Kind, &t.By.Address, &t.Thinking,
			&t.Model, &t.Provider, &t.Finish, &t.InputTokens, &t.OutputTokens, &t.Cost, &t.Trace, &t.StartedAt, &t.EndedAt)
		t.Calls = []api.CallState{}
		return t, err
	}
}

// Turn returns a turn with its calls. Errors: NotFound.
func (s *Store) Turn(ctx context.Context, id string) (api.Turn, error) {
	t, err := s.turn(ctx, id)
	return t.Turn, err
}

func (s *Store) turn(ctx context.Context, id string) (prompt.Turn, error) {
	all, err := s.turns(ctx, `where id = $1`, id)
	if err == nil && len(all) == 0 {
		err = &api.Error{Code: api.NotFound, Message: "there is no such turn", Next: "anima turn list shows the ones there are"}
	}
	if err != nil {
		return prompt.Turn{}, err
	}
	return all[0], nil
}

// Turns returns the turns that match a query, the latest first.
func (s *Store) Turns(ctx context.Context, q api.ListTurns) ([]api.Turn, error) {
	all, err := s.turns(ctx, `where ($1 = '' or agent = $1) and ($2 = '' or session = $2) and ($3 = '' or run = $3)
		and ($4 = '' or (started_at, position, id) < (select started_at, position, id from turns where id = $4))
		order by started_at desc, position desc, id desc limit $5`, q.Agent, q.Session, q.Run, q.Before, q.Limit)
	out := make([]api.Turn, len(all))
	for i, t := range all {
		out[i] = t.Turn
	}
	return out, err
}

// turns reads the turns that a condition selects, and then their calls in one query. A
// turn never changes, so the two queries need no transaction.
func (s *Store) turns(ctx context.Context, where string, args ...any) ([]prompt.Turn, error) {
	all, err := sqldb.All(ctx, s.db, turnRows(), `select `+turnColumns+` from turns `+where, args...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	at := make(map[string]*prompt.Turn, len(all))
	for i := range all {
		at[all[i].ID] = &all[i]
	}
	var ids parameters
	in := ids.list(len(all), func(i int) any { return all[i].ID })
	var turn string
	var c api.CallState // see turnRows
	_, err = sqldb.All(ctx, s.db, func(r sqldb.Scanner) (none struct{}, err error) {
		err = r.Scan(&turn, &c.Index, &c.ID, &c.Tool, (*[]byte)(&c.Arguments), &c.Decision, &c.Action, &c.Outcome, &c.Result, &c.Error, &c.DurationMS)
		if err == nil {
			at[turn].Calls = append(at[turn].Calls, c)
		}
		return none, err
	}, `select `+callColumns+` from tool_calls where turn_id in (`+in+`) order by turn_id, idx`, ids...)
	return all, err
}

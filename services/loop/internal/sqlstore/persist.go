package sqlstore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

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
// row.
func (s *Store) persistTurn(ctx context.Context, tx *sqldb.Tx, rec *engine.Record, begun func() (bool, error), end *engine.End) (p persistedTurn, err error) {
	t := rec.Turn
	var reference string
	var counted int64
	if rec.Prompt != nil {
		encoded, err := api.Encode(rec.Prompt)
		if err != nil {
			return p, err
		}
		reference, counted = string(encoded), rec.Prompt.Counted
	}
	err = tx.QueryRowContext(ctx, `insert into turns (`+turnColumns+`, reference, counted)
		select $1, $2, $3, $4, $5, (select turns + 1 from sessions where id = $4), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21
		on conflict do nothing returning position`, // on any of three unique keys: on PostgreSQL each may be the first to conflict
		t.ID, t.Run, t.Number, t.Session, t.Agent, t.State, text(t.Input), t.By.Kind, t.By.Address, text(t.Thinking), t.Model, t.Provider, t.Finish,
		t.InputTokens, t.OutputTokens, int64(t.Cost), t.Trace, t.StartedAt, t.EndedAt, text(reference), counted).Scan(&rec.Position)
	if err != nil {
		return p, missing(err, nil)
	}
	if p.begins, err = begun(); err != nil {
		return p, err
	}
	persistCalls(ctx, tx, t)
	counters, err := api.Encode(rec.Counters)
	if err != nil {
		return p, err
	}
	runs := 0
	if p.begins {
		runs = 1
	}
	session := tx.QueueRow(ctx, `update sessions set journal = $2, turns = turns + 1, input_tokens = input_tokens + $3,
		output_tokens = output_tokens + $4, cost = cost + $5, updated_at = $6, counters = $7, notice = $8, runs = runs + $9 where id = $1
		returning terminated_at, terminated_reason`,
		t.Session, int64(rec.Journal), t.InputTokens, t.OutputTokens, int64(t.Cost), t.EndedAt, string(counters), text(rec.Notice), runs)
	taken := s.count(ctx, tx, rec, p.begins, end, session)
	var forgotten int64
	busy, args := `false`, []any{t.Agent}
	if end != nil && t.Session != MainSession(t.Agent) {
		busy = `exists (select 1 from runs r where r.session = case main_session when '' then $2 else main_session end
			and r.started_at > $3 and r.ending is null and r.id <> $4)`
		args = append(args, MainSession(t.Agent), t.EndedAt-longestRun.Microseconds(), t.Run)
	}
	err = tx.QueryRowContext(ctx, `update agents set turns = turns + 1 where id = $1 returning state, state_by, forgotten_at, `+busy, args...).
		Scan(&p.state, &p.by, &forgotten, &p.busy)
	if cerr := taken(); cerr != nil {
		return p, cerr
	}
	if rec.Run.AcceptedAt <= forgotten { // not the turn's begin: a run that is cut off stores a turn that begins then
		skip(ctx, tx, `id = $1`, t.Session)
	}
	return p, err
}

// persistedTurn is the result of persistTurn.
type persistedTurn struct {
	state  api.AgentState // of the agent, before the turn changes it
	by     string         // run that made the state, "" if it was no run
	begins bool           // begun has inserted the run
	busy   bool           // the turn ends a run of another session while the main session has a run
}

// longestRun is longer than a run may take. It bounds the search for runs in progress.
const longestRun = 2 * time.Hour

// count adds a turn to the sums of its run. The returned function refuses a turn of a run
// that has ended. If the run was cancelled or its session was terminated, it refuses a
// turn that does not end the run as cancelled. session is the update of the session's row,
// which count must follow: a transaction that cancels or terminates locks the row, too.
func (s *Store) count(ctx context.Context, tx *sqldb.Tx, rec *engine.Record, begins bool, end *engine.End, session *sqldb.Row) func() error {
	const reason = `(select reason from cancels where run = $1)`
	var row *sqldb.Row
	if begins { // the inserted row has the sums of this turn, and no end
		row = tx.QueueRow(ctx, `select `+reason, rec.Turn.Run)
	} else {
		row = tx.QueueRow(ctx, `update runs set turns = turns + 1, cost = cost + $2 where id = $1 and ending is null
			returning `+reason, rec.Turn.Run, int64(rec.Turn.Cost))
	}
	return func() error {
		var terminated int64
		var why string
		if err := session.Scan(&terminated, &why); err != nil {
			return err
		}
		var cancelled sqldb.Null[string]
		err := row.Scan(&cancelled)
		switch {
		case errors.Is(err, sqldb.ErrNotFound):
			return otherwise(rec)
		case err != nil:
			return err
		case end != nil && end.Reason == api.ReasonCancelled:
			return nil
		case cancelled.Valid:
			return engine.Cancelled(cancelled.V)
		case terminated > 0:
			return engine.Terminated(why)
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
	tx.Queue(ctx, `insert into tool_calls (`+callColumns+`) values `+sqldb.Placeholders(len(t.Calls), columns), args...)
}

// text replaces in s what PostgreSQL cannot store in a text column, invalid UTF-8 and
// NUL, by U+FFFD.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// persistEnd stores the end of a run and the agent's state changes: those in asked, and
// then the end's own. It follows persistTurn, which has locked the agent's row.
func (s *Store) persistEnd(ctx context.Context, tx *sqldb.Tx, p persistedTurn, asked []change, end *engine.End) error {
	cmd := end.Run
	end.Changed, end.Earlier = nil, nil
	keeps, err := s.awake(ctx, tx, cmd)
	if err != nil {
		return err
	}
	n := len(asked)
	if p.state == api.StateSleeping {
		// An agent that was told to sleep during the run keeps the reason, the end and the
		// alarm of that sleep. The runs that this cancels end after it.
		told := n == 0 && p.by == ""
		if told {
			end.Alarm, end.Sleep = false, 0
		}
		keeps = keeps || told || n == 0 && end.Reason == api.ReasonCancelled
	} else {
		// The agent sleeps when its main session has no run. If it sleeps, the run that
		// made it busy has ended, although a statement that waited for the agent's row
		// may still see it.
		keeps = keeps || p.busy
	}
	if !keeps {
		asked = append(asked, change{to: end.State, why: end.Why, until: end.Sleep, by: cmd.Run, at: end.At})
	}
	made, err := s.moves(ctx, tx, cmd.Agent, p.state, asked)
	if err != nil {
		return err
	}
	if !keeps {
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

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/transcript"
)

// Import is a part of a transcript from another system, to be imported into a session.
type Import struct {
	Run     string // id of the run that the turns will belong to; importing it again changes nothing
	Keyed   bool   // Run derives from an idempotency key
	Agent   string
	Session string
	New     bool // the part is the session's first
	First   int  // number of the first line in its file
	Lines   []string
	At      int64 // Unix microseconds
}

// Import writes the usable lines as turns after those of the session, and stores the
// lines that were cut, in one transaction. The content is not verified: the inputs have
// an external principal, also when the creator imports them. Errors: NotFound for an
// agent or session that does not exist; Invalid when the session belongs to another agent
// or would be empty; Conflict when the session has runs that were not imported or is
// terminated, or, with ReasonKeyTaken, when the part's key is bound to another part.
func (s *Store) Import(ctx context.Context, in Import) (api.Imported, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (api.Imported, error) {
		out := api.Imported{Session: in.Session, Agent: in.Agent, Run: in.Run, Cut: []api.CutLine{}, At: in.At}
		if in.Keyed {
			if err := bindKey(ctx, tx, in.Run, fingerprint(append([]string{strconv.Itoa(in.First)}, in.Lines...)...), in.At); err != nil {
				return out, err
			}
		}
		if in.New {
			tx.Queue(ctx, `insert into sessions (id, agent, created_at, updated_at)
				select $1, id, $3, $3 from agents where id = $2 and deleted_at = 0 on conflict (id) do nothing`, in.Session, in.Agent, in.At)
		}
		position, after, before, err := s.importing(ctx, tx, in)
		switch {
		case err != nil:
			return out, err
		case before != nil:
			return *before, nil
		}
		r := transcript.Repair(in.Lines, in.First, after)
		out.Turns, out.Kept = len(r.Turns), r.Kept
		for _, c := range r.Cuts {
			out.Cut = append(out.Cut, api.CutLine{Line: c.Line, Reason: c.Reason, Text: beginning(c.Text)})
		}
		if in.New && len(r.Turns) == 0 {
			return out, nothingLeft(out)
		}
		return out, importAll(ctx, tx, in, r, position, out)
	})
}

// importing locks the session and returns the position and the end, in Unix microseconds,
// of its last turn, after which the part is inserted. before is the stored answer if the
// part was imported already.
func (s *Store) importing(ctx context.Context, tx *sqldb.Tx, in Import) (position, after int64, before *api.Imported, err error) {
	var agent string
	var terminated int64
	err = tx.QueryRowContext(ctx, `select agent, turns, terminated_at from sessions where id = $1`+s.db.ForUpdate(), in.Session).Scan(&agent, &position, &terminated)
	switch {
	case errors.Is(err, sqldb.ErrNotFound) && in.New: // probably the agent does not exist
		_, err = s.agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`, in.Agent))
		return 0, 0, nil, err
	case errors.Is(err, sqldb.ErrNotFound):
		return 0, 0, nil, &api.Error{Code: api.NotFound, Message: "there is no such session", Next: "leave the session out for the first part of a transcript, which creates a session"}
	case err != nil:
		return 0, 0, nil, err
	case agent != in.Agent:
		return 0, 0, nil, &api.Error{Code: api.Invalid, Message: "session " + in.Session + " belongs to " + agent, Next: "import for " + agent + ", or leave the session out"}
	}
	err = tx.QueryRowContext(ctx, `select answer from imports where run = $1`, in.Run).Scan(sqldb.JSON(&before))
	if err == nil || !errors.Is(err, sqldb.ErrNotFound) {
		return 0, 0, before, err
	}
	if terminated != 0 {
		return 0, 0, nil, &api.Error{Code: api.Conflict, Reason: api.ReasonTerminated, Message: "session " + in.Session + " is terminated", Next: "import into a new session"}
	}
	own, err := sqldb.One[bool](ctx, tx, `select exists (select 1 from runs where session = $1
		and id not in (select run from imports where session = $1))`, in.Session)
	if err != nil {
		return 0, 0, nil, err
	}
	if own {
		return 0, 0, nil, &api.Error{
			Code: api.Conflict, Message: "session " + in.Session + " has runs of its own: a transcript cannot be appended to it",
			Next: "import into a new session",
		}
	}
	after, err = sqldb.One[int64](ctx, tx, `select coalesce(max(ended_at), 0) from turns where session = $1`, in.Session)
	return position, after, nil, err
}

func importAll(ctx context.Context, tx *sqldb.Tx, in Import, r transcript.Repaired, position int64, out api.Imported) error {
	cmd := api.Run{Run: in.Run, Agent: in.Agent, Session: in.Session, Kind: api.RunImport, By: api.Principal{Kind: api.External}, AcceptedAt: in.At}
	end := engine.End{Run: cmd, Success: true, Turns: len(r.Turns), At: in.At, State: api.StateSleeping, Why: "imported", Outcome: api.OutcomeConsumed}
	var texts [4]string
	for i, v := range []any{cmd, engine.Input{By: cmd.By}, end, out} {
		data, err := api.Encode(v)
		if err != nil {
			return err
		}
		texts[i] = string(data)
	}
	tx.Queue(ctx, `insert into runs (id, session, agent, command, input, turns, ending, fate, started_at, ended_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)`, in.Run, in.Session, in.Agent, texts[0], texts[1], len(r.Turns), texts[2], api.OutcomeConsumed, in.At)
	for i, t := range r.Turns {
		id := fmt.Sprintf("%s.%d", in.Run, i+1)
		tx.Queue(ctx, `insert into turns (`+turnColumns+`) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, '', $10, '', 'import', 'stop', 0, 0, 0, '', $11, $12)`,
			id, in.Run, i+1, in.Session, in.Agent, position+int64(i)+1, api.StateRunning, text(t.Input), api.External, text(t.Thinking), t.StartedAt, t.EndedAt)
		for n, c := range t.Calls {
			tx.Queue(ctx, `insert into tool_calls (turn_id, idx, provider_id, name, arguments, outcome, result)
				values ($1, $2, $3, $4, $5, $6, $7)`, id, n, text(c.ID), text(c.Tool), text(string(c.Arguments)), api.OutcomeOK, text(c.Result))
		}
	}
	tx.Queue(ctx, `insert into imports (run, session, answer, imported_at) values ($1, $2, $3, $4)`, in.Run, in.Session, text(texts[3]), in.At)
	for i, c := range r.Cuts {
		tx.Queue(ctx, `insert into import_cuts (run, idx, line, reason, content) values ($1, $2, $3, $4, $5)`, in.Run, i, c.Line, text(c.Reason), text(c.Text))
	}
	tx.Queue(ctx, `update sessions set turns = turns + $2, runs = runs + $3, updated_at = $4 where id = $1`, in.Session, len(r.Turns), r.Users, in.At)
	return nil
}

// beginning returns the first 200 characters of a cut line, for the answer.
func beginning(s string) string {
	const most = 200
	s = text(s)
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}

func nothingLeft(out api.Imported) error {
	e := &api.Error{
		Code: api.Invalid, Message: "no line of the transcript can be used; nothing was imported",
		Next: `give one message a line: {"role":"user","content":"…","timestamp":"2026-11-21T08:00:00.000Z"}`,
	}
	const most = 20
	for _, c := range out.Cut[:min(len(out.Cut), most)] {
		e.Details = append(e.Details, fmt.Sprintf("line %d: %s", c.Line, c.Reason))
	}
	if more := len(out.Cut) - most; more > 0 {
		e.Details = append(e.Details, fmt.Sprintf("and %d more", more))
	}
	return e
}

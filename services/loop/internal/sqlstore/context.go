package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Conversation implements engine.ContextStore.
func (s *Store) Conversation(ctx context.Context, session, id string, n int) (engine.Conversation, error) {
	last, err := s.compaction(ctx, session, `where c.session = $1 order by c.through desc limit 1`, session)
	if err != nil {
		return engine.Conversation{}, err
	}
	reset, err := sqldb.One[int64](ctx, s.db, `select reset_through from sessions where id = $1`, session)
	if err = missing(err, nil); err != nil {
		return engine.Conversation{}, err
	}
	if reset > last.Through { // the session was reset: no summary covers turns before it
		last = engine.Compaction{Session: session, Through: reset}
	}
	c, err := s.after(ctx, last, math.MaxInt64, n)
	if err == nil && last.Turn == id {
		c.Paid, err = sqldb.One[api.Micros](ctx, s.db, `select coalesce(sum(cost), 0) from compactions where session = $1 and turn_id = $2`, session, id)
	}
	return c, err
}

// after returns the latest n turns of a session between a compaction and a position, and
// the token counts that were reported before the position.
func (s *Store) after(ctx context.Context, last engine.Compaction, before int64, n int) (c engine.Conversation, err error) {
	c.Last = last
	if c.Turns, err = s.turns(ctx, `where session = $1 and position > $2 and position < $3 order by position desc limit $4`,
		last.Session, last.Through, before, n); err != nil {
		return c, err
	}
	slices.Reverse(c.Turns)
	c.Calls, err = s.reported(ctx, last.Session, before)
	return c, err
}

// compaction returns the compaction of a session that a condition selects; if there is
// none, one without a summary.
func (s *Store) compaction(ctx context.Context, session, where string, args ...any) (engine.Compaction, error) {
	c, err := compactionRow(s.db.QueryRowContext(ctx, compactionColumns+` `+where, args...))
	c.Session = session
	return c, missing(err, nil)
}

// reported returns the models and token counts of a session's latest 20 turns before a
// position, oldest first.
func (s *Store) reported(ctx context.Context, session string, before int64) ([]engine.Reported, error) {
	all, err := sqldb.All(ctx, s.db, func(r sqldb.Scanner) (engine.Reported, error) {
		var v engine.Reported
		err := r.Scan(&v.Model, &v.Counted, &v.Reported)
		return v, err
	}, `select t.model, coalesce(p.counted, t.counted), t.input_tokens from turns t left join prompts p on p.turn_id = t.id
		where t.session = $1 and t.input_tokens > 0 and t.position < $2 and (t.reference <> '' or p.turn_id is not null)
		order by t.position desc limit 20`, session, before)
	slices.Reverse(all)
	return all, err
}

const compactionColumns = `select c.session, c.through, b.text, c.turn_id, c.stage, c.cost, c.tokens_before, c.tokens_after, c.created_at
	from compactions c join blobs b on b.hash = c.summary`

func compactionRow(r sqldb.Scanner) (c engine.Compaction, err error) {
	err = r.Scan(&c.Session, &c.Through, &c.Summary, &c.Turn, &c.Stage, &c.Cost, &c.Before, &c.After, &c.At)
	return c, err
}

// Recorded implements engine.ContextStore. The rows that it reads do not change any more,
// so it needs no transaction.
func (s *Store) Recorded(ctx context.Context, id string) (engine.Recording, error) {
	var rec engine.Recording
	t, err := s.turn(ctx, id)
	if err != nil {
		return rec, err
	}
	rec.Turn = t.Turn
	session, number := t.Session, t.Number
	var end *engine.End
	err = s.db.QueryRowContext(ctx, `select r.command, r.input, r.ending, coalesce(p.reference, nullif(t.reference, '')), coalesce(a.reference, nullif(n.reference, '')),
			(select coalesce(sum(cost), 0) from turns where run = $2 and number < $3)
		from runs r left join turns t on t.id = $1 left join prompts p on p.turn_id = $1
			left join turns n on n.session = $4 and n.position = $5 left join prompts a on a.turn_id = n.id
		where r.id = $2`, id, t.Run, number, session, t.Position+1).
		Scan(sqldb.JSON(&rec.Run), sqldb.JSON(&rec.Input), sqldb.JSON(&end), sqldb.JSON(&rec.Reference), sqldb.JSON(&rec.After), &rec.Cost)
	if err != nil {
		return rec, fmt.Errorf("recording of turn %s: %w", id, err)
	}
	if end != nil && end.Turns == number {
		rec.End = end
	}
	if number > 1 { // a message that joined the run earlier has lowered its authority permanently
		by := &rec.Input.By
		if err = s.db.QueryRowContext(ctx, `select input_source, input_address from turns where run = $1 and number = $2`, t.Run, number-1).
			Scan(&by.Kind, &by.Address); err != nil {
			return rec, err
		}
	}
	if rec.Compactions, err = sqldb.All(ctx, s.db, compactionRow, compactionColumns+` where c.session = $1 and c.turn_id = $2 order by c.through`, session, id); err != nil {
		return rec, err
	}
	// The conversation as it was before the turn's completion. Without a summary it was
	// reset at this position.
	last, err := s.compaction(ctx, session, `where c.session = $1 and c.through = $2`, session, rec.Reference.Through)
	if err != nil {
		return rec, err
	}
	last.Through = rec.Reference.Through
	rec.Before, err = s.after(ctx, last, t.Position, prompt.Needed+number-1)
	return rec, err
}

// Compact implements engine.ContextStore.
func (s *Store) Compact(ctx context.Context, c engine.Compaction) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		summary := text(c.Summary)
		h := engine.Hash(summary)
		keep(ctx, tx, map[string]string{h: summary})
		tx.Queue(ctx, `insert into compactions (session, through, summary, turn_id, stage, cost, tokens_before, tokens_after, created_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (session, through) do nothing`,
			c.Session, c.Through, h, c.Turn, c.Stage, int64(c.Cost), c.Before, c.After, c.At)
		return nil
	})
}

// Keep implements engine.ContextStore.
func (s *Store) Keep(ctx context.Context, texts map[string]string) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		keep(ctx, tx, texts)
		return nil
	})
}

// keep inserts texts in the order of their hashes, so that concurrent writers of the same
// texts do not deadlock.
func keep(ctx context.Context, tx *sqldb.Tx, texts map[string]string) {
	for _, h := range slices.Sorted(maps.Keys(texts)) {
		tx.Queue(ctx, `insert into blobs (hash, text) values ($1, $2) on conflict (hash) do nothing`, h, texts[h])
	}
}

// Text implements engine.ContextStore.
func (s *Store) Text(ctx context.Context, hash string) (string, error) {
	v, err := sqldb.One[string](ctx, s.db, `select text from blobs where hash = $1`, hash)
	return v, missing(err, api.Errorf(api.NotFound, "there is no text %s", hash))
}

// Prompt implements engine.ContextStore.
func (s *Store) Prompt(ctx context.Context, id string) (engine.Reference, []prompt.Turn, error) {
	var r engine.Reference
	var session string
	err := s.db.QueryRowContext(ctx, `select coalesce(p.reference, t.reference), t.session from turns t left join prompts p on p.turn_id = t.id
		where t.id = $1 and (t.reference <> '' or p.turn_id is not null)`, id).
		Scan(sqldb.JSON(&r), &session)
	if errors.Is(err, sqldb.ErrNotFound) {
		return r, nil, &api.Error{Code: api.NotFound, Message: "no prompt is recorded for turn " + id, Next: "turns of older releases, and turns that failed before the model was called, have none"}
	}
	if err != nil {
		return r, nil, fmt.Errorf("prompt of turn %s: %w", id, err)
	}
	turns, err := s.turns(ctx, `where session = $1 and position >= $2 and position <= $3 order by position`, session, r.First, r.Last)
	return r, turns, err
}

package sqlstore

import (
	"context"
	"encoding/json"
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
	c := engine.Conversation{Last: engine.Compaction{Session: session}}
	last, err := compactionRow(session)(s.db.QueryRowContext(ctx, compactionColumns+` where c.session = $1 order by c.through desc limit 1`, session))
	switch {
	case err == nil:
		c.Last = last
	case !errors.Is(err, sqldb.ErrNotFound):
		return c, err
	}
	var reset int64
	if err := s.db.QueryRowContext(ctx, `select reset_through from sessions where id = $1`, session).Scan(&reset); err != nil && !errors.Is(err, sqldb.ErrNotFound) {
		return c, err
	}
	if reset > c.Last.Through { // the session was reset: no summary covers turns before it
		c.Last = engine.Compaction{Session: session, Through: reset}
	}
	if c.Last.Turn == id {
		if err := s.db.QueryRowContext(ctx, `select coalesce(sum(cost), 0) from compactions where session = $1 and turn_id = $2`, session, id).
			Scan(&c.Paid); err != nil {
			return c, err
		}
	}
	if c.Turns, err = s.positioned(ctx, `where session = $1 and position > $2 order by position desc limit $3`, session, c.Last.Through, n); err != nil {
		return c, err
	}
	slices.Reverse(c.Turns)
	c.Calls, err = s.reported(ctx, session, math.MaxInt64)
	return c, err
}

// reported returns the models and token counts of a session's latest 20 turns before a
// position, oldest first.
func (s *Store) reported(ctx context.Context, session string, before int64) ([]engine.Reported, error) {
	all, err := sqldb.All(ctx, s.db, func(r sqldb.Scanner) (engine.Reported, error) {
		var v engine.Reported
		return v, r.Scan(&v.Model, &v.Counted, &v.Reported)
	}, `select t.model, coalesce(p.counted, t.counted), t.input_tokens from turns t left join prompts p on p.turn_id = t.id
		where t.session = $1 and t.input_tokens > 0 and t.position < $2 and (t.reference <> '' or p.turn_id is not null)
		order by t.position desc limit 20`, session, before)
	slices.Reverse(all)
	return all, err
}

const compactionColumns = `select c.through, b.text, c.turn_id, c.stage, c.cost, c.tokens_before, c.tokens_after, c.created_at
	from compactions c join blobs b on b.hash = c.summary`

func compactionRow(session string) func(sqldb.Scanner) (engine.Compaction, error) {
	return func(r sqldb.Scanner) (engine.Compaction, error) {
		c := engine.Compaction{Session: session}
		return c, r.Scan(&c.Through, &c.Summary, &c.Turn, &c.Stage, &c.Cost, &c.Before, &c.After, &c.At)
	}
}

// Recorded implements engine.ContextStore. The rows that it reads do not change any more,
// so it needs no transaction.
func (s *Store) Recorded(ctx context.Context, id string) (engine.Recording, error) {
	var rec engine.Recording
	t, err := turnRow(s.db.QueryRowContext(ctx, turnColumns+` where id = $1`, id))
	if err != nil {
		return rec, err
	}
	all := []placed{t}
	if err := s.fillCalls(ctx, all); err != nil {
		return rec, err
	}
	rec.Turn = all[0].Turn
	session, number := t.Session, t.Number
	var command, input string
	var ending, reference, after sqldb.Null[string]
	err = s.db.QueryRowContext(ctx, `select r.command, r.input, r.ending, coalesce(p.reference, nullif(t.reference, '')), coalesce(a.reference, nullif(n.reference, '')),
			(select coalesce(sum(cost), 0) from turns where run = $2 and number < $3)
		from runs r left join turns t on t.id = $1 left join prompts p on p.turn_id = $1
			left join turns n on n.session = $4 and n.position = $5 left join prompts a on a.turn_id = n.id
		where r.id = $2`, id, t.Run, number, session, t.position+1).
		Scan(&command, &input, &ending, &reference, &after, &rec.Cost)
	if err != nil {
		return rec, err
	}
	var end engine.End
	for _, part := range []struct {
		text sqldb.Null[string]
		into any
	}{
		{sqldb.Null[string]{V: command, Valid: true}, &rec.Run},
		{sqldb.Null[string]{V: input, Valid: true}, &rec.Input},
		{ending, &end},
		{reference, &rec.Reference},
		{after, &rec.After},
	} {
		if !part.text.Valid {
			continue
		}
		if err := json.Unmarshal([]byte(part.text.V), part.into); err != nil {
			return rec, fmt.Errorf("recording of turn %s: %w", id, err)
		}
	}
	if ending.Valid && end.Turns == number {
		rec.End = &end
	}
	if number > 1 { // a message that joined the run earlier has lowered its authority permanently
		if rec.Input.By, err = s.authority(ctx, t.Run, number-1); err != nil {
			return rec, err
		}
	}
	if rec.Compactions, err = sqldb.All(ctx, s.db, compactionRow(session), compactionColumns+` where c.session = $1 and c.turn_id = $2 order by c.through`, session, id); err != nil {
		return rec, err
	}
	rec.Before, err = s.conversationBefore(ctx, session, t.position, rec.Reference.Through, prompt.Needed+number-1)
	return rec, err
}

// authority returns the principal of a run's turn as it was persisted.
func (s *Store) authority(ctx context.Context, run string, number int) (api.Principal, error) {
	var by api.Principal
	return by, s.db.QueryRowContext(ctx, `select input_source, input_address from turns where run = $1 and number = $2`, run, number).Scan(&by.Kind, &by.Address)
}

// conversationBefore returns a session as it was before the completion of the turn at a
// position, with the summary that ends at through.
func (s *Store) conversationBefore(ctx context.Context, session string, position, through int64, n int) (engine.Conversation, error) {
	c := engine.Conversation{Last: engine.Compaction{Session: session}}
	last, err := compactionRow(session)(s.db.QueryRowContext(ctx, compactionColumns+` where c.session = $1 and c.through = $2`, session, through))
	switch {
	case err == nil:
		c.Last = last
	case !errors.Is(err, sqldb.ErrNotFound):
		return c, err
	default:
		c.Last.Through = through // the conversation was reset at this position
	}
	if c.Turns, err = s.positioned(ctx, `where session = $1 and position > $2 and position < $3 order by position desc limit $4`,
		session, c.Last.Through, position, n); err != nil {
		return c, err
	}
	slices.Reverse(c.Turns)
	c.Calls, err = s.reported(ctx, session, position)
	return c, err
}

func (s *Store) positioned(ctx context.Context, where string, args ...any) ([]prompt.Turn, error) {
	all, err := s.turns(ctx, where, args...)
	out := make([]prompt.Turn, len(all))
	for i, t := range all {
		out[i] = prompt.Turn{Turn: t.Turn, Position: t.position}
	}
	return out, err
}

// Compact implements engine.ContextStore.
func (s *Store) Compact(ctx context.Context, c engine.Compaction) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		summary := text(c.Summary)
		h := engine.Hash(summary)
		if err := keep(ctx, tx, map[string]string{h: summary}); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `insert into compactions (session, through, summary, turn_id, stage, cost, tokens_before, tokens_after, created_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (session, through) do nothing`,
			c.Session, c.Through, h, c.Turn, c.Stage, int64(c.Cost), c.Before, c.After, c.At)
		return err
	})
}

// Keep implements engine.ContextStore.
func (s *Store) Keep(ctx context.Context, texts map[string]string) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error { return keep(ctx, tx, texts) })
}

// keep inserts texts in the order of their hashes, so that concurrent writers of the same
// texts do not deadlock.
func keep(ctx context.Context, tx *sqldb.Tx, texts map[string]string) error {
	for _, h := range slices.Sorted(maps.Keys(texts)) {
		if _, err := tx.ExecContext(ctx, `insert into blobs (hash, text) values ($1, $2) on conflict (hash) do nothing`, h, texts[h]); err != nil {
			return err
		}
	}
	return nil
}

// Text implements engine.ContextStore.
func (s *Store) Text(ctx context.Context, hash string) (string, error) {
	var v string
	err := s.db.QueryRowContext(ctx, `select text from blobs where hash = $1`, hash).Scan(&v)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", api.Errorf(api.NotFound, "there is no text %s", hash)
	}
	return v, err
}

// Prompt implements engine.ContextStore.
func (s *Store) Prompt(ctx context.Context, id string) (engine.Reference, []prompt.Turn, error) {
	var r engine.Reference
	var reference, session string
	err := s.db.QueryRowContext(ctx, `select coalesce(p.reference, t.reference), t.session from turns t left join prompts p on p.turn_id = t.id
		where t.id = $1 and (t.reference <> '' or p.turn_id is not null)`, id).
		Scan(&reference, &session)
	if errors.Is(err, sqldb.ErrNotFound) {
		return r, nil, &api.Error{Code: api.NotFound, Message: "no prompt is recorded for turn " + id, Next: "turns of older releases, and turns that failed before the model was called, have none"}
	}
	if err != nil {
		return r, nil, err
	}
	if err := json.Unmarshal([]byte(reference), &r); err != nil {
		return r, nil, fmt.Errorf("prompt of turn %s: %w", id, err)
	}
	turns, err := s.positioned(ctx, `where session = $1 and position >= $2 and position <= $3 order by position`, session, r.First, r.Last)
	return r, turns, err
}

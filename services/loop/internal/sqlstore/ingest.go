package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// digestAtOnce bounds the turns that one transaction takes into memory.
const digestAtOnce = 50

// Ingest takes the turns of a session that are not in memory yet into it, in their
// order, and says how many they were. What a turn leaves, and that it is done, is
// one transaction: a turn is taken in once, however often and by however many it is
// asked for, and whoever dies in between has done nothing.
func (s Memory) Ingest(ctx context.Context, session string, at int64) (int, error) {
	done := 0
	for {
		n, more, err := s.ingest(ctx, session, at)
		done += n
		if err != nil || !more {
			return done, err
		}
	}
}

func (s Memory) ingest(ctx context.Context, session string, at int64) (n int, more bool, err error) {
	var from int64
	err = s.db.QueryRowContext(ctx, `select position from memory_progress where session = $1`, session).Scan(&from)
	if err != nil && !errors.Is(err, sqldb.ErrNotFound) {
		return 0, false, err
	}
	// A turn never changes, so it may be read before its transaction.
	turns, err := s.turns(ctx, `where session = $1 and position > $2 order by position limit $3`, session, from, digestAtOnce)
	if err != nil || len(turns) == 0 {
		return 0, false, err
	}
	// Nor does what it leaves, and no transaction stays open while texts are read.
	digests := make([]memory.Digest, len(turns))
	for i, t := range turns {
		digests[i] = memory.DigestTurn(t.Turn)
	}
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		n = 0
		if _, err := tx.ExecContext(ctx, `insert into memory_progress (session, position) values ($1, 0) on conflict (session) do nothing`, session); err != nil {
			return err
		}
		var now int64
		if err := tx.QueryRowContext(ctx, `select position from memory_progress where session = $1`+s.db.ForUpdate(), session).Scan(&now); err != nil {
			return err
		}
		if now != from {
			return nil // another replica was faster: look again
		}
		for i, t := range turns {
			if err := s.digest(ctx, tx, t.Turn, digests[i]); err != nil {
				return fmt.Errorf("turn %s: %w", t.ID, err)
			}
		}
		if err := s.expire(ctx, tx, turns[0].Agent, at); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `update memory_progress set position = $2 where session = $1`, session, turns[len(turns)-1].position)
		n = len(turns)
		return err
	})
	return n, err == nil && (n == 0 || n == digestAtOnce), err
}

// digest writes what a turn leaves.
func (s Memory) digest(ctx context.Context, tx *sqldb.Tx, t api.Turn, d memory.Digest) error {
	if err := s.addEpisode(ctx, tx, t.Agent, d.Episode); err != nil {
		return err
	}
	for _, f := range d.Facts {
		if _, err := s.remember(ctx, tx, t.Agent, f); err != nil {
			return err
		}
	}
	for _, r := range d.Met {
		if err := s.noteRelation(ctx, tx, t.Agent, r); err != nil {
			return err
		}
	}
	for _, n := range d.Notes {
		if err := s.addNote(ctx, tx, t.Agent, n); err != nil {
			return err
		}
	}
	if err := s.summarise(ctx, tx, t, d); err != nil {
		return err
	}
	return s.rateProcedures(ctx, tx, t)
}

// rateProcedures counts, with the last turn of a run, what the run has done with
// the procedures that it recalled by name.
func (s Memory) rateProcedures(ctx context.Context, tx *sqldb.Tx, t api.Turn) error {
	var turns int
	var ending sql.NullString
	err := tx.QueryRowContext(ctx, `select turns, ending from runs where id = $1`, t.Run).Scan(&turns, &ending)
	if err != nil || !ending.Valid || turns != t.Number {
		return err
	}
	var end turn.End
	if err := json.Unmarshal([]byte(ending.String), &end); err != nil {
		return fmt.Errorf("end of run %s: %w", t.Run, err)
	}
	recalled, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (string, error) {
		var arguments string
		err := r.Scan(&arguments)
		return memory.ProcedureOf(arguments), err
	}, `select c.arguments from tool_calls c join turns t on t.id = c.turn_id
		where t.run = $1 and c.name = 'recall_procedure' and c.outcome = $2 order by t.number, c.idx`, t.Run, string(api.OutcomeOK))
	if err != nil {
		return err
	}
	worked, not := 1, 0
	if !end.Success {
		worked, not = 0, 1
	}
	slices.Sort(recalled)
	for _, name := range slices.Compact(recalled) {
		if _, err := tx.ExecContext(ctx, `update procedural_memory set success_count = success_count + $3, failure_count = failure_count + $4,
			last_used_at = $5 where agent = $1 and name = $2`, t.Agent, name, worked, not, t.EndedAt); err != nil {
			return err
		}
	}
	return nil
}

// maxDecisions are kept of a session, the last ones.
const maxDecisions = 10

// summarise brings the session's summary up to a turn.
func (s Memory) summarise(ctx context.Context, tx *sqldb.Tx, t api.Turn, d memory.Digest) error {
	var said, decisions, tools, outcomes string
	err := tx.QueryRowContext(ctx, `select summary, key_decisions, tools_used, outcomes from session_summaries where session = $1`+s.db.ForUpdate(), t.Session).
		Scan(&said, &decisions, &tools, &outcomes)
	if errors.Is(err, sqldb.ErrNotFound) {
		decisions, tools, outcomes = `[]`, `[]`, `{}`
	} else if err != nil {
		return err
	}
	var made, used []string
	count := map[string]int{}
	if err := errors.Join(json.Unmarshal([]byte(decisions), &made), json.Unmarshal([]byte(tools), &used), json.Unmarshal([]byte(outcomes), &count)); err != nil {
		return fmt.Errorf("summary of %s: %w", t.Session, err)
	}
	for _, n := range d.Notes {
		if n.Kind == "decision" {
			made = append(made, n.Content)
		}
	}
	for _, c := range t.Calls {
		if !slices.Contains(used, c.Tool) {
			used = append(used, c.Tool)
		}
	}
	slices.Sort(used)
	count[d.Episode.Outcome]++
	if len(t.Calls) == 0 && t.Thinking != "" {
		said = d.Episode.Summary
	}
	madeText, err1 := api.Encode(made[max(0, len(made)-maxDecisions):])
	usedText, err2 := api.Encode(used)
	countText, err3 := api.Encode(count)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `insert into session_summaries (session, agent, summary, key_decisions, tools_used, outcomes, turns, tokens, cost, created_at, updated_at)
		values ($1, $2, $3, $4, $5, $6, 1, $7, $8, $9, $9)
		on conflict (session) do update set summary = excluded.summary, key_decisions = excluded.key_decisions, tools_used = excluded.tools_used,
			outcomes = excluded.outcomes, turns = session_summaries.turns + 1, tokens = session_summaries.tokens + excluded.tokens,
			cost = session_summaries.cost + excluded.cost, updated_at = excluded.updated_at`,
		t.Session, t.Agent, text(said), text(string(notNull(madeText))), text(string(notNull(usedText))), string(countText), t.InputTokens+t.OutputTokens, int64(t.Cost), t.EndedAt)
	return err
}

// notNull makes a list of nothing one.
func notNull(list []byte) []byte {
	if string(list) == "null" {
		return []byte("[]")
	}
	return list
}

// expire removes what an agent has kept for long enough.
func (s Memory) expire(ctx context.Context, tx *sqldb.Tx, agent string, at int64) error {
	if _, err := tx.ExecContext(ctx, `delete from working_memory where agent = $1 and expires_at > 0 and expires_at <= $2`, agent, at); err != nil {
		return err
	}
	if err := s.drop(ctx, tx, agent, "expired", at, `and expires_at > 0 and expires_at <= $2 order by category, key limit 100`, at); err != nil {
		return err
	}
	if err := s.indexOld(ctx, tx, agent); err != nil {
		return err
	}
	old, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (id string, err error) {
		err = r.Scan(&id)
		return id, err
	},
		`select id from episodic_memory where agent = $1 and created_at < $2 order by created_at, id limit 500`, agent, at-memory.EpisodeLife.Microseconds())
	if err != nil {
		return err
	}
	for _, id := range old {
		if _, err := tx.ExecContext(ctx, `delete from episodic_memory where agent = $1 and id = $2`, agent, id); err != nil {
			return err
		}
		if err := unindex(ctx, tx, agent, memory.Episodic, id); err != nil {
			return err
		}
	}
	return nil
}

// indexOld puts facts into the index that a release without one has written.
func (s Memory) indexOld(ctx context.Context, tx *sqldb.Tx, agent string) error {
	all, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (f memory.Fact, err error) {
		err = r.Scan(&f.Category, &f.Key, &f.Value, &f.Source)
		return f, err
	}, `select category, key, value, source from semantic_memory t where agent = $1 and not exists (
			select 1 from memory_text m where m.scope = $2 and m.id = (t.category || '/' || t.key))
		order by category, key limit 100`, agent, scope(agent, memory.Semantic))
	if err != nil {
		return err
	}
	for _, f := range all {
		if err := index(ctx, tx, agent, memory.Semantic, f.ID(), f.Category, f.Key, f.Value, f.Source); err != nil {
			return err
		}
	}
	return nil
}

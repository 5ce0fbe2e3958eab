package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// Removed is the result of [Store.Delete].
type Removed struct {
	Address string
	At      int64     // when it was first deleted, Unix microseconds
	Runs    []api.Run // runs in progress; only run, agent and session are set
}

// Delete removes an agent from service in one transaction: it sets the agent's state to
// dead, terminates its sessions, cancels its runs and adds the announcement to the
// outbox. With forget it erases the agent's memories, its soul and the genesis prompts
// that it wrote. Deleting it again changes nothing, except what forget adds. Errors:
// NotFound.
func (s *Store) Delete(ctx context.Context, agent, reason string, forget bool, at int64) (Removed, error) {
	var out Removed
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		out = Removed{}
		var was api.AgentState
		err := tx.QueryRowContext(ctx, `select state, address, deleted_at from agents where id = $1`+s.db.ForUpdate(), agent).Scan(&was, &out.Address, &out.At)
		if errors.Is(err, sqldb.ErrNotFound) {
			return noAgent(agent)
		}
		if err != nil {
			return err
		}
		if out.At == 0 {
			out.At = at
			if err := s.retire(ctx, tx, agent, was, reason, at); err != nil {
				return err
			}
		}
		out.Runs, err = sqldb.All(ctx, tx, func(r sqldb.Scanner) (api.Run, error) {
			cmd := api.Run{Agent: agent}
			return cmd, r.Scan(&cmd.Run, &cmd.Session)
		}, `select id, session from runs where agent = $1 and ending is null order by session, id`, agent)
		if err != nil {
			return err
		}
		for _, cmd := range out.Runs {
			if err := s.cancel(ctx, tx, cmd.Run, cmd.Session, "the agent was deleted: "+reason, at); err != nil {
				return err
			}
		}
		if forget {
			return erase(ctx, tx, agent)
		}
		return nil
	})
	return out, err
}

func noAgent(id string) error {
	return &api.Error{Code: api.NotFound, Message: "there is no agent " + id, Next: "anima agent list shows the ones there are; anima agent apply makes one"}
}

// retire marks an agent deleted. The caller's transaction has locked its row.
func (s *Store) retire(ctx context.Context, tx *sqldb.Tx, agent string, was api.AgentState, reason string, at int64) error {
	if _, err := tx.ExecContext(ctx, `update sessions set terminated_at = $2, terminated_reason = $3 where agent = $1 and terminated_at = 0`,
		agent, at, text("the agent was deleted: "+reason)); err != nil {
		return err
	}
	c := &api.AgentChanged{Agent: agent, Previous: was, State: api.StateDead, At: at}
	err := tx.QueryRowContext(ctx, `update agents set deleted_at = $2, state = $3, state_reason = $4, sleep_until = 0, state_seq = state_seq + 1,
		state_by = '', state_since = $2, updated_at = $2, zero_since = 0 where id = $1 returning name, address, state_reason, state_seq`,
		agent, at, api.StateDead, text("deleted: "+reason)).Scan(&c.Name, &c.Address, &c.Reason, &c.Seq)
	if err != nil {
		return err
	}
	s.note(ctx, tx, "", c)
	return outbox.Add(ctx, tx, changeID(c), *c)
}

// restore undoes the deletion of an agent and sets its state to sleeping. Its main
// session and its session for mail are reopened; its other sessions stay terminated. The
// caller announces the change.
func restore(ctx context.Context, tx *sqldb.Tx, agent string, at int64) error {
	if _, err := tx.ExecContext(ctx, `update agents set deleted_at = 0, state = $2, state_reason = 'applied again', state_since = $3, zero_since = 0
		where id = $1`, agent, api.StateSleeping, at); err != nil {
		return err
	}
	a, err := agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`, agent))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `update sessions set terminated_at = 0, terminated_reason = '' where id in ($1, $2)`, a.Session, a.Mail)
	return err
}

// erase deletes an agent's memories and resets its sessions: their turns remain in the
// transcripts and are not sent to a model. It marks all turns as ingested, so that they
// do not become memories later.
func erase(ctx context.Context, tx *sqldb.Tx, agent string) error {
	for _, table := range []string{
		"working_memory", "episodic_memory", "session_summaries", "semantic_memory", "semantic_history", "procedural_memory",
		"relationship_memory", "soul_history", "genesis_prompts",
	} {
		if _, err := tx.ExecContext(ctx, `delete from `+table+` where agent = $1`, agent); err != nil {
			return fmt.Errorf("erase %s: %w", table, err)
		}
	}
	if _, err := tx.ExecContext(ctx, `update sessions set reset_through = turns where agent = $1`, agent); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `insert into memory_progress (session, position) select id, turns from sessions where agent = $1
		on conflict (session) do update set position = excluded.position`, agent); err != nil {
		return err
	}
	for _, tier := range memory.Tiers() {
		if _, err := tx.ExecContext(ctx, `delete from memory_text where scope = $1`, scope(agent, tier)); err != nil {
			return err
		}
	}
	return nil
}

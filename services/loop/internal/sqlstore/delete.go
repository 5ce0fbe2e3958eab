package sqlstore

import (
	"cmp"
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// Removed is the result of [Store.Delete].
type Removed struct {
	Address  string
	At       int64     // when it was first deleted, Unix microseconds
	Runs     []api.Run // runs in progress that the store has; only run, agent and session are set
	Sessions []string  // the sessions that are reopened when the agent is applied again
}

// Delete removes an agent from service in one transaction: it sets the agent's state to
// dead, terminates its sessions, cancels its runs and adds the announcement to the
// outbox. A run whose begin the store does not have is cancelled by the termination of
// its session. With forget it erases the agent's memories, its soul and the genesis prompts
// that it wrote. Deleting it again changes nothing, except what forget adds. Errors:
// NotFound.
func (s *Store) Delete(ctx context.Context, agent, reason string, forget bool, at int64) (Removed, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (out Removed, err error) {
		var was api.AgentState
		var main, mail string
		err = tx.QueryRowContext(ctx, `select state, address, deleted_at, main_session, mail_session from agents where id = $1`+s.db.ForUpdate(), agent).
			Scan(&was, &out.Address, &out.At, &main, &mail)
		if err != nil {
			return out, missing(err, &api.Error{Code: api.NotFound, Message: "there is no agent " + agent, Next: agentsNext})
		}
		out.Sessions = []string{cmp.Or(main, MainSession(agent)), cmp.Or(mail, MailSession(agent))}
		if out.At == 0 {
			out.At = at
			if err := s.retire(ctx, tx, agent, was, reason, at); err != nil {
				return out, err
			}
		}
		out.Runs, err = sqldb.All(ctx, tx, func(r sqldb.Scanner) (api.Run, error) {
			cmd := api.Run{Agent: agent}
			err := r.Scan(&cmd.Run, &cmd.Session)
			return cmd, err
		}, `select id, session from runs where agent = $1 and ending is null order by session, id`, agent)
		if err != nil {
			return out, err
		}
		for _, cmd := range out.Runs {
			if err := s.cancel(ctx, tx, cmd.Run, cmd.Session, Deleted(reason), at); err != nil {
				return out, err
			}
		}
		if forget {
			erase(ctx, tx, agent, at)
		}
		return out, nil
	})
}

// Deleted returns the reason for which the runs and sessions of a deleted agent ended.
func Deleted(reason string) string { return "the agent was deleted: " + reason }

// retire marks an agent deleted. The caller's transaction has locked its row.
func (s *Store) retire(ctx context.Context, tx *sqldb.Tx, agent string, was api.AgentState, reason string, at int64) error {
	tx.Queue(ctx, `update sessions set terminated_at = $2, terminated_reason = $3 where agent = $1 and terminated_at = 0`,
		agent, at, text(Deleted(reason)))
	c := &api.AgentChanged{Agent: agent, Previous: was, State: api.StateDead, At: at}
	err := tx.QueryRowContext(ctx, `update agents set deleted_at = $2, state = $3, state_reason = $4, sleep_until = 0, state_seq = state_seq + 1,
		state_by = '', state_since = $2, updated_at = $2, zero_since = 0 where id = $1 returning name, address, state_reason, state_seq`,
		agent, at, api.StateDead, text("deleted: "+reason)).Scan(&c.Name, &c.Address, &c.Reason, &c.Seq)
	if err != nil {
		return err
	}
	s.note(ctx, tx, "", c)
	return announce(ctx, tx, c)
}

// restore undoes the deletion of an agent, stores its present address and sets its state
// to sleeping. Its main session and its session for mail are reopened; its other sessions
// stay terminated. The caller announces the change.
func (s *Store) restore(ctx context.Context, tx *sqldb.Tx, agent, address string, at int64) error {
	tx.Queue(ctx, `update agents set deleted_at = 0, address = $4, state = $2, state_reason = 'applied again', state_since = $3, zero_since = 0
		where id = $1`, agent, api.StateSleeping, at, address)
	a, err := s.agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`, agent))
	if err != nil {
		return err
	}
	tx.Queue(ctx, `update sessions set terminated_at = 0, terminated_reason = '' where id in ($1, $2)`, a.Session, a.Mail)
	return nil
}

// erase deletes an agent's memories and resets its sessions: their turns remain in the
// transcripts and are not sent to a model. It marks all turns as ingested, so that they
// do not become memories later. Persist does the same for a turn that is stored later, of
// a run that was accepted before, see [skip].
func erase(ctx context.Context, tx *sqldb.Tx, agent string, at int64) {
	tx.Queue(ctx, `update agents set forgotten_at = $2 where id = $1`, agent, at)
	for _, table := range []string{
		"working_memory", "episodic_memory", "session_summaries", "semantic_memory", "semantic_history", "procedural_memory",
		"relationship_memory", "soul_history", "genesis_prompts",
	} {
		tx.Queue(ctx, `delete from `+table+` where agent = $1`, agent)
	}
	skip(ctx, tx, `agent = $1`, agent)
	for _, tier := range memory.Tiers() {
		tx.Queue(ctx, `delete from memory_text where scope = $1`, scope(agent, tier))
	}
}

// skip excludes the turns so far of the sessions that where selects from prompts and from
// memories.
func skip(ctx context.Context, tx *sqldb.Tx, where, arg string) {
	tx.Queue(ctx, `update sessions set reset_through = turns where `+where, arg)
	tx.Queue(ctx, `insert into memory_progress (session, position) select id, turns from sessions where `+where+`
		on conflict (session) do update set position = excluded.position`, arg)
}

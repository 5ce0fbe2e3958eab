package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/lifecycle"
)

// historyKept is the number of an agent's state changes that remain when its history is
// pruned.
const historyKept = 500

// change is a requested change of an agent's state.
type change struct {
	to    api.AgentState
	why   string
	until int64  // of a sleep
	by    string // run
	paid  bool   // the agent was funded: a dead agent may change
	at    int64
}

// move locks the agent's row, changes its state if [lifecycle.Allowed] permits it, and records
// the reason. It returns nil if the change is not permitted.
func (s *Store) move(ctx context.Context, tx *sqldb.Tx, agent string, c change) (*api.AgentChanged, error) {
	var was api.AgentState
	if err := tx.QueryRowContext(ctx, `select state from agents where id = $1`+s.db.ForUpdate(), agent).Scan(&was); err != nil {
		return nil, err
	}
	return s.moveFrom(ctx, tx, agent, was, c)
}

// moveFrom is move for a transaction that has locked the agent's row and read its state.
func (s *Store) moveFrom(ctx context.Context, tx *sqldb.Tx, agent string, was api.AgentState, c change) (*api.AgentChanged, error) {
	made, err := s.moves(ctx, tx, agent, was, []change{c})
	if err != nil {
		return nil, err
	}
	return made[0], nil
}

// moves applies changes of an agent in order and records their reasons. It skips a change
// that [lifecycle.Allowed] does not permit, or that would revive a dead agent without funding.
// The transaction has locked the agent's row and read its state. The result has an
// element for each change, nil for a skipped one.
func (s *Store) moves(ctx context.Context, tx *sqldb.Tx, agent string, was api.AgentState, asked []change) ([]*api.AgentChanged, error) {
	made := make([]*api.AgentChanged, len(asked))
	var all []*api.AgentChanged
	var last change
	for i, c := range asked {
		if !lifecycle.Allowed(was, c.to) || was == api.StateDead && !c.paid {
			continue
		}
		made[i] = &api.AgentChanged{Agent: agent, Previous: was, State: c.to, Reason: text(c.why), SleepUntil: c.until, At: c.at}
		all = append(all, made[i])
		was, last = c.to, c
	}
	if len(all) == 0 {
		return made, nil
	}
	var name, address string
	var seq int64
	err := tx.QueryRowContext(ctx, `update agents set state = $2, state_reason = $3, sleep_until = $4, state_seq = state_seq + $7,
		state_by = $5, state_since = $6, updated_at = $6 where id = $1 returning name, address, state_seq`,
		agent, last.to, text(last.why), last.until, last.by, last.at, len(all)).Scan(&name, &address, &seq)
	if err != nil {
		return nil, err
	}
	for i, c := range all {
		c.Name, c.Address, c.Seq = name, address, seq-int64(len(all)-1-i)
	}
	s.note(ctx, tx, last.by, all...)
	return made, nil
}

// changed returns the elements of made that are not nil.
func changed(made []*api.AgentChanged) (all []api.AgentChanged) {
	for _, c := range made {
		if c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// note adds changes of an agent to its history. It prunes the history at every hundredth
// change.
func (s *Store) note(ctx context.Context, tx *sqldb.Tx, run string, all ...*api.AgentChanged) {
	const columns = 8
	args := make([]any, 0, columns*len(all))
	prune := int64(0)
	for _, c := range all {
		args = append(args, c.Agent, c.Seq, c.State, c.Previous, c.Reason, c.SleepUntil, run, c.At)
		if c.Seq%100 == 0 {
			prune = c.Seq - historyKept
		}
	}
	tx.Queue(ctx, `insert into agent_history (agent, seq, state, previous, reason, sleep_until, run, at) values `+rows(len(all), columns), args...)
	if prune > 0 {
		tx.Queue(ctx, `delete from agent_history where agent = $1 and seq <= $2`, all[0].Agent, prune)
	}
}

// rows returns the placeholders of an insert of n rows.
func rows(n, columns int) string {
	var b strings.Builder
	for i := range n * columns {
		switch {
		case i == 0:
			b.WriteString("($")
		case i%columns == 0:
			b.WriteString("), ($")
		default:
			b.WriteString(", $")
		}
		b.WriteString(strconv.Itoa(i + 1))
	}
	b.WriteString(")")
	return b.String()
}

const historyColumns = `select h.agent, a.name, a.address, h.state, h.previous, h.reason, h.sleep_until, h.seq, h.at
	from agent_history h join agents a on a.id = h.agent`

func historyRow(r sqldb.Scanner) (api.AgentChanged, error) {
	var c api.AgentChanged
	return c, r.Scan(&c.Agent, &c.Name, &c.Address, &c.State, &c.Previous, &c.Reason, &c.SleepUntil, &c.Seq, &c.At)
}

// historyOf returns the state changes of an agent that a run has made, in order.
func (s *Store) historyOf(ctx context.Context, q sqldb.Querier, cmd api.Run) ([]api.AgentChanged, error) {
	return sqldb.All(ctx, q, historyRow, historyColumns+` where h.agent = $1 and h.run = $2 order by h.seq`, cmd.Agent, cmd.Run)
}

// Explain returns an agent's state, counters and latest state changes. The caller sets
// Next. Errors: NotFound.
func (s *Store) Explain(ctx context.Context, agent string, limit int) (api.Explanation, error) {
	var x api.Explanation
	var err error
	if x.Agent, err = s.Agent(ctx, agent); err != nil {
		return x, err
	}
	var counters string
	if err := s.db.QueryRowContext(ctx, `select a.state_since, s.counters from agents a join sessions s on s.id = $2 where a.id = $1`, agent, x.Agent.Session).
		Scan(&x.Since, &counters); err != nil {
		return x, err
	}
	if err := json.Unmarshal([]byte(counters), &x.Counters); err != nil {
		return x, fmt.Errorf("counters of %s: %w", x.Agent.Session, err)
	}
	x.History, err = notNil(sqldb.All(ctx, s.db, historyRow, historyColumns+` where h.agent = $1 order by h.seq desc limit $2`, agent, limit))
	return x, err
}

// SetState changes an agent's state from outside its runs and adds the announcement to
// the outbox in the same transaction. A dead agent changes only with paid. SetState
// returns nil if the change is not permitted. Errors: NotFound.
func (s *Store) SetState(ctx context.Context, agent string, to api.AgentState, why string, paid bool, until, at int64) (*api.AgentChanged, error) {
	var c *api.AgentChanged
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		c, err = s.move(ctx, tx, agent, change{to: to, why: why, until: until, paid: paid, at: at})
		if errors.Is(err, sqldb.ErrNotFound) {
			return api.Errorf(api.NotFound, "there is no agent %s", agent)
		}
		if err != nil || c == nil {
			return err
		}
		return outbox.Add(ctx, tx, changeID(c), *c)
	})
	return c, err
}

// Merge implements engine.Store.
func (s *Store) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	for _, cmd := range merged {
		if _, err := s.Drop(ctx, engine.End{Run: cmd, Input: engine.Input{By: cmd.By}, Success: true, At: at, Fate: api.FateMerged, Into: into.Run}); err != nil {
			return err
		}
	}
	return nil
}

// Drop ends a message with a fate and without a turn. It returns the stored end, which is
// another one if the run had ended before.
func (s *Store) Drop(ctx context.Context, end engine.End) (engine.End, error) {
	stored := end
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		cmd := end.Run
		if err := s.lockSession(ctx, tx, cmd.Session); err != nil {
			return err
		}
		written, err := s.beginRun(ctx, tx, cmd, end.Input, end.At)
		if err != nil {
			return err
		}
		var ending sqldb.Null[string]
		if err := tx.QueryRowContext(ctx, `select ending from runs where id = $1`, cmd.Run).Scan(&ending); err != nil {
			return err
		}
		if ending.Valid {
			stored = engine.End{}
			return json.Unmarshal([]byte(ending.V), &stored)
		}
		if !written && end.Fate == api.FateExpired {
			return api.Errorf(api.Conflict, "run %s has begun", cmd.Run)
		}
		stored = end
		data, err := api.Encode(end)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `update runs set ending = $2, ended_at = $3, fate = $4 where id = $1`, cmd.Run, string(data), end.At, end.Fate)
		return err
	})
	return stored, err
}

// Over implements engine.Store.
func (s *Store) Over(ctx context.Context, run string) (bool, error) {
	var n int
	err := s.db.QueryRowContext(ctx, `select count(*) from runs where id = $1 and ending is not null`, run).Scan(&n)
	return n > 0, err
}

// lockSession locks a session's row until the transaction ends. Errors: NotFound.
func (s *Store) lockSession(ctx context.Context, tx *sqldb.Tx, session string) error {
	var id string
	err := tx.QueryRowContext(ctx, `select id from sessions where id = $1`+s.db.ForUpdate(), session).Scan(&id)
	if errors.Is(err, sqldb.ErrNotFound) {
		return &api.Error{Code: api.NotFound, Message: "there is no session " + session, Next: "anima session list shows the ones there are"}
	}
	return err
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
	_, err := tx.ExecContext(ctx, `insert into cancels (run, session, reason, at)
		select $1, $2, $3, $4 where not exists (select 1 from runs where id = $1 and ending is not null)
		on conflict (run) do nothing`, run, session, text(reason), at)
	return err
}

// RunState returns the stored state of a run. Errors: NotFound, also for a run that waits
// in the queue and has no row yet.
func (s *Store) RunState(ctx context.Context, run string) (api.RunState, error) {
	var command string
	var ending, cancelled sqldb.Null[string]
	st := api.RunState{Run: run, Status: api.RunRunning}
	err := s.db.QueryRowContext(ctx, `select r.command, r.turns, r.cost, r.ending, r.fate, c.reason
		from runs r left join cancels c on c.run = r.id where r.id = $1`, run).
		Scan(&command, &st.Turns, &st.Cost, &ending, &st.Fate, &cancelled)
	if errors.Is(err, sqldb.ErrNotFound) {
		return st, &api.Error{Code: api.NotFound, Message: "there is no run " + run + " yet", Next: "a run that still waits is found with its session: anima run get " + run + " --session SESSION"}
	}
	if err != nil {
		return st, err
	}
	var cmd api.Run
	if err := json.Unmarshal([]byte(command), &cmd); err != nil {
		return st, fmt.Errorf("command of run %s: %w", run, err)
	}
	st.Session, st.Agent, st.Kind, st.AcceptedAt, st.Cancelled = cmd.Session, cmd.Agent, cmd.Kind, cmd.AcceptedAt, cancelled.Valid
	if !ending.Valid {
		st.Fate = ""
		return st, nil
	}
	var end engine.End
	if err := json.Unmarshal([]byte(ending.V), &end); err != nil {
		return st, fmt.Errorf("end of run %s: %w", run, err)
	}
	if st.Fate == "" { // written by a previous release
		st.Fate = api.FateConsumed
	}
	st.Status, st.Success, st.Code, st.Reason, st.Error, st.Next = api.RunEnded, end.Success, end.Code, end.Reason, end.Error, end.Next
	st.Response, st.Into, st.EndedAt = end.Response, end.Into, end.At
	return st, nil
}

// IsCancelled returns the reason why a run was cancelled, or "" if it was not.
func (s *Store) IsCancelled(ctx context.Context, run string) (string, error) {
	var why string
	err := s.db.QueryRowContext(ctx, `select reason from cancels where run = $1`, run).Scan(&why)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", nil
	}
	if err == nil && why == "" {
		why = "cancelled"
	}
	return why, err
}

// Terminate ends a session, which then accepts no messages. A repeated call keeps the
// first reason. If the session is the agent's main session or its session for mail, the
// same transaction creates a new one. Errors: NotFound.
func (s *Store) Terminate(ctx context.Context, session, reason string, at int64) (api.Session, error) {
	var out api.Session
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		if err := s.lockSession(ctx, tx, session); err != nil {
			return err
		}
		if out, err = sessionRow(tx.QueryRowContext(ctx, sessionColumns+` where id = $1`, session)); err != nil {
			return err
		}
		if out.Terminated != 0 {
			return nil
		}
		if err := s.replace(ctx, tx, out, at); err != nil {
			return err
		}
		out.Terminated, out.Reason = at, reason
		_, err = tx.ExecContext(ctx, `update sessions set terminated_at = $2, terminated_reason = $3 where id = $1`, session, at, text(reason))
		return err
	})
	return out, err
}

// replace creates a successor of a main session or a session for mail that ends. It does
// nothing for other sessions.
func (s *Store) replace(ctx context.Context, tx *sqldb.Tx, ends api.Session, at int64) error {
	a, err := agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`+s.db.ForUpdate(), ends.Agent))
	if err != nil {
		return err
	}
	column, first := "main_session", MainSession(a.ID)
	switch ends.ID {
	case a.Session:
	case a.Mail:
		column, first = "mail_session", MailSession(a.ID)
	default:
		return nil
	}
	for n := 2; ; n++ {
		next := first + "-" + strconv.Itoa(n)
		res, err := tx.ExecContext(ctx, `insert into sessions (id, agent, created_at, updated_at) values ($1, $2, $3, $3) on conflict (id) do nothing`, next, a.ID, at)
		if err != nil {
			return err
		}
		if made, err := res.RowsAffected(); err != nil {
			return err
		} else if made > 0 {
			_, err = tx.ExecContext(ctx, `update agents set `+column+` = $2 where id = $1`, a.ID, next)
			return err
		}
	}
}

// Reset excludes a session's turns so far from the prompts of later turns. They remain in
// the transcript. Errors: NotFound.
func (s *Store) Reset(ctx context.Context, session string) (api.Session, error) {
	var out api.Session
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		if err := s.lockSession(ctx, tx, session); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `update sessions set reset_through = turns where id = $1`, session); err != nil {
			return err
		}
		out, err = sessionRow(tx.QueryRowContext(ctx, sessionColumns+` where id = $1`, session))
		return err
	})
	return out, err
}

// Weigh changes an agent's state by its funds. The first call with owns <= 0 records the
// time; a call at least grace later makes the agent dead. A call with owns > 0 clears the
// time and returns a dead agent to sleeping. Weigh returns nil if the state does not
// change, and adds the announcement of a change to the outbox in the same transaction.
// Errors: NotFound.
func (s *Store) Weigh(ctx context.Context, agent string, owns api.Micros, grace time.Duration, at int64) (*api.AgentChanged, error) {
	var c *api.AgentChanged
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		c = nil
		var state api.AgentState
		var since int64
		err = tx.QueryRowContext(ctx, `select state, zero_since from agents where deleted_at = 0 and id = $1`+s.db.ForUpdate(), agent).Scan(&state, &since)
		if errors.Is(err, sqldb.ErrNotFound) {
			return api.Errorf(api.NotFound, "there is no agent %s", agent)
		}
		if err != nil {
			return err
		}
		begins := since
		switch {
		case owns > 0:
			begins = 0
		case since == 0:
			begins = at
		}
		if begins != since {
			if _, err := tx.ExecContext(ctx, `update agents set zero_since = $2 where id = $1`, agent, begins); err != nil {
				return err
			}
		}
		var to change
		switch {
		case owns > 0 && state == api.StateDead:
			to = change{to: api.StateSleeping, why: "funded", paid: true, at: at}
		case owns <= 0 && state != api.StateDead && at-begins >= grace.Microseconds():
			to = change{to: api.StateDead, why: "without any credits for " + grace.String(), at: at}
		default:
			return nil
		}
		if c, err = s.move(ctx, tx, agent, to); err != nil || c == nil {
			return err
		}
		return outbox.Add(ctx, tx, changeID(c), *c)
	})
	return c, err
}

// Poor returns at most 1000 agents that are without funds, critical or dead, by id.
func (s *Store) Poor(ctx context.Context) ([]string, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (string, error) {
		var id string
		return id, r.Scan(&id)
	}, `select id from agents where deleted_at = 0 and (zero_since > 0 or state in ($1, $2)) order by id limit 1000`, api.StateDead, api.StateCritical)
}

// QueueTimeout returns how long a message for an agent may wait for its session. Errors:
// NotFound.
func (s *Store) QueueTimeout(ctx context.Context, id string) (time.Duration, error) {
	var def string
	err := s.db.QueryRowContext(ctx, `select definition from agents where id = $1`, id).Scan(&def)
	if errors.Is(err, sqldb.ErrNotFound) {
		return 0, api.Errorf(api.NotFound, "there is no agent %s", id)
	}
	if err != nil {
		return 0, err
	}
	var d agent.Definition
	if err := json.Unmarshal([]byte(def), &d); err != nil {
		return 0, fmt.Errorf("definition of %s: %w", id, err)
	}
	return d.Limits.QueueTimeout, nil
}

// Since returns an agent's state and the time at which it entered it, in Unix
// microseconds. Errors: NotFound.
func (s *Store) Since(ctx context.Context, agent string) (api.AgentState, int64, error) {
	var state api.AgentState
	var since int64
	err := s.db.QueryRowContext(ctx, `select state, state_since from agents where id = $1`, agent).Scan(&state, &since)
	if errors.Is(err, sqldb.ErrNotFound) {
		err = api.Errorf(api.NotFound, "there is no agent %s", agent)
	}
	return state, since, err
}

package sqlstore

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/goal"
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
// the reason and the announcement. It returns nil if the change is not permitted.
func (s *Store) move(ctx context.Context, tx *sqldb.Tx, agent string, c change) (*api.AgentChanged, error) {
	was, err := s.lockState(ctx, tx, agent)
	if err != nil {
		return nil, err
	}
	made, err := s.moves(ctx, tx, agent, was, []change{c})
	if err != nil || made[0] == nil {
		return nil, err
	}
	return made[0], announce(ctx, tx, made[0])
}

// lockState locks an agent's row and returns its state.
func (s *Store) lockState(ctx context.Context, tx *sqldb.Tx, agent string) (api.AgentState, error) {
	return sqldb.One[api.AgentState](ctx, tx, `select state from agents where id = $1`+s.db.ForUpdate(), agent)
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
	prune := false
	for _, c := range all {
		args = append(args, c.Agent, c.Seq, c.State, c.Previous, c.Reason, c.SleepUntil, run, c.At)
		prune = prune || c.Seq%100 == 0
	}
	tx.Queue(ctx, `insert into agent_history (agent, seq, state, previous, reason, sleep_until, run, at) values `+sqldb.Placeholders(len(all), columns), args...)
	if prune { // the numbers have gaps
		tx.Queue(ctx, `delete from agent_history where agent = $1 and seq <= (
			select seq from agent_history where agent = $1 order by seq desc limit 1 offset $2)`, all[0].Agent, historyKept)
	}
}

const stateColumns = `select id, name, address, state, state_reason, sleep_until, state_seq, state_since`

// stateRow returns the present state of an agent as a change that has not changed it.
func stateRow(r sqldb.Scanner, more ...any) (api.AgentChanged, error) {
	var c api.AgentChanged
	err := r.Scan(append([]any{&c.Agent, &c.Name, &c.Address, &c.State, &c.Reason, &c.SleepUntil, &c.Seq, &c.At}, more...)...)
	c.Previous = c.State
	return c, err
}

// Schedules returns at most limit agents with ids greater than after, ordered by id, including
// deleted ones, with their present states and the schedules of their definitions.
func (s *Store) Schedules(ctx context.Context, after string, limit int) ([]api.AgentSchedule, error) {
	return notNil(sqldb.All(ctx, s.db, func(r sqldb.Scanner) (api.AgentSchedule, error) {
		var definition string
		var deleted int64
		c, err := stateRow(r, &definition, &deleted)
		out := api.AgentSchedule{State: c, Beats: []api.Beat{}}
		if err != nil || deleted != 0 {
			return out, err
		}
		d, err := s.definitions.decode(c.Agent, definition)
		out.Beats = d.Beats()
		return out, err
	}, stateColumns+`, definition, deleted_at from agents where id > $1 order by id limit $2`, after, limit))
}

// renumberedAtOnce is the number of agents that one transaction of [Store.Renumber] changes:
// other transactions wait for it.
const renumberedAtOnce = 100

// Renumber raises the numbers of the agents' changes to a time, in Unix microseconds, unless
// they are higher, and adds the announcement of each changed agent, with its present state, to
// the outbox in the same transaction. The database may be an older copy, whose next numbers
// heartbeat and social have seen before. Deleted agents are included. It returns the number of
// changed agents; a repeated call changes none.
func (s *Store) Renumber(ctx context.Context, at int64) (count int, err error) {
	for {
		n, err := sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (int, error) {
			all, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (api.AgentChanged, error) { return stateRow(r) },
				stateColumns+` from agents where state_seq < $1 order by id limit $2`+tx.ForUpdate(), at, renumberedAtOnce)
			for _, c := range all {
				c.Seq = at
				tx.Queue(ctx, `update agents set state_seq = $2 where id = $1`, c.Agent, at)
				err = cmp.Or(err, announce(ctx, tx, &c))
			}
			return len(all), err
		})
		if err != nil || n == 0 {
			return count, err
		}
		count += n
	}
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
	if err := s.db.QueryRowContext(ctx, `select a.state_since, s.counters from agents a join sessions s on s.id = $2 where a.id = $1`, agent, x.Agent.Session).
		Scan(&x.Since, sqldb.JSON(&x.Counters)); err != nil {
		return x, err
	}
	x.History, err = notNil(sqldb.All(ctx, s.db, historyRow, historyColumns+` where h.agent = $1 order by h.seq desc limit $2`, agent, limit))
	return x, err
}

// SetState changes an agent's state from outside its runs and adds the announcement to
// the outbox in the same transaction. A dead agent changes only with paid. SetState
// returns nil if the change is not permitted. Errors: NotFound.
func (s *Store) SetState(ctx context.Context, agent string, to api.AgentState, why string, paid bool, until, at int64) (*api.AgentChanged, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (*api.AgentChanged, error) {
		c, err := s.move(ctx, tx, agent, change{to: to, why: why, until: until, paid: paid, at: at})
		return c, missing(err, noAgent(agent))
	})
}

// ApplyBalance changes an agent's state by its funds. The first call with owns <= 0 records the
// time; a call at least grace later makes the agent dead. A call with owns > 0 clears the
// time and returns a dead agent to sleeping. ApplyBalance returns nil if the state does not
// change, and adds the announcement of a change to the outbox in the same transaction.
// Errors: NotFound.
func (s *Store) ApplyBalance(ctx context.Context, agent string, owns api.Micros, grace time.Duration, at int64) (*api.AgentChanged, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (*api.AgentChanged, error) {
		var state api.AgentState
		var since int64
		err := tx.QueryRowContext(ctx, `select state, zero_since from agents where deleted_at = 0 and id = $1`+s.db.ForUpdate(), agent).Scan(&state, &since)
		if err != nil {
			return nil, missing(err, noAgent(agent))
		}
		begins := since
		switch {
		case owns > 0:
			begins = 0
		case since == 0:
			begins = at
		}
		if begins != since {
			tx.Queue(ctx, `update agents set zero_since = $2 where id = $1`, agent, begins)
		}
		switch {
		case owns > 0 && state == api.StateDead:
			return s.move(ctx, tx, agent, change{to: api.StateSleeping, why: funded, paid: true, at: at})
		case owns <= 0 && state != api.StateDead && at-begins >= grace.Microseconds():
			return s.move(ctx, tx, agent, change{to: api.StateDead, why: "without any credits for " + grace.String(), at: at})
		}
		return nil, nil
	})
}

// funded is the reason of an agent's sleep that a deposit has begun.
const funded = "funded"

// Fund changes an agent that could not pay for its last run, and was funded since, from
// critical to sleeping, and adds the announcement to the outbox in the same transaction. It
// returns nil if the agent has another state, or has a run in progress, which sets the state
// at its end. Runs of tasks do not change it.
func (s *Store) Fund(ctx context.Context, agent string, at int64) (*api.AgentChanged, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (*api.AgentChanged, error) {
		state, err := s.lockState(ctx, tx, agent)
		if err != nil || state != api.StateCritical {
			return nil, missing(err, noAgent(agent))
		}
		busy, err := sqldb.One[bool](ctx, tx, `select exists (select 1 from runs where agent = $1 and ending is null and session not like $2)`,
			agent, agent+goal.SessionMark+"%")
		if err != nil || busy {
			return nil, err
		}
		return s.move(ctx, tx, agent, change{to: api.StateSleeping, why: funded, at: at})
	})
}

// FundedSince returns the time, in Unix microseconds, since which an autonomous agent sleeps
// because it was funded, 0 for any other agent or state.
func (s *Store) FundedSince(ctx context.Context, id string) (since int64, err error) {
	var definition string
	err = s.db.QueryRowContext(ctx, `select definition, state_since from agents where id = $1 and deleted_at = 0 and state = $2 and state_reason = $3`,
		id, api.StateSleeping, funded).Scan(&definition, &since)
	if err != nil {
		return 0, missing(err, nil)
	}
	d, err := s.definitions.decode(id, definition)
	if err != nil || !d.Autonomy {
		return 0, err
	}
	return since, nil
}

// lowAtOnce is the largest number of agents that one call of [Store.LowOnFunds] returns.
const lowAtOnce = 1000

// LowOnFunds returns at most lowAtOnce agents that are without funds, critical or dead,
// with ids greater than after, by id. more reports whether there may be others.
func (s *Store) LowOnFunds(ctx context.Context, after string) (ids []string, more bool, err error) {
	ids, err = sqldb.All(ctx, s.db, sqldb.Column[string],
		`select id from agents where deleted_at = 0 and (zero_since > 0 or state in ($1, $2)) and id > $3 order by id limit `+strconv.Itoa(lowAtOnce),
		api.StateDead, api.StateCritical, after)
	return ids, len(ids) == lowAtOnce, err
}

// QueueTimeout returns how long a message for an agent may wait for its session. Errors:
// NotFound.
func (s *Store) QueueTimeout(ctx context.Context, id string) (time.Duration, error) {
	var d agent.Definition
	err := s.db.QueryRowContext(ctx, `select definition from agents where id = $1`, id).Scan(sqldb.JSON(&d))
	return d.Limits.QueueTimeout, missing(err, noAgent(id))
}

// Since returns an agent's state and the time at which it entered it, in Unix
// microseconds. Errors: NotFound.
func (s *Store) Since(ctx context.Context, agent string) (state api.AgentState, since int64, err error) {
	err = s.db.QueryRowContext(ctx, `select state, state_since from agents where id = $1`, agent).Scan(&state, &since)
	return state, since, missing(err, noAgent(agent))
}

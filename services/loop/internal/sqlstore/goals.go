package sqlstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/goal"
)

// CreateGoal implements goal.Store. It locks the agent's row, so that two concurrent
// calls do not both find no active goal.
func (s *Store) CreateGoal(ctx context.Context, n goal.New, at int64) (goal.State, goal.Refusal, error) {
	var out goal.State
	var refused goal.Refusal
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		out, refused = goal.State{}, ""
		var agent string
		err := tx.QueryRowContext(ctx, `select id from agents where id = $1`+s.db.ForUpdate(), n.Agent).Scan(&agent)
		if errors.Is(err, sqldb.ErrNotFound) {
			return api.Errorf(api.NotFound, "there is no agent %s", n.Agent)
		}
		if err != nil {
			return err
		}
		found, err := s.goals(ctx, tx, `where id = $1 and agent = $2`, n.ID, n.Agent)
		if err != nil {
			return err
		}
		if len(found) == 1 {
			out = found[0]
			return nil
		}
		if found, err = s.goals(ctx, tx, `where agent = $1 and status = 'active'`, n.Agent); err != nil {
			return err
		}
		if len(found) > 0 {
			out, refused = found[0], goal.Blocked
			if strings.EqualFold(out.Title, n.Title) || strings.EqualFold(out.Description, n.Description) {
				refused = goal.Duplicate
			}
			return nil
		}
		out.Goal = goal.Goal{
			ID: n.ID, Agent: n.Agent, Title: text(n.Title), Description: text(n.Description), Strategy: text(n.Strategy),
			Status: api.GoalActive, By: n.By, Limit: n.Limit, Seq: 1, CreatedAt: at, UpdatedAt: at,
		}
		if _, err := tx.ExecContext(ctx, `insert into goals (id, agent, title, description, strategy, status, by_kind, by_address, cost_limit, created_at, updated_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)`,
			n.ID, n.Agent, out.Title, out.Description, out.Strategy, string(out.Status), string(n.By.Kind), n.By.Address, int64(n.Limit), at); err != nil {
			return err
		}
		return s.follow(ctx, tx, goal.Created(out), at)
	})
	return out, refused, err
}

// Goal implements goal.Store.
func (s *Store) Goal(ctx context.Context, id string) (goal.State, error) {
	return one(s.readGoals(ctx, `where id = $1`, id))
}

// readGoals reads goals in one snapshot.
func (s *Store) readGoals(ctx context.Context, where string, args ...any) (all []goal.State, err error) {
	err = sqldb.Snapshot(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		all, err = s.goals(ctx, tx, where, args...)
		return err
	})
	return all, err
}

func one(all []goal.State, err error) (goal.State, error) {
	switch {
	case err != nil:
		return goal.State{}, err
	case len(all) == 0:
		return goal.State{}, &api.Error{Code: api.NotFound, Message: "there is no such goal", Next: "list_goals shows the ones there are"}
	}
	return all[0], nil
}

// Goals implements goal.Store.
func (s *Store) Goals(ctx context.Context, q goal.Query) ([]goal.State, error) {
	if q.Limit == 0 {
		q.Limit = 50
	}
	return s.readGoals(ctx, `where ($1 = '' or agent = $1) and ($2 = '' or status = $2)
		and (created_at < $3 or created_at = $3 and id > $4 or $3 = 0) order by created_at desc, id limit $5`,
		q.Agent, string(q.Status), q.AfterAt, q.AfterID, q.Limit)
}

// ChangeGoal implements goal.Store. It locks the goal's row during the change.
func (s *Store) ChangeGoal(ctx context.Context, id string, at int64, change func(*goal.State) error) (goal.State, error) {
	var out goal.State
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		before, err := one(s.goals(ctx, tx, `where id = $1`+s.db.ForUpdate(), id))
		if err != nil {
			return err
		}
		after, effects, err := goal.Apply(before, at, change)
		if err != nil {
			return err
		}
		out = after
		if after.Seq == before.Seq {
			return nil
		}
		if err := s.writeGoal(ctx, tx, before, after); err != nil {
			return err
		}
		return s.follow(ctx, tx, effects, at)
	})
	return out, err
}

// follow writes the effects of a change in the transaction of the change. After its
// commit no replica continues a cancelled run, also if the process crashes before it
// sends the cancellation.
func (s *Store) follow(ctx context.Context, tx *sqldb.Tx, e goal.Effects, at int64) error {
	for _, v := range e.Sessions {
		if _, err := tx.ExecContext(ctx, `insert into sessions (id, agent, created_at, updated_at) values ($1, $2, $3, $3)
			on conflict (id) do nothing`, v[0], v[1], at); err != nil {
			return err
		}
	}
	for _, c := range e.Cancels {
		if err := s.cancel(ctx, tx, c.Run, c.Session, "cancelled: "+c.Reason, at); err != nil {
			return err
		}
	}
	for _, m := range e.Messages {
		if err := outbox.Add(ctx, tx, m.ID, m.M); err != nil {
			return err
		}
	}
	return nil
}

// writeGoal writes the rows that differ between before and after.
func (s *Store) writeGoal(ctx context.Context, tx *sqldb.Tx, before, after goal.State) error {
	g := after.Goal
	if _, err := tx.ExecContext(ctx, `update goals set status = $2, reason = $3, steps = $4, version = $5, replans = $6, overhead = $7, seq = $8,
		updated_at = $9, completed_at = $10 where id = $1`,
		g.ID, string(g.Status), text(g.Reason), g.Steps, g.Version, g.Replans, int64(g.Overhead), g.Seq, g.UpdatedAt, g.EndedAt); err != nil {
		return err
	}
	for i, p := range after.Plans {
		if i < len(before.Plans) && reflect.DeepEqual(before.Plans[i], p) {
			continue
		}
		draft, err := api.Encode(p.Draft)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `insert into plans (goal_id, version, status, source, draft, estimated_cost, decision, feedback, created_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (goal_id, version) do update set
			status = excluded.status, decision = excluded.decision, feedback = excluded.feedback`,
			g.ID, p.Version, string(p.Status), p.Source, text(string(draft)), int64(p.Cost), p.Decision, text(p.Feedback), p.At); err != nil {
			return err
		}
	}
	for i, t := range after.Tasks {
		if i < len(before.Tasks) && reflect.DeepEqual(before.Tasks[i], t) {
			continue
		}
		if err := writeTask(ctx, tx, g.ID, t); err != nil {
			return err
		}
	}
	for i, a := range after.Attempts {
		if i < len(before.Attempts) && before.Attempts[i] == a {
			continue
		}
		if _, err := tx.ExecContext(ctx, `insert into task_attempts (run, goal_id, task_id, number, cost, started_at, ended_at, stopped_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (run) do update set
			cost = excluded.cost, ended_at = excluded.ended_at, stopped_at = excluded.stopped_at`,
			a.Run, g.ID, a.Task, a.Number, int64(a.Cost), a.StartedAt, a.EndedAt, a.StoppedAt); err != nil {
			return err
		}
	}
	return nil
}

func writeTask(ctx context.Context, tx *sqldb.Tx, goalID string, t goal.Task) error {
	dependencies, err := api.Encode(append([]string{}, t.Dependencies...))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `insert into task_graph (id, goal_id, version, number, parent_id, title, description, status, assigned_to, agent_role,
			priority, dependencies, estimated_cost, timeout_ms, max_retries, retry_count, attempt, lease, deadline, result, artifacts, error,
			created_at, started_at, completed_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)
		on conflict (id) do update set status = excluded.status, retry_count = excluded.retry_count, attempt = excluded.attempt,
			lease = excluded.lease, deadline = excluded.deadline, result = excluded.result, artifacts = excluded.artifacts, error = excluded.error,
			started_at = excluded.started_at, completed_at = excluded.completed_at`,
		t.ID, goalID, t.Version, t.Number, t.Parent, text(t.Title), text(t.Description), string(t.Status), t.Assignee, text(t.Role),
		t.Priority, string(dependencies), int64(t.Estimate), t.TimeoutMS, t.MaxRetries, t.Retries, t.Attempt, t.Lease, t.Deadline,
		text(t.Result), text(t.Artifacts), text(t.Error), t.CreatedAt, t.StartedAt, t.EndedAt)
	return err
}

// goals reads the goals that a condition selects, with their plans, tasks and attempts. A
// lock in the condition applies to the goals' rows; the rows of a goal's plans, tasks and
// attempts are written only under it.
func (s *Store) goals(ctx context.Context, q sqldb.Querier, where string, args ...any) ([]goal.State, error) {
	all, err := sqldb.All(ctx, q, func(r sqldb.Scanner) (goal.State, error) {
		var g goal.State
		err := r.Scan(&g.ID, &g.Agent, &g.Title, &g.Description, &g.Strategy, &g.Status, &g.Reason, &g.By.Kind, &g.By.Address, &g.Steps,
			&g.Version, &g.Replans, &g.Limit, &g.Overhead, &g.Seq, &g.CreatedAt, &g.UpdatedAt, &g.EndedAt)
		return g, err
	}, `select id, agent, title, description, strategy, status, reason, by_kind, by_address, steps, version, replans, cost_limit, overhead, seq,
		created_at, updated_at, completed_at from goals `+where, args...)
	if err != nil || len(all) == 0 {
		return all, err
	}
	at := map[string]*goal.State{}
	places, ids := make([]string, len(all)), make([]any, len(all))
	for i := range all {
		at[all[i].ID], places[i], ids[i] = &all[i], "$"+strconv.Itoa(i+1), all[i].ID
	}
	in := ` where goal_id in (` + strings.Join(places, ", ") + `) order by goal_id, `
	if err := plansOf(ctx, q, at, in, ids); err != nil {
		return nil, err
	}
	if err := tasksOf(ctx, q, at, in, ids); err != nil {
		return nil, err
	}
	return all, attemptsOf(ctx, q, at, in, ids)
}

// owned is a row with the id of its goal.
type owned[T any] struct {
	goal string
	v    T
}

func plansOf(ctx context.Context, q sqldb.Querier, at map[string]*goal.State, in string, ids []any) error {
	plans, err := sqldb.All(ctx, q, func(r sqldb.Scanner) (owned[goal.Plan], error) {
		var p owned[goal.Plan]
		var draft string
		if err := r.Scan(&p.goal, &p.v.Version, &p.v.Status, &p.v.Source, &draft, &p.v.Cost, &p.v.Decision, &p.v.Feedback, &p.v.At); err != nil {
			return p, err
		}
		if err := json.Unmarshal([]byte(draft), &p.v.Draft); err != nil {
			return p, fmt.Errorf("plan %d of %s: %w", p.v.Version, p.goal, err)
		}
		return p, nil
	}, `select goal_id, version, status, source, draft, estimated_cost, decision, feedback, created_at from plans`+in+`version`, ids...)
	for _, p := range plans {
		at[p.goal].Plans = append(at[p.goal].Plans, p.v)
	}
	return err
}

func tasksOf(ctx context.Context, q sqldb.Querier, at map[string]*goal.State, in string, ids []any) error {
	tasks, err := sqldb.All(ctx, q, func(r sqldb.Scanner) (owned[goal.Task], error) {
		var o owned[goal.Task]
		t := &o.v
		var dependencies string
		if err := r.Scan(&t.ID, &o.goal, &t.Version, &t.Number, &t.Parent, &t.Title, &t.Description, &t.Status, &t.Assignee, &t.Role, &t.Priority,
			&dependencies, &t.Estimate, &t.TimeoutMS, &t.MaxRetries, &t.Retries, &t.Attempt, &t.Lease, &t.Deadline, &t.Result, &t.Artifacts,
			&t.Error, &t.CreatedAt, &t.StartedAt, &t.EndedAt); err != nil {
			return o, err
		}
		if err := json.Unmarshal([]byte(dependencies), &t.Dependencies); err != nil {
			return o, fmt.Errorf("dependencies of %s: %w", t.ID, err)
		}
		if len(t.Dependencies) == 0 {
			t.Dependencies = nil
		}
		return o, nil
	}, `select id, goal_id, version, number, parent_id, title, description, status, assigned_to, agent_role, priority, dependencies, estimated_cost,
		timeout_ms, max_retries, retry_count, attempt, lease, deadline, result, artifacts, error, created_at, started_at, completed_at
		from task_graph`+in+`version, number`, ids...)
	for _, t := range tasks {
		at[t.goal].Tasks = append(at[t.goal].Tasks, t.v)
	}
	return err
}

func attemptsOf(ctx context.Context, q sqldb.Querier, at map[string]*goal.State, in string, ids []any) error {
	attempts, err := sqldb.All(ctx, q, func(r sqldb.Scanner) (owned[goal.Attempt], error) {
		var a owned[goal.Attempt]
		err := r.Scan(&a.goal, &a.v.Run, &a.v.Task, &a.v.Number, &a.v.Cost, &a.v.StartedAt, &a.v.EndedAt, &a.v.StoppedAt)
		return a, err
	}, `select goal_id, run, task_id, number, cost, started_at, ended_at, stopped_at from task_attempts`+in+`started_at, run`, ids...)
	for _, a := range attempts {
		at[a.goal].Attempts = append(at[a.goal].Attempts, a.v)
	}
	return err
}

// GoalOfRun implements goal.Store.
func (s *Store) GoalOfRun(ctx context.Context, run string) (string, error) {
	var id string
	err := s.db.QueryRowContext(ctx, `select goal_id from task_attempts where run = $1`, run).Scan(&id)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", api.Errorf(api.NotFound, "run %s works on no task", run)
	}
	return id, err
}

// RunOutcome implements goal.Store.
func (s *Store) RunOutcome(ctx context.Context, run string) (goal.Outcome, error) {
	var out goal.Outcome
	var ending sqldb.Null[string]
	var calls int
	err := s.db.QueryRowContext(ctx, `select r.ending, r.cost,
			(select count(*) from tool_calls c join turns t on t.id = c.turn_id where t.run = r.id and t.number = r.turns)
		from runs r where r.id = $1`, run).Scan(&ending, &out.Cost, &calls)
	if errors.Is(err, sqldb.ErrNotFound) || err == nil && !ending.Valid {
		return out, api.Errorf(api.NotFound, "run %s has not ended", run)
	}
	if err != nil {
		return out, err
	}
	var end engine.End
	if err := json.Unmarshal([]byte(ending.V), &end); err != nil {
		return out, fmt.Errorf("end of run %s: %w", run, err)
	}
	agent, err := s.definition(ctx, s.db, end.Run.Agent)
	if err != nil {
		return out, err
	}
	out.Success, out.Code, out.Reason, out.Error, out.Response, out.Turns = end.Success, end.Code, end.Reason, end.Error, end.Response, end.Turns
	out.MaxTurns, out.Calls = agent.MaxTurns, calls > 0
	return out, nil
}

// Overdue implements goal.Store.
func (s *Store) Overdue(ctx context.Context, at int64) ([]string, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (id string, err error) { return id, r.Scan(&id) },
		`select distinct goal_id from task_graph where deadline > 0 and deadline < $1 limit 100`, at)
}

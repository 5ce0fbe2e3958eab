package sqlstore

import (
	"context"
	"errors"
	"reflect"
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
	var refused goal.Refusal
	out, err := sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (out goal.State, err error) {
		refused = ""
		if err := s.lockAgent(ctx, tx, n.Agent); err != nil {
			return out, err
		}
		found, err := s.goals(ctx, tx, `where agent = $1 and (id = $2 or status = 'active') order by case id when $2 then 0 else 1 end limit 1`, n.Agent, n.ID)
		if err != nil {
			return out, err
		}
		if len(found) > 0 {
			out = found[0]
			switch {
			case out.ID == n.ID:
			case strings.EqualFold(out.Title, n.Title), strings.EqualFold(out.Description, n.Description):
				refused = goal.Duplicate
			default:
				refused = goal.Blocked
			}
			return out, nil
		}
		out.Goal = goal.Goal{
			ID: n.ID, Agent: n.Agent, Title: text(n.Title), Description: text(n.Description), Strategy: text(n.Strategy),
			Status: api.GoalActive, By: n.By, Limit: n.Limit, Seq: 1, CreatedAt: at, UpdatedAt: at,
		}
		tx.Queue(ctx, `insert into goals (id, agent, title, description, strategy, status, by_kind, by_address, cost_limit, created_at, updated_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)`,
			n.ID, n.Agent, out.Title, out.Description, out.Strategy, out.Status, n.By.Kind, n.By.Address, int64(n.Limit), at)
		return out, s.follow(ctx, tx, goal.Created(out), at)
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
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (goal.State, error) {
		before, err := one(s.goals(ctx, tx, `where id = $1`+s.db.ForUpdate(), id))
		if err != nil {
			return goal.State{}, err
		}
		after, effects, err := goal.Apply(before, at, change)
		if err != nil {
			return goal.State{}, err
		}
		if after.Seq == before.Seq {
			return after, nil
		}
		if err := writeGoal(ctx, tx, before, after); err != nil {
			return after, err
		}
		return after, s.follow(ctx, tx, effects, at)
	})
}

// follow writes the effects of a change in the transaction of the change. After its
// commit no replica continues a cancelled run, also if the process crashes before it
// sends the cancellation.
func (s *Store) follow(ctx context.Context, tx *sqldb.Tx, e goal.Effects, at int64) error {
	for _, v := range e.Sessions {
		addSession(ctx, tx, v[0], v[1], at)
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

// Columns of the rows of a goal, as they are written and read.
const (
	planColumns = `goal_id, version, status, source, draft, estimated_cost, decision, feedback, created_at`
	taskColumns = `goal_id, id, version, number, parent_id, title, description, status, assigned_to, agent_role, priority, dependencies,
		estimated_cost, timeout_ms, max_retries, retry_count, attempt, lease, deadline, result, artifacts, error, created_at, started_at, completed_at`
	attemptColumns = `goal_id, run, task_id, number, cost, started_at, ended_at, stopped_at`
)

// writeGoal writes the rows that differ between before and after.
func writeGoal(ctx context.Context, tx *sqldb.Tx, before, after goal.State) error {
	g := after.Goal
	tx.Queue(ctx, `update goals set status = $2, reason = $3, steps = $4, version = $5, replans = $6, overhead = $7, seq = $8,
		updated_at = $9, completed_at = $10 where id = $1`,
		g.ID, g.Status, text(g.Reason), g.Steps, g.Version, g.Replans, g.Overhead, g.Seq, g.UpdatedAt, g.EndedAt)
	for i, p := range after.Plans {
		if i < len(before.Plans) && reflect.DeepEqual(before.Plans[i], p) {
			continue
		}
		draft, err := api.Encode(p.Draft)
		if err != nil {
			return err
		}
		tx.Queue(ctx, `insert into plans (`+planColumns+`) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (goal_id, version) do update set
			status = excluded.status, decision = excluded.decision, feedback = excluded.feedback`,
			g.ID, p.Version, p.Status, p.Source, text(string(draft)), p.Cost, p.Decision, text(p.Feedback), p.At)
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
		tx.Queue(ctx, `insert into task_attempts (`+attemptColumns+`) values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (run) do update set
			cost = excluded.cost, ended_at = excluded.ended_at, stopped_at = excluded.stopped_at`,
			g.ID, a.Run, a.Task, a.Number, a.Cost, a.StartedAt, a.EndedAt, a.StoppedAt)
	}
	return nil
}

func writeTask(ctx context.Context, tx *sqldb.Tx, goalID string, t goal.Task) error {
	dependencies, err := api.Encode(append([]string{}, t.Dependencies...))
	if err != nil {
		return err
	}
	tx.Queue(ctx, `insert into task_graph (`+taskColumns+`) values `+sqldb.Placeholders(1, 25)+`
		on conflict (id) do update set status = excluded.status, retry_count = excluded.retry_count, attempt = excluded.attempt,
			lease = excluded.lease, deadline = excluded.deadline, result = excluded.result, artifacts = excluded.artifacts, error = excluded.error,
			started_at = excluded.started_at, completed_at = excluded.completed_at`,
		goalID, t.ID, t.Version, t.Number, t.Parent, text(t.Title), text(t.Description), t.Status, t.Assignee, text(t.Role),
		t.Priority, string(dependencies), t.Estimate, t.TimeoutMS, t.MaxRetries, t.Retries, t.Attempt, t.Lease, t.Deadline,
		text(t.Result), text(t.Artifacts), text(t.Error), t.CreatedAt, t.StartedAt, t.EndedAt)
	return nil
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
	var ids parameters
	in := ` where goal_id in (` + ids.list(len(all), func(i int) any { return all[i].ID }) + `) order by goal_id, `
	for i := range all {
		at[all[i].ID] = &all[i]
	}
	return all, errors.Join(
		eachOf(ctx, q, at, planColumns+` from plans`+in+`version`, ids,
			func(p *goal.Plan) []any {
				return []any{&p.Version, &p.Status, &p.Source, sqldb.JSON(&p.Draft), &p.Cost, &p.Decision, &p.Feedback, &p.At}
			}, func(g *goal.State, p goal.Plan) { g.Plans = append(g.Plans, p) }),
		eachOf(ctx, q, at, taskColumns+` from task_graph`+in+`version, number`, ids,
			func(t *goal.Task) []any {
				return []any{
					&t.ID, &t.Version, &t.Number, &t.Parent, &t.Title, &t.Description, &t.Status, &t.Assignee, &t.Role, &t.Priority, sqldb.JSON(&t.Dependencies),
					&t.Estimate, &t.TimeoutMS, &t.MaxRetries, &t.Retries, &t.Attempt, &t.Lease, &t.Deadline, &t.Result, &t.Artifacts, &t.Error,
					&t.CreatedAt, &t.StartedAt, &t.EndedAt,
				}
			}, func(g *goal.State, t goal.Task) {
				if len(t.Dependencies) == 0 {
					t.Dependencies = nil
				}
				g.Tasks = append(g.Tasks, t)
			}),
		eachOf(ctx, q, at, attemptColumns+` from task_attempts`+in+`started_at, run`, ids,
			func(a *goal.Attempt) []any {
				return []any{&a.Run, &a.Task, &a.Number, &a.Cost, &a.StartedAt, &a.EndedAt, &a.StoppedAt}
			}, func(g *goal.State, a goal.Attempt) { g.Attempts = append(g.Attempts, a) }))
}

// eachOf reads rows that belong to goals and calls add for each with its goal. The first
// column is the goal's id; columns returns the destinations of the others.
func eachOf[T any](ctx context.Context, q sqldb.Querier, goals map[string]*goal.State, query string, args []any,
	columns func(*T) []any, add func(*goal.State, T),
) error {
	_, err := sqldb.All(ctx, q, func(r sqldb.Scanner) (none struct{}, err error) {
		var id string
		var v T
		if err = r.Scan(append([]any{&id}, columns(&v)...)...); err == nil {
			add(goals[id], v)
		}
		return none, err
	}, `select `+query, args...)
	return err
}

// GoalOfRun implements goal.Store.
func (s *Store) GoalOfRun(ctx context.Context, run string) (string, error) {
	id, err := sqldb.One[string](ctx, s.db, `select goal_id from task_attempts where run = $1`, run)
	return id, missing(err, api.Errorf(api.NotFound, "run %s works on no task", run))
}

// RunOutcome implements goal.Store.
func (s *Store) RunOutcome(ctx context.Context, run string) (goal.Outcome, error) {
	var out goal.Outcome
	var end *engine.End
	err := s.db.QueryRowContext(ctx, `select r.ending, r.cost,
			exists (select 1 from tool_calls c join turns t on t.id = c.turn_id where t.run = r.id and t.number = r.turns)
		from runs r where r.id = $1`, run).Scan(sqldb.JSON(&end), &out.Cost, &out.Calls)
	if errors.Is(err, sqldb.ErrNotFound) || err == nil && end == nil {
		return out, api.Errorf(api.NotFound, "run %s has not ended", run)
	}
	if err != nil {
		return out, err
	}
	agent, err := s.definition(ctx, s.db, end.Run.Agent)
	if err != nil {
		return out, err
	}
	out.Success, out.Code, out.Reason, out.Error, out.Response, out.Turns = end.Success, end.Code, end.Reason, end.Error, end.Response, end.Turns
	out.MaxTurns = agent.MaxTurns
	return out, nil
}

// Overdue implements goal.Store.
func (s *Store) Overdue(ctx context.Context, at int64) ([]string, error) {
	return sqldb.All(ctx, s.db, sqldb.Column[string],
		`select distinct goal_id from task_graph where deadline > 0 and deadline < $1 limit 100`, at)
}

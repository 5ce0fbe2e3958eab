package sqlstore

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Columns of tables turns and tool_calls.
const (
	turnColumns = `id, run, number, session, agent, position, state, input, input_source, input_address, thinking, model, provider,
		finish, input_tokens, output_tokens, cost, trace, started_at, ended_at`
	callColumns = `turn_id, idx, provider_id, name, arguments, decision, action, outcome, result, error, duration_ms`
)

// turnRows returns a function that scans rows of turnColumns. It scans all rows into the
// same variables: a text that equals that of the previous row, as most ids of sessions
// and agents and names of models do, is not copied then.
func turnRows() func(sqldb.Scanner) (prompt.Turn, error) {
	var t prompt.Turn
	return func(r sqldb.Scanner) (prompt.Turn, error) {
		err := r.Scan(&t.ID, &t.Run, &t.Number, &t.Session, &t.Agent, &t.Position, &t.State, &t.Input, &t.By.Kind, &t.By.Address, &t.Thinking,
			&t.Model, &t.Provider, &t.Finish, &t.InputTokens, &t.OutputTokens, &t.Cost, &t.Trace, &t.StartedAt, &t.EndedAt)
		t.Calls = []api.CallState{}
		return t, err
	}
}

// Turn returns a turn with its calls. Errors: NotFound.
func (s *Store) Turn(ctx context.Context, id string) (api.Turn, error) {
	t, err := s.turn(ctx, id)
	return t.Turn, err
}

func (s *Store) turn(ctx context.Context, id string) (prompt.Turn, error) {
	all, err := s.turns(ctx, `where id = $1`, id)
	if err == nil && len(all) == 0 {
		err = &api.Error{Code: api.NotFound, Message: "there is no such turn", Next: "anima turn list shows the ones there are"}
	}
	if err != nil {
		return prompt.Turn{}, err
	}
	return all[0], nil
}

// Turns returns the turns that match a query, the latest first.
func (s *Store) Turns(ctx context.Context, q api.ListTurns) ([]api.Turn, error) {
	all, err := s.turns(ctx, `where ($1 = '' or agent = $1) and ($2 = '' or session = $2) and ($3 = '' or run = $3)
		and ($4 = '' or (started_at, position, id) < (select started_at, position, id from turns where id = $4))
		order by started_at desc, position desc, id desc limit $5`, q.Agent, q.Session, q.Run, q.Before, q.Limit)
	out := make([]api.Turn, len(all))
	for i, t := range all {
		out[i] = t.Turn
	}
	return out, err
}

// turns reads the turns that a condition selects, and then their calls in one query. A
// turn never changes, so the two queries need no transaction.
func (s *Store) turns(ctx context.Context, where string, args ...any) ([]prompt.Turn, error) {
	all, err := sqldb.All(ctx, s.db, turnRows(), `select `+turnColumns+` from turns `+where, args...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	at := make(map[string]*prompt.Turn, len(all))
	for i := range all {
		at[all[i].ID] = &all[i]
	}
	var ids parameters
	in := ids.list(len(all), func(i int) any { return all[i].ID })
	var turn string
	var c api.CallState // see turnRows
	_, err = sqldb.All(ctx, s.db, func(r sqldb.Scanner) (none struct{}, err error) {
		err = r.Scan(&turn, &c.Index, &c.ID, &c.Tool, (*[]byte)(&c.Arguments), &c.Decision, &c.Action, &c.Outcome, &c.Result, &c.Error, &c.DurationMS)
		if err == nil {
			at[turn].Calls = append(at[turn].Calls, c)
		}
		return none, err
	}, `select `+callColumns+` from tool_calls where turn_id in (`+in+`) order by turn_id, idx`, ids...)
	return all, err
}

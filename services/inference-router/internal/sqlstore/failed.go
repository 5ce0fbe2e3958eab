package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Failed is an attempt to call a provider that failed.
type Failed struct {
	Call, Run, Agent, Turn, Model, Provider string
	Kind                                    string // why, in one word
	Message                                 string // of the provider, safe to show
	Counts                                  bool   // it is one of the tries that a call has
	InputTokens, OutputTokens               int64  // of what had arrived
	Cost                                    api.Micros
	Hold                                    string // that it is paid from; "" for a free model
	At                                      int64  // Unix µs
}

// Tries counts failed attempts.
type Tries struct {
	Call int        // of the call
	Cost api.Micros // of the call, those that do not count as tries included
	Run  int        // of all calls of the run; 0 for a call that has none
}

const triesColumns = `cast(coalesce(sum(case when call_id = $1 then counts else 0 end), 0) as bigint),
	cast(coalesce(sum(case when call_id = $1 then cost else 0 end), 0) as bigint),
	cast(coalesce(sum(case when run_id = $2 and run_id <> '' then counts else 0 end), 0) as bigint) from failed_calls where call_id = $1 or (run_id = $2 and run_id <> '')`

// Fail stores a failed attempt, once, and counts it.
func (s *Store) Fail(ctx context.Context, f Failed) (Tries, error) {
	var n Tries
	counts := 0
	if f.Counts {
		counts = 1
	}
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, `insert into failed_calls (call_id, at, hold, run_id, agent, turn_id, model, provider, kind, message, counts,
				input_tokens, output_tokens, cost)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) on conflict (call_id, at, hold) do nothing`,
			f.Call, f.At, f.Hold, f.Run, f.Agent, f.Turn, f.Model, f.Provider, f.Kind, f.Message, counts,
			f.InputTokens, f.OutputTokens, int64(f.Cost))
		return tx.QueryRowContext(ctx, `select `+triesColumns, f.Call, f.Run).Scan(&n.Call, &n.Cost, &n.Run)
	})
	return n, err
}

// FailedByHold returns the failed attempt that a hold was made for, if there is one.
func (s *Store) FailedByHold(ctx context.Context, hold string) (Failed, bool, error) {
	var f Failed
	err := s.db.QueryRowContext(ctx, `select call_id, run_id, agent, turn_id, model, provider, kind, message, cost, hold, at from failed_calls
		where hold = $1 and hold <> ''`, hold).
		Scan(&f.Call, &f.Run, &f.Agent, &f.Turn, &f.Model, &f.Provider, &f.Kind, &f.Message, &f.Cost, &f.Hold, &f.At)
	if errors.Is(err, sqldb.ErrNotFound) {
		return f, false, nil
	}
	return f, err == nil, err
}

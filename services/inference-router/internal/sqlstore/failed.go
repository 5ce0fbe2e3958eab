package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// FailedAttempt is a failed attempt to call a provider.
type FailedAttempt struct {
	Call, Run, Agent, Turn, Model, Provider string
	Kind                                    string // the [provider.Kind] of the error
	Message                                 string // the error, safe to show
	Counts                                  bool   // the attempt counts towards the limit of attempts
	InputTokens, OutputTokens               int64  // of the partial answer
	Cost                                    api.Micros
	Hold                                    string // the hold that it is paid from; "" for a free model
	At                                      int64  // Unix µs
}

// FailureCounts holds the counts of failed attempts.
type FailureCounts struct {
	Call int        // failed attempts of the call
	Cost api.Micros // their cost, with that of attempts that do not count
	Run  int        // failed attempts of all calls of the run; 0 for a call without a run
}

const triesColumns = `cast(coalesce(sum(case when call_id = $1 then counts else 0 end), 0) as bigint),
	cast(coalesce(sum(case when call_id = $1 then cost else 0 end), 0) as bigint),
	cast(coalesce(sum(case when run_id = $2 and run_id <> '' then counts else 0 end), 0) as bigint) from failed_calls where call_id = $1 or (run_id = $2 and run_id <> '')`

// RecordFailure stores a failed attempt and returns the counts that include it. It is
// idempotent.
func (s *Store) RecordFailure(ctx context.Context, f FailedAttempt) (FailureCounts, error) {
	var n FailureCounts
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

// FailedByHold returns the failed attempt of a hold, and false if there is none.
func (s *Store) FailedByHold(ctx context.Context, hold string) (FailedAttempt, bool, error) {
	var f FailedAttempt
	err := s.db.QueryRowContext(ctx, `select call_id, run_id, agent, turn_id, model, provider, kind, message, cost, hold, at from failed_calls
		where hold = $1 and hold <> ''`, hold).
		Scan(&f.Call, &f.Run, &f.Agent, &f.Turn, &f.Model, &f.Provider, &f.Kind, &f.Message, &f.Cost, &f.Hold, &f.At)
	if errors.Is(err, sqldb.ErrNotFound) {
		return f, false, nil
	}
	return f, err == nil, err
}

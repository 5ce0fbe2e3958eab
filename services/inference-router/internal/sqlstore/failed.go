package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// FailedAttempt is a failed attempt to call a provider. The tokens and the cost of Call
// are those of the partial answer.
type FailedAttempt struct {
	Call    Call
	Run     string
	Kind    string // the [provider.Kind] of the error
	Message string // the error, safe to show
	Counts  bool   // the attempt counts towards the limit of attempts
	Hold    string // the hold that it is paid from; "" for a free model
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
	c := f.Call
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, `insert into failed_calls (call_id, at, hold, run_id, agent, turn_id, model, provider, kind, message, counts,
				input_tokens, output_tokens, cost, session_id, tier, task_type, trace, latency_ms, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, price_version)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24)
			on conflict (call_id, at, hold) do nothing`,
			c.ID, c.At, f.Hold, f.Run, c.Agent, c.Turn, c.Model, c.Provider, f.Kind, f.Message, number(f.Counts),
			c.Tokens.Input, c.Tokens.Output, int64(c.Cost), c.Session, string(c.Tier), string(c.Task), c.Trace, c.LatencyMS,
			c.Tokens.CachedInput, c.Tokens.CacheWrite, c.Tokens.Reasoning, number(c.Tokens.Estimated), c.PriceVersion)
		return tx.QueryRowContext(ctx, `select `+triesColumns, c.ID, f.Run).Scan(&n.Call, &n.Cost, &n.Run)
	})
	return n, err
}

// FailedByHold returns the failed attempt of a hold, and false if there is none.
func (s *Store) FailedByHold(ctx context.Context, hold string) (FailedAttempt, bool, error) {
	var f FailedAttempt
	err := s.db.QueryRowContext(ctx, `select call_id, run_id, agent, turn_id, model, provider, kind, message, cost, hold, at from failed_calls
		where hold = $1 and hold <> ''`, hold).
		Scan(&f.Call.ID, &f.Run, &f.Call.Agent, &f.Call.Turn, &f.Call.Model, &f.Call.Provider, &f.Kind, &f.Message, &f.Call.Cost, &f.Hold, &f.Call.At)
	if errors.Is(err, sqldb.ErrNotFound) {
		return f, false, nil
	}
	return f, err == nil, err
}

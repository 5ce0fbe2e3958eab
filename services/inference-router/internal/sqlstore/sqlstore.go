// Package sqlstore stores the answers of model calls, their cost and the failed attempts.
// It uses the same statements on SQLite and PostgreSQL. It must not call other services.
package sqlstore

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the store. They include those of the outbox for
// the previous release, which announced each call; this release writes no row of the
// outbox.
func Migrations() fs.FS { return outbox.WithMigrations(files) }

// Store holds the database. It is safe for concurrent use.
type Store struct{ db *sqldb.DB }

// New returns a store on a migrated database.
func New(db *sqldb.DB) *Store { return &Store{db: db} }

// Call describes one attempt of a model call, answered or failed.
type Call struct {
	ID                   string // of the call
	Agent, Session, Turn string
	Task                 api.Task
	Tier                 api.Tier
	Model, Provider      string
	Tokens               Tokens
	Cost                 api.Micros
	LatencyMS            int64
	Trace                string
	At                   int64  // Unix µs
	PriceVersion         int64  // of the registry; 0: the prices were not those of a version
	Request              string // hash of a request with an idempotency key; "" for any other
}

// Tokens is the consumption of an attempt, with the fields of the usage in package provider. Rows of the
// release before have only Input and Output.
type Tokens struct {
	Input       int64 // the whole prompt
	CachedInput int64 // of Input, read from the provider's cache
	CacheWrite  int64 // of Input, written to the provider's cache
	Output      int64 // the whole answer
	Reasoning   int64 // of Output, not part of the text
	Estimated   bool  // not reported by the provider
}

// StoredCall is a call with its answer.
type StoredCall struct {
	Call   Call
	Hold   string // the hold that it is paid from; "" for a free call
	Answer api.Completion
}

// Record stores a call with its answer and returns it. If a call with the same id is
// stored already, Record returns that one: of two replicas that answered the same call,
// the first to commit decides the answer.
func (s *Store) Record(ctx context.Context, p StoredCall) (StoredCall, error) {
	all, err := s.RecordMany(ctx, []StoredCall{p})
	if err != nil {
		return p, err
	}
	return all[0], nil
}

// MaxRecords is the limit of calls in one [Store.RecordMany].
const MaxRecords = 64

// RecordMany is Record for calls with different ids, in one transaction.
func (s *Store) RecordMany(ctx context.Context, calls []StoredCall) ([]StoredCall, error) {
	rows := make([]any, 0, len(calls)*callColumns)
	for i := range calls {
		p, c := &calls[i], &calls[i].Call
		answer, err := api.Encode(p.Answer)
		if err != nil {
			return nil, err
		}
		rows = append(rows, c.ID, c.Agent, c.Session, c.Turn, c.Model, c.Provider, c.Tokens.Input, c.Tokens.Output, int64(c.Cost), p.Hold, c.LatencyMS,
			string(c.Tier), string(c.Task), c.Trace, string(answer), c.At, c.Tokens.CachedInput, c.Tokens.CacheWrite, c.Tokens.Reasoning,
			number(c.Tokens.Estimated), c.PriceVersion, c.Request)
	}
	var stored int64
	var err error
	if len(calls) == 1 { // a statement is a transaction of its own, which costs less
		stored, err = insertCalls(ctx, s.db, rows)
	} else {
		err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
			stored, err = insertCalls(ctx, tx, rows)
			return err
		})
	}
	if err != nil || stored == int64(len(calls)) {
		return calls, err
	}
	out := slices.Clone(calls)
	for i := range out {
		found := false
		if out[i], found, err = s.Find(ctx, calls[i].Call.ID); err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("call %s is neither stored nor new", calls[i].Call.ID)
		}
	}
	return out, nil
}

// callColumns is the number of columns of a stored call.
const callColumns = 22

// execer is a database or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sqldb.Result, error)
}

// insertStatements insert 16, 4 and 1 calls. The few statements are compiled once for each
// connection.
//
//nolint:gochecknoglobals // constant texts
var (
	insertSizes      = [...]int{16, 4, 1}
	insertStatements = [...]string{insertStatement(16), insertStatement(4), insertStatement(1)}
)

func insertStatement(calls int) string {
	return `insert into inference_costs (id, agent, session_id, turn_id, model, provider, input_tokens, output_tokens,
			cost, hold, latency_ms, tier, task_type, trace, answer, created_at, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, price_version, request)
		values ` + sqldb.Placeholders(calls, callColumns) + ` on conflict (id) do nothing`
}

// insertCalls inserts the rows of calls that are not stored yet and returns their number.
func insertCalls(ctx context.Context, to execer, rows []any) (int64, error) {
	sum := int64(0)
	for i, size := range insertSizes {
		for n := size * callColumns; len(rows) >= n; rows = rows[n:] {
			res, err := to.ExecContext(ctx, insertStatements[i], rows[:n]...)
			if err != nil {
				return 0, err
			}
			stored, err := res.RowsAffected()
			if err != nil {
				return 0, err
			}
			sum += stored
		}
	}
	return sum, nil
}

// number returns how a row has a boolean.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Spending is the sum of the calls of an agent to one model.
type Spending struct {
	Model                            string
	Cost                             api.Micros
	Calls, InputTokens, OutputTokens int64
}

// Spent returns the spending of an agent since a time, by model; an empty model means
// all. Failed attempts with a cost are counted as calls.
func (s *Store) Spent(ctx context.Context, agent, model string, since time.Time) ([]Spending, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (v Spending, err error) {
		return v, r.Scan(&v.Model, &v.Cost, &v.Calls, &v.InputTokens, &v.OutputTokens)
	}, `select model, cast(sum(cost) as bigint), count(*), cast(sum(input_tokens) as bigint), cast(sum(output_tokens) as bigint) from (
			select model, cost, input_tokens, output_tokens from inference_costs where agent = $1 and created_at > $3
			union all select model, cost, input_tokens, output_tokens from failed_calls where agent = $1 and at > $3 and cost > 0) calls
		where $2 = '' or model = $2 group by model order by model`, agent, model, since.UnixMicro())
}

// Find returns the stored call with an id, and false if there is none.
func (s *Store) Find(ctx context.Context, id string) (StoredCall, bool, error) {
	return s.find(ctx, `id = $1`, id)
}

// Lookup returns the stored call with an id; if there is none, it returns false and the
// counts of the call's failed attempts. It takes one statement, and two for a stored call.
func (s *Store) Lookup(ctx context.Context, id string) (StoredCall, bool, FailureCounts, error) {
	var n FailureCounts
	var answered bool
	err := s.db.QueryRowContext(ctx, `select cast(coalesce(sum(counts), 0) as bigint), cast(coalesce(sum(cost), 0) as bigint),
		exists (select 1 from inference_costs where id = $1) from failed_calls where call_id = $1`, id).Scan(&n.Call, &n.Cost, &answered)
	if err != nil || !answered { // most calls are new
		return StoredCall{}, false, n, err
	}
	p, found, err := s.Find(ctx, id)
	return p, found, n, err
}

// FindByHold returns the stored call that is paid from a hold, and false if there is
// none.
func (s *Store) FindByHold(ctx context.Context, hold string) (StoredCall, bool, error) {
	return s.find(ctx, `hold = $1 and hold <> ''`, hold)
}

func (s *Store) find(ctx context.Context, where, arg string) (StoredCall, bool, error) {
	var r row
	err := s.db.QueryRowContext(ctx, `select id, agent, session_id, turn_id, model, provider, input_tokens, output_tokens, cost, hold, latency_ms,
			tier, task_type, trace, answer, created_at, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, request from inference_costs where `+where, arg).Scan(r.columns()...)
	if errors.Is(err, sqldb.ErrNotFound) {
		return StoredCall{}, false, nil
	}
	if err != nil {
		return StoredCall{}, false, err
	}
	p, err := r.decode()
	return p, err == nil, err
}

// row is a row of inference_costs, with the answer in JSON.
type row struct {
	StoredCall
	answer    string
	estimated int64
}

func (r *row) columns() []any {
	c := &r.Call
	return []any{
		&c.ID, &c.Agent, &c.Session, &c.Turn, &c.Model, &c.Provider, &c.Tokens.Input, &c.Tokens.Output, &c.Cost, &r.Hold, &c.LatencyMS,
		&c.Tier, &c.Task, &c.Trace, &r.answer, &c.At, &c.Tokens.CachedInput, &c.Tokens.CacheWrite, &c.Tokens.Reasoning, &r.estimated, &c.Request,
	}
}

func (r *row) decode() (StoredCall, error) {
	r.Call.Tokens.Estimated = r.estimated != 0
	if err := json.Unmarshal([]byte(r.answer), &r.Answer); err != nil {
		return r.StoredCall, fmt.Errorf("answer of %s: %w", r.Call.ID, err)
	}
	return r.StoredCall, nil
}

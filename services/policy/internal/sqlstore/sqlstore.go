// Package sqlstore stores decisions. The statements are the same on SQLite and
// PostgreSQL. It must not judge calls.
package sqlstore

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the store. They include the tables of the outbox
// because the previous release, which may run beside this one during an upgrade,
// announces each decision through it. No service reads those announcements.
func Migrations() fs.FS { return outbox.WithMigrations(files) }

// Store stores decisions. It is safe for concurrent use.
type Store struct{ db *sqldb.DB }

// New returns a store on db, which must be migrated.
func New(db *sqldb.DB) *Store { return &Store{db: db} }

const columns = `select id, agent, session, turn_id, idx, tool_name, tool_args_hash, by_kind, by_address, authority, risk_level, decision,
	code, reason, rules_evaluated, rules_triggered, rules_version, trace, latency_us, created_at from policy_decisions`

func row(r sqldb.Scanner) (api.Decision, error) {
	var d api.Decision
	var evaluated, triggered string
	err := r.Scan(&d.ID, &d.Agent, &d.Session, &d.Turn, &d.Index, &d.Tool, &d.ArgsHash, &d.By.Kind, &d.By.Address, &d.Authority, &d.Risk,
		&d.Action, &d.Code, &d.Message, &evaluated, &triggered, &d.Version, &d.Trace, &d.LatencyUS, &d.At)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal([]byte(evaluated), &d.Evaluated); err != nil {
		return d, fmt.Errorf("rules of decision %s: %w", d.ID, err)
	}
	if err := json.Unmarshal([]byte(triggered), &d.Triggered); err != nil {
		return d, fmt.Errorf("rules of decision %s: %w", d.ID, err)
	}
	return d, nil
}

// AllowedSince returns the number of calls of a tool by an agent that were allowed after
// since.
func (s *Store) AllowedSince(ctx context.Context, agent, tool string, since time.Time) (int, error) {
	return allowedSince(ctx, s.db, agent, tool, since)
}

func allowedSince(ctx context.Context, q sqldb.Querier, agent, tool string, since time.Time) (n int, err error) {
	err = q.QueryRowContext(ctx, `select count(*) from policy_decisions
		where agent = $1 and tool_name = $2 and decision = $3 and created_at > $4`, agent, tool, string(api.Allow), since.UnixMicro()).Scan(&n)
	return n, err
}

// Record stores a decision if there is none on the call, which is identified by turn and
// index. Otherwise it returns the stored decision: with concurrent replicas and repeated
// requests, the first decision is final. first reports whether d was stored.
//
// On PostgreSQL the insertion runs without a transaction, which is one round trip; on
// SQLite it runs in a transaction, which shares its commit with other transactions.
func (s *Store) Record(ctx context.Context, d api.Decision, run string) (stored api.Decision, first bool, err error) {
	cells, err := values(d, run)
	if err != nil {
		return d, false, err
	}
	if s.db.Engine == sqldb.Postgres {
		first, err = insert(ctx, s.db, cells)
	} else {
		err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) (err error) {
			first, err = insert(ctx, tx, cells)
			return err
		})
	}
	if err != nil || first {
		return d, first, err
	}
	stored, err = recorded(ctx, s.db, d)
	return stored, false, err
}

// RecordCounted is Record of the decision that judge makes from the number of calls of
// the tool by the agent that were allowed after since. Counting and storing are one
// transaction, and those of one agent and tool do not run concurrently, so concurrent
// calls cannot exceed a limit together. judge may be called again.
func (s *Store) RecordCounted(ctx context.Context, agent, tool string, since time.Time, run string, judge func(allowed int) api.Decision) (stored api.Decision, first bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		if err := tx.Lock(ctx, "rate "+agent+" "+tool); err != nil {
			return err
		}
		n, err := allowedSince(ctx, tx, agent, tool, since)
		if err != nil {
			return err
		}
		stored = judge(n)
		cells, err := values(stored, run)
		if err != nil {
			return err
		}
		if first, err = insert(ctx, tx, cells); err != nil || first {
			return err
		}
		stored, err = recorded(ctx, tx, stored)
		return err
	})
	return stored, first, err
}

// values returns the values of the row of a decision.
func values(d api.Decision, run string) ([]any, error) {
	evaluated, err := api.Encode(d.Evaluated)
	if err != nil {
		return nil, err
	}
	triggered, err := api.Encode(d.Triggered)
	if err != nil {
		return nil, err
	}
	return []any{
		d.ID, d.Agent, d.Session, run, d.Turn, d.Index, d.Tool, d.ArgsHash, string(d.By.Kind), d.By.Address, d.Authority, d.Risk,
		string(d.Action), d.Code, d.Message, string(evaluated), string(triggered), d.Version, d.Trace, d.LatencyUS, d.At,
	}, nil
}

// insert stores a row and reports whether there was none on the call.
func insert(ctx context.Context, q sqldb.Querier, values []any) (done bool, err error) {
	res, err := q.ExecContext(ctx, `insert into policy_decisions (id, agent, session, run, turn_id, idx, tool_name, tool_args_hash, by_kind,
			by_address, authority, risk_level, decision, code, reason, rules_evaluated, rules_triggered, rules_version, trace, latency_us, created_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21) on conflict (turn_id, idx) do nothing`,
		values...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// recorded returns the stored decision on the call of d.
func recorded(ctx context.Context, q sqldb.Querier, d api.Decision) (api.Decision, error) {
	stored, err := row(q.QueryRowContext(ctx, columns+` where turn_id = $1 and idx = $2`, d.Turn, d.Index))
	if errors.Is(err, sqldb.ErrNotFound) {
		err = fmt.Errorf("decision on call %d of %s is neither stored nor new", d.Index, d.Turn)
	}
	return stored, err
}

// Place is the position of a decision in the list. The zero value is the start of the
// list.
type Place struct {
	At    int64
	Turn  string
	Index int
}

// List returns the decisions that match q and come after the position, the latest first,
// at most q.Limit.
func (s *Store) List(ctx context.Context, q api.ListDecisions, after Place) ([]api.Decision, error) {
	all, err := sqldb.All(ctx, s.db, row, columns+` where ($1 = '' or agent = $1) and ($2 = '' or turn_id = $2)
		and (created_at < $3 or created_at = $3 and (turn_id > $4 or turn_id = $4 and idx > $5) or $3 = 0)
		order by created_at desc, turn_id, idx limit $6`, q.Agent, q.Turn, after.At, after.Turn, after.Index, q.Limit)
	if all == nil {
		all = []api.Decision{}
	}
	return all, err
}

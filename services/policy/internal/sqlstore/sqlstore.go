// Package sqlstore keeps decisions, the same statements on SQLite and Postgres.
// It judges nothing.
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

// Migrations of the store. The outbox's are included for the release before, which
// announced each decision and may run beside this one; what it left there is read by no
// service.
func Migrations() fs.FS {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return outbox.WithMigrations(sub)
}

// Store is safe for concurrent use.
type Store struct{ db *sqldb.DB }

// New returns a store on a migrated database.
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

// AllowedSince counts the calls of a tool that were allowed to an agent.
func (s *Store) AllowedSince(ctx context.Context, agent, tool string, since time.Time) (int, error) {
	var n int
	err := s.db.QueryRowContext(ctx, `select count(*) from policy_decisions
		where agent = $1 and tool_name = $2 and decision = $3 and created_at > $4`, agent, tool, string(api.Allow), since.UnixMicro()).Scan(&n)
	return n, err
}

// Record stores a decision, unless there is one on the call. Of two replicas that judge
// the same call, and of the first time and the next, the first is right: Record returns
// that decision, and says whether it is d.
func (s *Store) Record(ctx context.Context, d api.Decision, run string) (stored api.Decision, first bool, err error) {
	evaluated, err := api.Encode(d.Evaluated)
	if err != nil {
		return d, false, err
	}
	triggered, err := api.Encode(d.Triggered)
	if err != nil {
		return d, false, err
	}
	first, err = s.insert(ctx, `insert into policy_decisions (id, agent, session, run, turn_id, idx, tool_name, tool_args_hash, by_kind,
			by_address, authority, risk_level, decision, code, reason, rules_evaluated, rules_triggered, rules_version, trace, latency_us, created_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21) on conflict (turn_id, idx) do nothing`,
		d.ID, d.Agent, d.Session, run, d.Turn, d.Index, d.Tool, d.ArgsHash, string(d.By.Kind), d.By.Address, d.Authority, d.Risk,
		string(d.Action), d.Code, d.Message, string(evaluated), string(triggered), d.Version, d.Trace, d.LatencyUS, d.At)
	if err != nil || first {
		return d, first, err
	}
	stored, err = row(s.db.QueryRowContext(ctx, columns+` where turn_id = $1 and idx = $2`, d.Turn, d.Index))
	if errors.Is(err, sqldb.ErrNotFound) {
		err = fmt.Errorf("decision on call %d of %s is neither stored nor new", d.Index, d.Turn)
	}
	return stored, false, err
}

// insert runs a statement that stores a row or none: by itself on Postgres, which is one
// round trip, and on SQLite in a transaction, which shares its commit with others.
func (s *Store) insert(ctx context.Context, query string, args ...any) (done bool, err error) {
	var n int64
	count := func(q sqldb.Querier) error {
		res, err := q.ExecContext(ctx, query, args...)
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	}
	if s.db.Engine == sqldb.Postgres {
		err = count(s.db)
	} else {
		err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error { return count(tx) })
	}
	return n == 1, err
}

// Place is a decision's place in the list. The zero value is the begin of the list.
type Place struct {
	At    int64
	Turn  string
	Index int
}

// List returns decisions that match, the latest first, those behind a place.
func (s *Store) List(ctx context.Context, q api.ListDecisions, after Place) ([]api.Decision, error) {
	all, err := sqldb.All(ctx, s.db, row, columns+` where ($1 = '' or agent = $1) and ($2 = '' or turn_id = $2)
		and (created_at < $3 or created_at = $3 and (turn_id > $4 or turn_id = $4 and idx > $5) or $3 = 0)
		order by created_at desc, turn_id, idx limit $6`, q.Agent, q.Turn, after.At, after.Turn, after.Index, q.Limit)
	if all == nil {
		all = []api.Decision{}
	}
	return all, err
}

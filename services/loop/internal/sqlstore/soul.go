package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/soul"
)

const soulColumns = `agent, version, id, content, content_hash, change_source, change_reason, created_at`

func soulRow(r sqldb.Scanner) (v soul.Version, err error) {
	err = r.Scan(&v.Agent, &v.Number, &v.ID, &v.Content, &v.Hash, &v.Source, &v.Reason, &v.At)
	return v, err
}

// Souls implements [soul.Store].
func (s Memory) Souls(ctx context.Context, agent string, limit int) ([]soul.Version, error) {
	return s.SoulsBefore(ctx, agent, 0, limit)
}

// revisions returns the columns of [engine.Revisions] for the agent that an SQL expression
// names: the hash of the latest soul, the active goal with the number of its last change, and
// the agent's choice of a model. An agent has at most one active goal.
func revisions(agent string) string {
	return `coalesce((select content_hash from soul_history where agent = ` + agent + ` order by version desc limit 1), ''),
		coalesce((select id || ' ' || cast(seq as text) from goals where agent = ` + agent + ` and status = 'active'), ''),
		coalesce((select chosen_model from agents where id = ` + agent + `), ''), coalesce((select low_compute from agents where id = ` + agent + `), 0)`
}

// Revisions returns the revisions of an agent's soul and active goal, and its choice.
func (s Memory) Revisions(ctx context.Context, agent string) (engine.Revisions, error) {
	r := engine.Revisions{Known: true}
	err := s.db.QueryRowContext(ctx, `select `+revisions(`$1`), agent).Scan(&r.Soul, &r.Goal, &r.Choice.Model, &r.Choice.LowCompute)
	return r, err
}

// SoulsBefore returns at most limit versions with numbers less than number, the latest
// first; 0 is no bound.
func (s Memory) SoulsBefore(ctx context.Context, agent string, number int64, limit int) ([]soul.Version, error) {
	return sqldb.All(ctx, s.db, soulRow, `select `+soulColumns+` from soul_history
		where agent = $1 and (version < $2 or $2 = 0) order by version desc limit $3`, agent, number, limit)
}

// AddSoul implements [soul.Store].
func (s Memory) AddSoul(ctx context.Context, v soul.Version) (soul.Version, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (soul.Version, error) {
		tx.Queue(ctx, `insert into soul_history (`+soulColumns+`)
			select $1, n, $3, $4, $5, $6, $7, $8 from (select coalesce(max(version), 0) + 1 as n from soul_history where agent = $1) v
			where n = $2 on conflict do nothing`,
			v.Agent, v.Number, v.ID, v.Content, v.Hash, v.Source, text(v.Reason), v.At)
		stored, err := soulRow(tx.QueryRowContext(ctx, `select `+soulColumns+` from soul_history where agent = $1 and id = $2`, v.Agent, v.ID))
		return stored, missing(err, api.Errorf(api.Conflict, "version %d of the soul of %s is not the next one", v.Number, v.Agent))
	})
}

// Deeds implements [soul.Store].
func (s Memory) Deeds(ctx context.Context, agent string) (soul.Deeds, error) {
	var d soul.Deeds
	err := s.db.QueryRowContext(ctx, `select coalesce(sum(turns), 0), coalesce(sum(cost), 0) from sessions where agent = $1`, agent).Scan(&d.Turns, &d.Spent)
	if err != nil {
		return d, err
	}
	// The summaries have the tools of every session. Reading the calls would read all
	// calls that the agent ever made.
	lists, err := sqldb.All(ctx, s.db, sqldb.Column[string],
		`select tools_used from session_summaries where agent = $1 order by updated_at desc limit 1000`, agent)
	if err != nil {
		return d, err
	}
	if d.Tools, err = distinct(lists, 50); err != nil {
		return d, err
	}
	if d.Peers, err = sqldb.All(ctx, s.db, sqldb.Column[string], `select entity_address from relationship_memory
		where agent = $1 order by interaction_count desc, entity_address limit $2`, agent, 10); err != nil {
		return d, err
	}
	d.Balance, err = sqldb.One[string](ctx, s.db,
		`select value from semantic_memory where agent = $1 and category = 'financial' and key = 'last_known_balance'
			and origin in ('creator', 'self', 'heartbeat')`, agent) // the soul has no marks of origins
	return d, missing(err, nil)
}

// distinct returns the distinct words of JSON lists, sorted, at most n.
func distinct(lists []string, n int) ([]string, error) {
	var all []string
	for _, l := range lists {
		var words []string
		if err := json.Unmarshal([]byte(l), &words); err != nil {
			return nil, fmt.Errorf("tools of a session: %w", err)
		}
		all = append(all, words...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), n)], nil
}

// ownGenesis selects the genesis prompt that agent a has set for itself. It selects none
// if the creator has applied another definition since.
const ownGenesis = `select g.prompt from genesis_prompts g where g.agent = a.id and g.version = a.version order by g.number desc limit 1`

// SetGenesis replaces an agent's genesis prompt and stores the previous one with it. It
// is idempotent by key. Errors: NotFound.
func (s *Store) SetGenesis(ctx context.Context, agent, prompt, reason, key string, at int64) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		// The lock on the agent's row makes the numbers consecutive.
		if err := s.lockAgent(ctx, tx, agent); err != nil {
			return err
		}
		a, err := s.definition(ctx, tx, agent)
		if err != nil {
			return err
		}
		tx.Queue(ctx, `insert into genesis_prompts (agent, number, version, prompt, previous, reason, call_key, created_at)
			select id, (select coalesce(max(number), 0) + 1 from genesis_prompts where agent = $1), version, $2, $3, $4, $5, $6 from agents where id = $1
			on conflict (agent, call_key) do nothing`, agent, text(prompt), text(a.Genesis), text(reason), key, at)
		return nil
	})
}

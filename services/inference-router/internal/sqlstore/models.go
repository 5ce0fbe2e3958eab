package sqlstore

import (
	"context"

	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/inference-router/internal/registry"
)

// Registry reads the whole registry of models. Prices that were withdrawn are left out.
func (s *Store) Registry(ctx context.Context) (registry.State, error) {
	var state registry.State
	err := sqldb.Snapshot(ctx, s.db, func(tx *sqldb.Tx) error {
		var err error
		state, err = readRegistry(ctx, tx)
		return err
	})
	return state, err
}

// Generation returns the generation of the registry, which increases with each change.
func (s *Store) Generation(ctx context.Context) (int64, error) {
	return sqldb.One[int64](ctx, s.db, `select generation from model_registry where one = 1`)
}

// ChangeRegistry applies the changes that plan makes of the stored registry, in one
// transaction. Changes are made one after another, also by several replicas. It returns the
// generation and whether something was changed; a plan without changes increases no
// generation. plan may be called again after a conflict with another transaction.
func (s *Store) ChangeRegistry(ctx context.Context, plan func(registry.State) (registry.Changes, error)) (generation int64, changed bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		changed = false
		if _, err := sqldb.One[int64](ctx, tx, `select generation from model_registry where one = 1`+s.db.ForUpdate()); err != nil {
			return err
		}
		state, err := readRegistry(ctx, tx)
		if err != nil {
			return err
		}
		generation = state.Generation
		c, err := plan(state)
		if err != nil || c.Empty() {
			return err
		}
		changed, generation = true, state.Generation+1
		tx.Queue(ctx, `update model_registry set generation = $1 where one = 1`, generation)
		return write(ctx, tx, c)
	})
	return generation, changed, err
}

const priceColumns = `provider, id, version, lifecycle, url, input_price, output_price, cached_price, write_price, reasoning_price, valid_from, created_at, withdrawn_at`

func priceRow(r sqldb.Scanner) (registry.Price, error) {
	var p registry.Price
	return p, r.Scan(&p.Provider, &p.ID, &p.Version, &p.Lifecycle, &p.URL, &p.Prices.Input, &p.Prices.Output, &p.Prices.Cached, &p.Prices.Write,
		&p.Prices.Reasoning, &p.From, &p.At, &p.Withdrawn)
}

func modelRow(r sqldb.Scanner) (registry.Row, error) {
	var m registry.Row
	var tools, vision, fallback, notChat int64
	err := r.Scan(&m.Provider, &m.ID, &m.Lifecycle, &m.URL, &m.ContextWindow, &m.MaxOutput, &tools, &vision, &m.TokenParam, &m.TierMinimum, &fallback, &notChat, &m.Remote,
		&m.CreatedAt, &m.VanishedAt)
	m.Tools, m.Vision, m.Fallback, m.NotChat = tools != 0, vision != 0, fallback != 0, notChat != 0
	return m, err
}

func readRegistry(ctx context.Context, tx *sqldb.Tx) (registry.State, error) {
	var state registry.State
	generation := tx.QueueRow(ctx, `select generation from model_registry where one = 1`)
	rows := sqldb.QueueAll(ctx, tx, modelRow, `select provider, id, lifecycle, url, context_window, max_output, tools, vision, token_param, tier_minimum, fallback,
		not_chat, remote, created_at, vanished_at from models order by created_at, provider, id`)
	prices := sqldb.QueueAll(ctx, tx, priceRow, `select `+priceColumns+` from model_prices where withdrawn_at = 0 order by provider, id, version`)
	lists := sqldb.QueueAll(ctx, tx, func(r sqldb.Scanner) (registry.List, error) {
		var l registry.List
		return l, r.Scan(&l.Provider, &l.URL, &l.State)
	}, `select provider, url, state from model_lists`)
	err := generation.Scan(&state.Generation)
	if err == nil {
		state.Rows, err = rows.All()
	}
	if err == nil {
		state.Prices, err = prices.All()
	}
	if err == nil {
		state.Lists, err = lists.All()
	}
	return state, err
}

func write(ctx context.Context, tx *sqldb.Tx, c registry.Changes) error {
	for _, m := range c.Put {
		tx.Queue(ctx, `insert into models (provider, id, lifecycle, url, context_window, max_output, tools, vision, token_param, tier_minimum, fallback, not_chat,
				remote, created_at, updated_at, vanished_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
			on conflict (provider, id, lifecycle, url) do update set context_window = excluded.context_window, max_output = excluded.max_output,
				tools = excluded.tools, vision = excluded.vision, token_param = excluded.token_param, tier_minimum = excluded.tier_minimum, fallback = excluded.fallback,
				not_chat = excluded.not_chat, remote = excluded.remote, updated_at = excluded.updated_at, vanished_at = excluded.vanished_at`,
			m.Provider, m.ID, string(m.Lifecycle), m.URL, m.ContextWindow, m.MaxOutput, number(m.Tools), number(m.Vision), string(m.TokenParam), string(m.TierMinimum),
			number(m.Fallback), number(m.NotChat), m.Remote, m.CreatedAt, c.At, m.VanishedAt)
	}
	for _, m := range c.Delete {
		tx.Queue(ctx, `delete from models where provider = $1 and id = $2 and lifecycle = $3 and url = $4`, m.Provider, m.ID, string(m.Lifecycle), m.URL)
	}
	for _, p := range c.Withdraw {
		tx.Queue(ctx, `update model_prices set withdrawn_at = $4 where provider = $1 and id = $2 and version = $3`, p.Provider, p.ID, p.Version, c.At)
	}
	for _, l := range c.Lists {
		tx.Queue(ctx, `insert into model_lists (provider, url, state, read_at) values ($1, $2, $3, $4)
			on conflict (provider, url) do update set state = excluded.state, read_at = excluded.read_at`, l.Provider, l.URL, string(l.State), c.At)
	}
	for _, p := range c.Prices {
		// The number follows those of withdrawn prices, which the plan does not see.
		_, err := tx.ExecContext(ctx, `insert into model_prices (`+priceColumns+`)
			select $1, $2, coalesce(max(version), 0) + 1, $3, $4, cast($5 as bigint), cast($6 as bigint), cast($7 as bigint), cast($8 as bigint), cast($9 as bigint),
				cast($10 as bigint), cast($11 as bigint), 0
			from model_prices where provider = $1 and id = $2`,
			p.Provider, p.ID, string(p.Lifecycle), p.URL, int64(p.Prices.Input), int64(p.Prices.Output), int64(p.Prices.Cached), int64(p.Prices.Write),
			int64(p.Prices.Reasoning), p.From, c.At)
		if err != nil {
			return err
		}
	}
	return nil
}

// PriceHistory returns at most 1000 versions of prices of a model and a provider, "" for
// all, with those that were withdrawn: by provider and model, the latest first.
func (s *Store) PriceHistory(ctx context.Context, provider, id string) ([]registry.Price, error) {
	return sqldb.All(ctx, s.db, priceRow, `select `+priceColumns+` from model_prices
		where ($1 = '' or provider = $1) and ($2 = '' or id = $2) order by provider, id, version desc limit 1000`, provider, id)
}

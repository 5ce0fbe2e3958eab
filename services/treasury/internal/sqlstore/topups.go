package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/topup"
)

var _ topup.Store = (*Store)(nil)

const selectTopup = "select id, agent, usd, cause, automatic, state, reason, before, after, created_at, ended_at from topups "

func scanTopup(row sqldb.Scanner) (p topup.Purchase, err error) {
	var automatic int64
	err = row.Scan(&p.ID, &p.Agent, &p.USD, &p.Cause, &automatic, &p.State, &p.Reason, &p.Before, &p.After, &p.CreatedAt, &p.EndedAt)
	p.Automatic = automatic != 0
	return p, err
}

// BeginTopup implements [topup.Store].
func (s *Store) BeginTopup(ctx context.Context, p topup.Purchase, next func(*topup.Purchase, []topup.Purchase) error) (stored topup.Purchase, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, `insert into topup_agents (agent, changed) values ($1, $2)
			on conflict (agent) do update set changed = excluded.changed`, p.Agent, p.CreatedAt)
		var err error
		if stored, err = scanTopup(tx.QueryRowContext(ctx, selectTopup+"where id = $1", p.ID)); err == nil || !errors.Is(err, sqldb.ErrNotFound) {
			return err
		}
		latest, err := sqldb.All(ctx, tx, scanTopup, selectTopup+`where agent = $1
			order by case when state = 'open' then 0 else 1 end, ended_at desc, id limit $2`, p.Agent, topup.MaxFutile+1)
		if err != nil {
			return err
		}
		var open *topup.Purchase
		if len(latest) > 0 && latest[0].State == topup.Open {
			open, latest = &latest[0], latest[1:]
		}
		if err := next(open, latest); err != nil {
			return err
		}
		automatic := 0
		if p.Automatic {
			automatic = 1
		}
		tx.Queue(ctx, `insert into topups (id, agent, usd, cause, automatic, state, reason, before, after, created_at, ended_at)
			values ($1, $2, $3, $4, $5, 'open', '', $6, 0, $7, 0)`, p.ID, p.Agent, p.USD, p.Cause, automatic, int64(p.Before), p.CreatedAt)
		stored = p
		return nil
	})
	return stored, err
}

// EndTopup implements [topup.Store].
func (s *Store) EndTopup(ctx context.Context, p topup.Purchase) (topup.Purchase, error) {
	_, err := s.db.ExecContext(ctx, "update topups set state = $1, reason = $2, after = $3, ended_at = $4 where id = $5 and state = 'open'",
		string(p.State), p.Reason, int64(p.After), p.EndedAt, p.ID)
	if err != nil {
		return p, err
	}
	return scanTopup(s.db.QueryRowContext(ctx, selectTopup+"where id = $1", p.ID))
}

// OpenTopups implements [topup.Store].
func (s *Store) OpenTopups(ctx context.Context, limit int) ([]topup.Purchase, error) {
	return sqldb.All(ctx, s.db, scanTopup, selectTopup+"where state = 'open' order by created_at, id limit $1", limit)
}

// PoorAgents implements [topup.Store].
func (s *Store) PoorAgents(ctx context.Context, credits, usdc api.Micros, limit int) ([]string, error) {
	return sqldb.All(ctx, s.db, func(row sqldb.Scanner) (agent string, err error) {
		err = row.Scan(&agent)
		return agent, err
	}, `select w.agent from wallets w join accounts a on a.id = 'agent:' || w.agent join accounts h on h.id = 'held:' || w.agent
		join accounts u on u.id = 'usdc:' || w.agent
		where w.agent <> '' and a.balance + h.balance <= $1 and u.balance >= $2 order by w.agent limit $3`, int64(credits), int64(usdc), limit)
}

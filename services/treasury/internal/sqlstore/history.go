package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// Head implements [ledger.Store]. A malformed hash is the zero value, because Verify
// reports it.
func (s *Store) Head(ctx context.Context) (h ledger.Head, err error) {
	var hash string
	err = s.db.QueryRowContext(ctx, selectHead(s.db.Engine)).Scan(&h.Seq, &hash)
	h.Hash, _ = ledger.ParseHash(hash)
	return h, err
}

// Time implements [ledger.Store].
func (s *Store) Time(ctx context.Context, seq int64) (at int64, err error) {
	err = s.db.QueryRowContext(ctx, "select at from journal where seq = $1", seq).Scan(&at)
	if errors.Is(err, sqldb.ErrNotFound) {
		return 0, api.Errorf(api.NotFound, "there is no transaction %d", seq)
	}
	return at, err
}

// BalanceAt implements [ledger.Store]. The balance of an account is in the line of its
// last transaction, so each account that is stored today costs the search for that one:
// short for credits, which nearly all transactions of an agent move, and at worst all
// transactions of the agent. Transactions are never changed, so no snapshot is needed.
func (s *Store) BalanceAt(ctx context.Context, agent string, seq int64) (ledger.Balance, error) {
	stored := map[string]bool{}
	var failed error
	among("select id from accounts where id in", ledger.AccountsOf(agent), func(query string, args []any) {
		ids, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (id string, err error) {
			err = row.Scan(&id)
			return id, err
		}, query, args...)
		for _, id := range ids {
			stored[id] = true
		}
		failed = errors.Join(failed, err)
	})
	if failed != nil {
		return ledger.Balance{}, failed
	}
	at := map[string]ledger.Account{}
	for id := range stored {
		balance, err := s.accountAt(ctx, agent, id, seq)
		if err != nil {
			return ledger.Balance{}, err
		}
		at[id] = ledger.Account{ID: id, Balance: balance}
	}
	return ledger.BalanceOf(agent, func(id string) (ledger.Account, bool) {
		a, ok := at[id]
		return a, ok
	})
}

// HoldsByID implements [ledger.Store].
func (s *Store) HoldsByID(ctx context.Context, ids []string) (map[string]ledger.Hold, error) {
	holds := make(map[string]ledger.Hold, len(ids))
	var failed error
	among(selectHold+" where id in", ids, func(query string, args []any) {
		part, err := sqldb.All(ctx, s.db, scanHold, query, args...)
		for _, h := range part {
			holds[h.ID] = h
		}
		failed = errors.Join(failed, err)
	})
	return holds, failed
}

// Categories implements [ledger.Store].
func (s *Store) Categories(ctx context.Context, holds []string) (map[string]string, error) {
	categories := make(map[string]string, len(holds))
	var failed error
	among("select id, category from holds where id in", holds, func(query string, args []any) {
		_, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (struct{}, error) {
			var id, category string
			err := row.Scan(&id, &category)
			categories[id] = category
			return struct{}{}, err
		}, query, args...)
		failed = errors.Join(failed, err)
	})
	return categories, failed
}

// accountAt returns the balance of an account of an agent after a transaction.
func (s *Store) accountAt(ctx context.Context, agent, account string, seq int64) (api.Micros, error) {
	// The first two parts find a row with the account among its lines, where the agent is
	// the first or the second agent; the third one a row of the previous release.
	const last = "select seq, lines, balance from (" +
		"select * from (select seq, lines, 0 as balance from journal where agent = $1 and seq <= $2 and replace(lines, $3, '') <> lines order by seq desc limit 1) a" +
		" union all select * from (select seq, lines, 0 as balance from journal where other = $1 and other <> '' and seq <= $2 and replace(lines, $3, '') <> lines order by seq desc limit 1) b" +
		" union all select * from (select seq, '' as lines, balance from postings_v1 where account = $4 and seq <= $2 order by seq desc limit 1) c" +
		") d order by seq desc limit 1"
	var lines string
	var balance api.Micros
	err := s.db.QueryRowContext(ctx, last, agent, seq, `"`+account+`"`, account).Scan(new(int64), &lines, &balance)
	if errors.Is(err, sqldb.ErrNotFound) {
		return 0, nil
	}
	for _, l := range decodeLines(lines) {
		if l.Account == account {
			balance = l.Balance
		}
	}
	return balance, err
}

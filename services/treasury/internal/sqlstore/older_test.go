package sqlstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// older is a [ledger.Store] with the statements of the previous release, for tests of
// both releases on one database. It uses the names that the tables had.
type older struct{ db *sqldb.DB }

func (s *older) Update(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		state, err := s.load(ctx, tx, keys)
		if err != nil {
			return err
		}
		before := state.Head
		c := change(state)
		if c.Head == before {
			return nil
		}
		return s.save(ctx, tx, c)
	})
}

func (s *older) load(ctx context.Context, tx *sqldb.Tx, keys ledger.Keys) (ledger.State, error) {
	state := ledger.State{
		Accounts: map[string]ledger.Account{}, Holds: map[string]ledger.Hold{}, Transactions: map[string]ledger.Transaction{},
	}
	var hash string
	err := tx.QueryRowContext(ctx, "select seq, hash from chain where one = 1"+tx.ForUpdate()).Scan(&state.Head.Seq, &hash)
	if err != nil {
		return state, err
	}
	if state.Head.Hash, err = ledger.ParseHash(hash); err != nil {
		return state, err
	}
	holds, err := olderAmong(ctx, tx, olderHold, olderSelectHold+" where id in", append(keys.Holds, keys.NewHolds...))
	if err != nil {
		return state, err
	}
	wanted := slices.Clone(keys.Accounts)
	for _, h := range holds {
		state.Holds[h.ID] = h
		wanted = append(wanted, ledger.Available(h.Agent), ledger.Held(h.Agent))
	}
	accounts, err := olderAmong(ctx, tx, olderAccount, "select id, balance, entries from accounts where id in", wanted)
	if err != nil {
		return state, err
	}
	for _, a := range accounts {
		state.Accounts[a.ID] = a
	}
	lines, err := olderAmong(ctx, tx, scanOlderLine, olderSelectLine+" from journal j left join postings p on p.seq = j.seq where j.id in", keys.NewTransactions)
	if err != nil {
		return state, err
	}
	slices.SortFunc(lines, func(a, b olderLine) int {
		return cmp.Or(cmp.Compare(a.of.Seq, b.of.Seq), cmp.Compare(a.number, b.number))
	})
	for _, t := range foldOlder(lines) {
		state.Transactions[t.ID] = t
	}
	return state, nil
}

func (s *older) save(ctx context.Context, tx *sqldb.Tx, c ledger.Changes) error {
	var err error
	exec := func(query string, args ...any) {
		if err == nil {
			_, err = tx.ExecContext(ctx, query, args...)
		}
	}
	for _, t := range c.Transactions {
		exec("insert into journal (seq, id, kind, agent, memo, turn, trace, at, previous, hash) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
			t.Seq, t.ID, string(t.Kind), t.Agent, t.Memo, t.Turn, t.Trace, t.At, t.Previous.String(), t.Hash.String())
		for i, l := range t.Lines[:len(t.Lines)-len(t.Lines)%2] {
			if i%2 == 1 {
				continue
			}
			exec("insert into postings (seq, line, account, amount, balance) values ($1, $2, $3, $4, $5),($6, $7, $8, $9, $10)",
				t.Seq, int64(i), l.Account, int64(l.Amount), int64(l.Balance),
				t.Seq, int64(i+1), t.Lines[i+1].Account, int64(t.Lines[i+1].Amount), int64(t.Lines[i+1].Balance))
		}
		if n := len(t.Lines); n%2 == 1 {
			l := t.Lines[n-1]
			exec("insert into postings (seq, line, account, amount, balance) values ($1, $2, $3, $4, $5)", t.Seq, int64(n-1), l.Account, int64(l.Amount), int64(l.Balance))
		}
	}
	for _, a := range c.Accounts {
		exec("insert into accounts (id, balance, entries) values ($1, $2, $3)"+
			" on conflict (id) do update set balance = excluded.balance, entries = excluded.entries", a.ID, int64(a.Balance), a.Entries)
	}
	for _, h := range c.Holds {
		exec("insert into holds (id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent)"+
			" values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"+
			" on conflict (id) do update set settled = excluded.settled, payee = excluded.payee, status = excluded.status, ended_at = excluded.ended_at",
			h.ID, h.Agent, h.Category, h.Turn, int64(h.Amount), int64(h.Settled), h.Payee, string(h.Status), h.CreatedAt, h.ExpiresAt, h.EndedAt, h.Parent)
	}
	exec("update chain set seq = $1, hash = $2 where one = 1", c.Head.Seq, c.Head.Hash.String())
	return err
}

func (s *older) Open(ctx context.Context, agent string) error {
	_, err := s.db.ExecContext(ctx, "insert into accounts (id, balance, entries) values ($1, 0, 0), ($2, 0, 0) on conflict (id) do nothing",
		ledger.Available(agent), ledger.Held(agent))
	return err
}

func (s *older) Balance(ctx context.Context, agent string) (ledger.Balance, error) {
	b := ledger.Balance{Agent: agent}
	err := s.db.QueryRowContext(ctx,
		"select a.balance, h.balance, a.entries from accounts a join accounts h on h.id = $2 where a.id = $1",
		ledger.Available(agent), ledger.Held(agent)).Scan(&b.Available, &b.Held, &b.Entries)
	if errors.Is(err, sqldb.ErrNotFound) {
		return b, ledger.UnknownAgent(agent)
	}
	return b, err
}

func (s *older) Holds(ctx context.Context, f ledger.HoldFilter) ([]ledger.HoldState, error) {
	const query = "select h.id, h.agent, h.category, h.turn, h.amount, h.settled, h.payee, h.status, h.created_at, h.expires_at, h.ended_at, h.parent," +
		" a.balance, r.balance from holds h join accounts a on a.id = 'agent:' || h.agent join accounts r on r.id = 'held:' || h.agent" +
		" where h.status = $1"
	scan := func(row sqldb.Scanner) (h ledger.HoldState, err error) {
		var held api.Micros
		err = row.Scan(append(olderHoldColumns(&h.Hold), &h.Available, &held)...)
		h.Tier = api.TierOf(h.Available + held)
		return h, err
	}
	if f.Agent == "" {
		hs, err := sqldb.All(ctx, s.db, scan, query+" order by h.created_at, h.id limit $2", string(f.Status), f.Limit)
		return hs, err
	}
	hs, err := sqldb.All(ctx, s.db, scan, query+" and h.agent = $2 order by h.created_at, h.id limit $3", string(f.Status), f.Agent, f.Limit)
	return hs, err
}

func (s *older) Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error) {
	err = s.db.QueryRowContext(ctx, "select coalesce(sum(settled), 0), coalesce(sum(case status when 'active' then amount else 0 end), 0)"+
		" from holds where agent = $1 and turn = $2 and category = $3", agent, turn, category).Scan(&paid, &held)
	return paid, held, err
}

func (s *older) Due(ctx context.Context, after, at int64, limit int) ([]string, error) {
	ids, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, "select id from holds where status = 'active' and expires_at > $1 and expires_at <= $2 order by expires_at limit $3", after, at, limit)
	return ids, err
}

func (s *older) Transactions(ctx context.Context, agent string, after int64, limit int) ([]ledger.Transaction, error) {
	return olderTransactions(ctx, s.db, agent, after, limit)
}

// The following are no operations of the previous release: its ledger reverses nothing and
// has no history.

func (s *older) Transaction(_ context.Context, id string) (ledger.Transaction, error) {
	return ledger.Transaction{}, ledger.UnknownTransaction(id)
}

func (s *older) Head(ctx context.Context) (ledger.Head, error) {
	return sqlstore.New(s.db, nil).Head(ctx)
}

func (s *older) Time(ctx context.Context, seq int64) (int64, error) {
	return sqlstore.New(s.db, nil).Time(ctx, seq)
}

func (s *older) BalanceAt(ctx context.Context, agent string, seq int64) (ledger.Balance, error) {
	return sqlstore.New(s.db, nil).BalanceAt(ctx, agent, seq)
}

func (s *older) HoldsByID(ctx context.Context, ids []string) (map[string]ledger.Hold, error) {
	return sqlstore.New(s.db, nil).HoldsByID(ctx, ids)
}

func (s *older) Categories(ctx context.Context, holds []string) (map[string]string, error) {
	return sqlstore.New(s.db, nil).Categories(ctx, holds)
}

func olderTransactions(ctx context.Context, q sqldb.Querier, agent string, after int64, limit int) ([]ledger.Transaction, error) {
	const join = olderSelectLine + " from journal j left join postings p on p.seq = j.seq where j.seq in ("
	const order = ") order by j.seq, p.line"
	var lines []olderLine
	var err error
	if agent == "" {
		lines, err = sqldb.All(ctx, q, scanOlderLine, join+"select seq from journal where seq > $1 order by seq limit $2"+order, after, limit)
	} else {
		lines, err = sqldb.All(ctx, q, scanOlderLine,
			join+"select distinct seq from postings where account in ($1, $2) and seq > $3 order by seq limit $4"+order,
			ledger.Available(agent), ledger.Held(agent), after, limit)
	}
	return foldOlder(lines), err
}

func (s *older) Snapshot(ctx context.Context, after int64) (ledger.Snapshot, error) {
	var snap ledger.Snapshot
	err := sqldb.Snapshot(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		snap = ledger.Snapshot{Ended: map[api.HoldStatus]ledger.Tally{}}
		var hash string
		if err = tx.QueryRowContext(ctx, "select seq, hash from chain where one = 1").Scan(&snap.Head.Seq, &hash); err != nil {
			return err
		}
		snap.Head.Hash, _ = ledger.ParseHash(hash)
		if snap.Transactions, err = olderTransactions(ctx, tx, "", after, 100_000); err != nil {
			return err
		}
		if err = tx.QueryRowContext(ctx, "select count(*) from postings").Scan(&snap.Loose); err != nil {
			return err
		}
		all, err := olderTransactions(ctx, tx, "", 0, 100_000)
		if err != nil {
			return err
		}
		for _, t := range all {
			snap.Loose -= int64(len(t.Lines))
		}
		if snap.Accounts, err = sqldb.All(ctx, tx, olderAccount, "select id, balance, entries from accounts"+" order by id"); err != nil {
			return err
		}
		if snap.Active, err = sqldb.All(ctx, tx, olderHold, olderSelectHold+" where status = 'active' order by id"); err != nil {
			return err
		}
		_, err = sqldb.All(ctx, tx, func(row sqldb.Scanner) (struct{}, error) {
			var status api.HoldStatus
			var t ledger.Tally
			err := row.Scan(&status, &t.Holds, &t.Amount, &t.Settled)
			snap.Ended[status] = t
			return struct{}{}, err
		}, "select status, count(*), cast(sum(amount) as bigint), cast(sum(settled) as bigint) from holds where status <> 'active' group by status")
		return err
	})
	return snap, err
}

func olderAccount(row sqldb.Scanner) (a ledger.Account, err error) {
	err = row.Scan(&a.ID, &a.Balance, &a.Entries)
	return a, err
}

func olderAmong[T any](ctx context.Context, tx *sqldb.Tx, scan func(sqldb.Scanner) (T, error), query string, ids []string) ([]T, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	places, args := make([]string, len(ids)), make([]any, len(ids))
	for i, id := range ids {
		places[i], args[i] = fmt.Sprintf("$%d", i+1), id
	}
	return sqldb.All(ctx, tx, scan, query+" ("+strings.Join(places, ",")+")", args...)
}

const olderSelectHold = "select id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent from holds"

func olderHold(row sqldb.Scanner) (h ledger.Hold, err error) {
	err = row.Scan(olderHoldColumns(&h)...)
	return h, err
}

func olderHoldColumns(h *ledger.Hold) []any {
	return []any{
		&h.ID, &h.Agent, &h.Category, &h.Turn, &h.Amount, &h.Settled, &h.Payee, &h.Status,
		&h.CreatedAt, &h.ExpiresAt, &h.EndedAt, &h.Parent,
	}
}

// olderLine is a transaction with one of its postings. number is -1 if the transaction
// has no postings, which happens only in a broken ledger.
type olderLine struct {
	of      ledger.Transaction
	number  int64
	posting ledger.Line
}

const olderSelectLine = "select j.seq, j.id, j.kind, j.agent, j.memo, j.turn, j.trace, j.at, j.previous, j.hash," +
	" coalesce(p.line, -1), coalesce(p.account, ''), coalesce(p.amount, 0), coalesce(p.balance, 0)"

func scanOlderLine(row sqldb.Scanner) (l olderLine, err error) {
	var previous, hash string
	err = row.Scan(&l.of.Seq, &l.of.ID, &l.of.Kind, &l.of.Agent, &l.of.Memo, &l.of.Turn, &l.of.Trace, &l.of.At, &previous, &hash,
		&l.number, &l.posting.Account, &l.posting.Amount, &l.posting.Balance)
	// A malformed hash is read as the zero value, because Verify reports it.
	l.of.Previous, _ = ledger.ParseHash(previous)
	l.of.Hash, _ = ledger.ParseHash(hash)
	return l, err
}

// foldOlder builds transactions from their lines, which are in order.
func foldOlder(lines []olderLine) []ledger.Transaction {
	var ts []ledger.Transaction
	for _, l := range lines {
		if n := len(ts); n == 0 || ts[n-1].Seq != l.of.Seq {
			ts = append(ts, l.of)
		}
		if l.number >= 0 {
			t := &ts[len(ts)-1]
			t.Lines = append(t.Lines, l.posting)
		}
	}
	return ts
}

package sqlstore

import (
	"cmp"
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// Open implements [ledger.Store].
func (s *Store) Open(ctx context.Context, agent string) error {
	_, err := s.db.ExecContext(ctx, "insert into accounts (id, balance, entries) values ($1, 0, 0), ($2, 0, 0) on conflict (id) do nothing",
		ledger.Available(agent), ledger.Held(agent))
	return err
}

// Balance implements [ledger.Store].
func (s *Store) Balance(ctx context.Context, agent string) (ledger.Balance, error) {
	b := ledger.Balance{Agent: agent}
	err := s.db.QueryRowContext(ctx,
		"select a.balance, h.balance, a.entries from accounts a join accounts h on h.id = $2 where a.id = $1",
		ledger.Available(agent), ledger.Held(agent)).Scan(&b.Available, &b.Held, &b.Entries)
	if errors.Is(err, sqldb.ErrNotFound) {
		return b, ledger.UnknownAgent(agent)
	}
	return b, err
}

// Holds implements [ledger.Store].
func (s *Store) Holds(ctx context.Context, f ledger.HoldFilter) ([]ledger.HoldState, error) {
	const query = "select h.id, h.agent, h.category, h.turn, h.amount, h.settled, h.payee, h.status, h.created_at, h.expires_at, h.ended_at, h.parent," +
		" a.balance, r.balance from holds h join accounts a on a.id = 'agent:' || h.agent join accounts r on r.id = 'held:' || h.agent" +
		" where h.status = $1"
	scan := func(row sqldb.Scanner) (h ledger.HoldState, err error) {
		var held api.Micros
		err = row.Scan(append(holdColumns(&h.Hold), &h.Available, &held)...)
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

// Spent implements [ledger.Store].
func (s *Store) Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error) {
	err = s.db.QueryRowContext(ctx, "select coalesce(sum(settled), 0), coalesce(sum(case status when 'active' then amount else 0 end), 0)"+
		" from holds where agent = $1 and turn = $2 and category = $3", agent, turn, category).Scan(&paid, &held)
	return paid, held, err
}

// Due implements [ledger.Store].
func (s *Store) Due(ctx context.Context, at int64, limit int) ([]string, error) {
	ids, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, "select id from holds where status = 'active' and expires_at <= $1 order by expires_at limit $2", at, limit)
	return ids, err
}

// Transactions implements [ledger.Store].
func (s *Store) Transactions(ctx context.Context, agent string, after int64, limit int) ([]ledger.Transaction, error) {
	ts, err := transactions(ctx, s.db, agent, after, limit)
	return ts, err
}

func transactions(ctx context.Context, q sqldb.Querier, agent string, after int64, limit int) ([]ledger.Transaction, error) {
	const join = selectLine + " from journal j left join postings p on p.seq = j.seq where j.seq in ("
	const order = ") order by j.seq, p.line"
	var lines []line
	var err error
	if agent == "" {
		lines, err = sqldb.All(ctx, q, scanLine, join+"select seq from journal where seq > $1 order by seq limit $2"+order, after, limit)
	} else {
		lines, err = sqldb.All(ctx, q, scanLine,
			join+"select distinct seq from postings where account in ($1, $2) and seq > $3 order by seq limit $4"+order,
			ledger.Available(agent), ledger.Held(agent), after, limit)
	}
	return fold(lines), err
}

// tailLimit bounds what a snapshot reads of the transactions that were written
// while the others were checked.
const tailLimit = 100_000

// Snapshot implements [ledger.Store].
func (s *Store) Snapshot(ctx context.Context, after int64) (ledger.Snapshot, error) {
	var snap ledger.Snapshot
	err := sqldb.Snapshot(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		snap = ledger.Snapshot{Ended: map[api.HoldStatus]ledger.Tally{}}
		var hash string
		if snap.Head.Seq, hash, err = head(ctx, tx, ""); err != nil {
			return err
		}
		snap.Head.Hash, _ = ledger.ParseHash(hash) // as in scanLine
		if snap.Transactions, err = transactions(ctx, tx, "", after, tailLimit); err != nil {
			return err
		}
		if err = tx.QueryRowContext(ctx, "select count(*) from postings").Scan(&snap.Lines); err != nil {
			return err
		}
		if snap.Accounts, err = sqldb.All(ctx, tx, scanAccount, selectAccount+" order by id"); err != nil {
			return err
		}
		if snap.Active, err = sqldb.All(ctx, tx, scanHold, selectHold+" where status = 'active' order by id"); err != nil {
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

func head(ctx context.Context, tx *sqldb.Tx, lock string) (seq int64, hash string, err error) {
	err = tx.QueryRowContext(ctx, "select seq, hash from chain where one = 1"+lock).Scan(&seq, &hash)
	return seq, hash, err
}

const selectAccount = "select id, balance, entries from accounts"

func scanAccount(row sqldb.Scanner) (a ledger.Account, err error) {
	err = row.Scan(&a.ID, &a.Balance, &a.Entries)
	return a, err
}

const selectHold = "select id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent from holds"

func scanHold(row sqldb.Scanner) (h ledger.Hold, err error) {
	err = row.Scan(holdColumns(&h)...)
	return h, err
}

func holdColumns(h *ledger.Hold) []any {
	return []any{
		&h.ID, &h.Agent, &h.Category, &h.Turn, &h.Amount, &h.Settled, &h.Payee, &h.Status,
		&h.CreatedAt, &h.ExpiresAt, &h.EndedAt, &h.Parent,
	}
}

// line is a row of a transaction beside one of its postings; number -1 where
// there is none, which only a tampered ledger has.
type line struct {
	of      ledger.Transaction
	number  int64
	posting ledger.Line
}

const selectLine = "select j.seq, j.id, j.kind, j.agent, j.memo, j.turn, j.trace, j.at, j.previous, j.hash," +
	" coalesce(p.line, -1), coalesce(p.account, ''), coalesce(p.amount, 0), coalesce(p.balance, 0)"

func scanLine(row sqldb.Scanner) (l line, err error) {
	var previous, hash string
	err = row.Scan(&l.of.Seq, &l.of.ID, &l.of.Kind, &l.of.Agent, &l.of.Memo, &l.of.Turn, &l.of.Trace, &l.of.At, &previous, &hash,
		&l.number, &l.posting.Account, &l.posting.Amount, &l.posting.Balance)
	// A hash that is no hash is a fault that verify must be able to tell of.
	l.of.Previous, _ = ledger.ParseHash(previous)
	l.of.Hash, _ = ledger.ParseHash(hash)
	return l, err
}

func inOrder(a, b line) int {
	return cmp.Or(cmp.Compare(a.of.Seq, b.of.Seq), cmp.Compare(a.number, b.number))
}

// fold makes transactions of their lines, which are in order.
func fold(lines []line) []ledger.Transaction {
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

package sqlstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

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
	if s.alone {
		if b, ok := s.memory.balance(agent); ok {
			return b, nil
		}
	}
	ids := ledger.AccountsOf(agent)
	accounts, err := s.accounts(ctx, ids)
	if err != nil {
		return ledger.Balance{}, err
	}
	return ledger.BalanceOf(agent, func(id string) (ledger.Account, bool) {
		a, ok := accounts[id]
		return a, ok
	})
}

// accounts reads accounts. On a database of one process it caches them: no Update runs
// meanwhile, so they are as of the cached head. An account of an agent that is not stored
// is cached as empty unless the agent has no account.
func (s *Store) accounts(ctx context.Context, ids []string) (map[string]ledger.Account, error) {
	if s.alone {
		s.writing.Lock()
		defer s.writing.Unlock()
	}
	var rows []ledger.Account
	var failed error
	among(selectAccount+" where id in", ids, func(query string, args []any) {
		part, err := sqldb.All(ctx, s.db, scanAccount, query, args...)
		rows, failed = append(rows, part...), errors.Join(failed, err)
	})
	if failed != nil {
		return nil, failed
	}
	found := make(map[string]ledger.Account, len(ids))
	for _, a := range rows {
		found[a.ID] = a
	}
	if s.alone {
		fillAbsent(found, ids)
		s.memory.add(found)
	}
	return found, nil
}

// Holds implements [ledger.Store]. The active holds of an agent are found by the index of
// all active holds, its other holds by the index of the agent's holds.
func (s *Store) Holds(ctx context.Context, f ledger.HoldFilter) ([]ledger.HoldState, error) {
	query := "select h.id, h.agent, h.category, h.turn, h.amount, h.settled, h.payee, h.status, h.created_at, h.expires_at, h.ended_at, h.parent, h.asset, h.counted," +
		" a.balance, r.balance, coalesce(u.balance, 0) from holds h join accounts a on a.id = 'agent:' || h.agent" +
		" join accounts r on r.id = 'held:' || h.agent left join accounts u on u.id = 'usdc:' || h.agent where "
	scan := func(row sqldb.Scanner) (h ledger.HoldState, err error) {
		var held, usdc api.Micros
		err = row.Scan(append(holdColumns(&h.Hold), &h.Available, &held, &usdc)...)
		h.Tier = api.TierOf(h.Available + held)
		if h.Asset == api.USDC {
			h.Available = usdc
		}
		return h, err
	}
	args := []any{f.Limit}
	var agent string
	if f.Status == api.HoldActive {
		query += "h.status = 'active'" // the literal text of the condition of the partial index
		agent = " and h.agent || '' = $2"
	} else {
		query += "h.status = $2"
		args = append(args, string(f.Status))
		agent = " and h.agent = $3"
	}
	if f.Agent != "" {
		query += agent
		args = append(args, f.Agent)
	}
	if f.Category != "" {
		args = append(args, f.Category)
		query += " and h.category = $" + strconv.Itoa(len(args))
	}
	return sqldb.All(ctx, s.db, scan, query+" order by h.created_at, h.id limit $1", args...)
}

// Spent implements [ledger.Store].
func (s *Store) Spent(ctx context.Context, agent, turn, category string) (paid, held api.Micros, err error) {
	err = s.db.QueryRowContext(ctx, "select coalesce(sum(settled), 0), coalesce(sum(case status when 'active' then amount else 0 end), 0)"+
		" from holds where agent = $1 and turn = $2 and category = $3", agent, turn, category).Scan(&paid, &held)
	return paid, held, err
}

// Due implements [ledger.Store].
func (s *Store) Due(ctx context.Context, after, at int64, limit int) ([]string, error) {
	ids, err := sqldb.All(ctx, s.db, func(row sqldb.Scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, "select id from holds where status = 'active' and expires_at > $1 and expires_at <= $2 order by expires_at limit $3", after, at, limit)
	return ids, err
}

// Transactions implements [ledger.Store].
func (s *Store) Transactions(ctx context.Context, agent string, after int64, limit int) ([]ledger.Transaction, error) {
	return transactions(ctx, s.db, agent, after, limit)
}

func transactions(ctx context.Context, q sqldb.Querier, agent string, after int64, limit int) ([]ledger.Transaction, error) {
	var ts []transaction
	var err error
	if agent == "" {
		ts, err = sqldb.All(ctx, q, scanTransaction, selectTransaction+" where seq > $1 order by seq limit $2", after, limit)
	} else {
		// The last part finds rows of the previous release in which other agents moved
		// the agent's credits.
		const of = " where seq in (select seq from (select seq from journal where agent = $1 and seq > $2 order by seq limit $3) a" +
			" union select seq from (select seq from journal where other = $1 and other <> '' and seq > $2 order by seq limit $3) b" +
			" union select seq from (select seq from postings_v1 where account in ($4, $5) and seq > $2 order by seq limit $6) c)" +
			" order by seq limit $3"
		ts, err = sqldb.All(ctx, q, scanTransaction, selectTransaction+of, agent, after, limit,
			ledger.Available(agent), ledger.Held(agent), 2*limit) // a transaction has at most both accounts
	}
	if err != nil {
		return nil, err
	}
	if err := addLines(ctx, q, ts); err != nil {
		return nil, err
	}
	var all []ledger.Transaction
	for _, t := range ts {
		all = append(all, t.Transaction)
	}
	return all, nil
}

// Transaction implements [ledger.Store].
func (s *Store) Transaction(ctx context.Context, id string) (ledger.Transaction, error) {
	ts, err := sqldb.All(ctx, s.db, scanTransaction, selectTransaction+" where id = $1", id)
	if err != nil {
		return ledger.Transaction{}, err
	}
	if len(ts) == 0 {
		return ledger.Transaction{}, ledger.UnknownTransaction(id)
	}
	err = addLines(ctx, s.db, ts)
	return ts[0].Transaction, err
}

// tailLimit bounds the transactions in a snapshot: those written since
// [ledger.Ledger.Verify] read the others.
const tailLimit = 100_000

// Snapshot implements [ledger.Store].
func (s *Store) Snapshot(ctx context.Context, after int64) (ledger.Snapshot, error) {
	var snap ledger.Snapshot
	err := sqldb.Snapshot(ctx, s.db, func(tx *sqldb.Tx) (err error) {
		snap = ledger.Snapshot{Ended: map[api.HoldStatus]ledger.Tally{}}
		var hash string
		if err = tx.QueryRowContext(ctx, selectHead(tx.Engine)).Scan(&snap.Head.Seq, &hash); err != nil {
			return err
		}
		snap.Head.Hash, _ = ledger.ParseHash(hash) // as in scanTransaction
		if snap.Transactions, err = transactions(ctx, tx, "", after, tailLimit); err != nil {
			return err
		}
		err = tx.QueryRowContext(ctx, "select count(*) from postings_v1 p left join journal j on j.seq = p.seq and j.lines = '' where j.seq is null").Scan(&snap.Loose)
		if err != nil {
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

// selectHead returns the query of the end of the chain. On SQLite, where chain is a view,
// it reads the last row of the journal, because the view reads all of them.
func selectHead(e sqldb.Engine) string {
	if e == sqldb.Postgres {
		return "select seq, hash from chain where one = 1"
	}
	const last = "from journal order by seq desc limit 1"
	return "select coalesce((select seq " + last + "), 0), coalesce((select hash " + last + "), '0000000000000000000000000000000000000000000000000000000000000000')"
}

func scanHead(row sqldb.Scanner) (h ledger.Head, err error) {
	var hash string
	if err = row.Scan(&h.Seq, &hash); err == nil {
		h.Hash, err = ledger.ParseHash(hash)
	}
	return h, err
}

const selectAccount = "select id, balance, entries, meter, limits from accounts"

func scanAccount(row sqldb.Scanner) (a ledger.Account, err error) {
	var meter, own string
	if err = row.Scan(&a.ID, &a.Balance, &a.Entries, &meter, &own); err == nil {
		err = decodeLimits(&a, meter, own)
	}
	return a, err
}

const selectHold = "select id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent, asset, counted from holds"

func scanHold(row sqldb.Scanner) (h ledger.Hold, err error) {
	err = row.Scan(holdColumns(&h)...)
	return h, err
}

func holdColumns(h *ledger.Hold) []any {
	return []any{
		&h.ID, &h.Agent, &h.Category, &h.Turn, &h.Amount, &h.Settled, &h.Payee, &h.Status,
		&h.CreatedAt, &h.ExpiresAt, &h.EndedAt, &h.Parent, &h.Asset, &h.Counted,
	}
}

// transaction is a row of the journal. apart says that its lines are rows of postings_v1.
type transaction struct {
	ledger.Transaction
	apart bool
}

const selectTransaction = "select seq, id, kind, agent, memo, turn, trace, at, previous, hash, lines from journal"

func scanTransaction(row sqldb.Scanner) (t transaction, err error) {
	var previous, hash, lines string
	err = row.Scan(&t.Seq, &t.ID, &t.Kind, &t.Agent, &t.Memo, &t.Turn, &t.Trace, &t.At, &previous, &hash, &lines)
	// A malformed hash and malformed lines are read as zero values, because Verify
	// reports them.
	t.Previous, _ = ledger.ParseHash(previous)
	t.Hash, _ = ledger.ParseHash(hash)
	if t.apart = lines == ""; !t.apart {
		t.Lines = decodeLines(lines)
	}
	return t, err
}

// addLines reads the lines that are not in the rows of their transactions.
func addLines(ctx context.Context, q sqldb.Querier, ts []transaction) error {
	var apart []int64
	for i := range ts {
		if ts[i].apart {
			apart = append(apart, ts[i].Seq)
		}
	}
	if len(apart) == 0 {
		return nil
	}
	type posting struct {
		seq, line int64
		ledger.Line
	}
	scan := func(row sqldb.Scanner) (p posting, err error) {
		err = row.Scan(&p.seq, &p.line, &p.Account, &p.Amount, &p.Balance)
		return p, err
	}
	var found []posting
	var failed error
	among("select seq, line, account, amount, balance from postings_v1 where seq in", apart, func(query string, args []any) {
		rows, err := sqldb.All(ctx, q, scan, query, args...)
		found, failed = append(found, rows...), errors.Join(failed, err)
	})
	if failed != nil {
		return failed
	}
	slices.SortFunc(found, func(a, b posting) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.line, b.line)) })
	of := make(map[int64][]ledger.Line, len(apart))
	for _, p := range found {
		of[p.seq] = append(of[p.seq], p.Line)
	}
	for i := range ts {
		if ts[i].apart {
			ts[i].Lines = of[ts[i].Seq]
		}
	}
	return nil
}

// encodeLines encodes lines for a row of the journal:
// [["<account>",<amount>,<balance>],…].
func encodeLines(lines []ledger.Line) string {
	b := make([]byte, 0, 64*len(lines))
	for i, l := range lines {
		b = append(b, "[,"[min(i, 1)])
		b = append(b, `["`...)
		for _, c := range []byte(l.Account) { // accounts are visible ASCII
			if c == '"' || c == '\\' {
				b = append(b, '\\')
			}
			b = append(b, c)
		}
		b = append(b, `",`...)
		b = strconv.AppendInt(b, int64(l.Amount), 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, int64(l.Balance), 10)
		b = append(b, ']')
	}
	return string(append(b, ']'))
}

// decodeLines decodes the result of encodeLines. It returns nil for malformed text.
func decodeLines(text string) []ledger.Line {
	var rows []storedLine
	if json.Unmarshal([]byte(text), &rows) != nil {
		return nil
	}
	lines := make([]ledger.Line, len(rows))
	for i, r := range rows {
		lines[i] = ledger.Line(r)
	}
	return lines
}

// storedLine is a line in the form of encodeLines.
type storedLine ledger.Line

// UnmarshalJSON decodes one line.
func (l *storedLine) UnmarshalJSON(data []byte) error {
	fields := []any{&l.Account, &l.Amount, &l.Balance}
	err := json.Unmarshal(data, &fields)
	if err == nil && len(fields) != 3 {
		err = errors.New("a line has three fields")
	}
	return err
}

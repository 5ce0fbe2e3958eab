package sqlstore

import (
	"context"
	"slices"

	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// Update implements [ledger.Store]. However many operations a group has, it
// costs about a dozen statements.
func (s *Store) Update(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		state, err := load(ctx, tx, keys)
		if err != nil {
			return err
		}
		before := state.Head
		c := change(state)
		if c.Head == before {
			return nil
		}
		if err := failpoint.Do(ctx, failpoint.TreasuryWrite, func(ctx context.Context) error { return save(ctx, tx, c) }); err != nil {
			return err
		}
		if s.announce == nil {
			return nil
		}
		return s.announce(ctx, tx, c)
	})
}

func load(ctx context.Context, tx *sqldb.Tx, keys ledger.Keys) (ledger.State, error) {
	state := ledger.State{
		Accounts: map[string]ledger.Account{}, Holds: map[string]ledger.Hold{}, Transactions: map[string]ledger.Transaction{},
	}
	// First of all: whoever has this row is the only writer.
	seq, hash, err := head(ctx, tx, tx.ForUpdate())
	if err != nil {
		return state, err
	}
	state.Head.Seq = seq
	if state.Head.Hash, err = ledger.ParseHash(hash); err != nil {
		return state, err
	}
	holds, err := among(ctx, tx, scanHold, selectHold+" where id in", distinct(keys.Holds))
	if err != nil {
		return state, err
	}
	wanted := slices.Clone(keys.Accounts)
	for _, h := range holds {
		state.Holds[h.ID] = h
		wanted = append(wanted, ledger.Available(h.Agent), ledger.Held(h.Agent))
	}
	accounts, err := among(ctx, tx, scanAccount, selectAccount+" where id in", distinct(wanted))
	if err != nil {
		return state, err
	}
	for _, a := range accounts {
		state.Accounts[a.ID] = a
	}
	lines, err := among(ctx, tx, scanLine, selectLine+" from journal j left join postings p on p.seq = j.seq where j.id in", distinct(keys.Transactions))
	if err != nil {
		return state, err
	}
	slices.SortFunc(lines, inOrder)
	for _, t := range fold(lines) {
		state.Transactions[t.ID] = t
	}
	return state, nil
}

func distinct(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return slices.Compact(ids)
}

func save(ctx context.Context, tx *sqldb.Tx, c ledger.Changes) error {
	var journal, postings []any
	for _, t := range c.Transactions {
		journal = append(journal, t.Seq, t.ID, string(t.Kind), t.Agent, t.Memo, t.Turn, t.Trace, t.At, t.Previous.String(), t.Hash.String())
		for i, l := range t.Lines {
			postings = append(postings, t.Seq, int64(i), l.Account, int64(l.Amount), int64(l.Balance))
		}
	}
	var accounts, holds []any
	for _, a := range c.Accounts {
		accounts = append(accounts, a.ID, int64(a.Balance), a.Entries)
	}
	for _, h := range c.Holds {
		holds = append(holds, h.ID, h.Agent, h.Category, h.Turn, int64(h.Amount), int64(h.Settled), h.Payee, string(h.Status),
			h.CreatedAt, h.ExpiresAt, h.EndedAt, h.Parent)
	}
	for _, w := range []struct {
		into, after string
		columns     int
		rows        []any
	}{
		{"insert into journal (seq, id, kind, agent, memo, turn, trace, at, previous, hash) values ", "", 10, journal},
		{"insert into postings (seq, line, account, amount, balance) values ", "", 5, postings},
		{
			"insert into accounts (id, balance, entries) values ",
			" on conflict (id) do update set balance = excluded.balance, entries = excluded.entries", 3, accounts,
		},
		{
			"insert into holds (id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent) values ",
			" on conflict (id) do update set settled = excluded.settled, payee = excluded.payee, status = excluded.status, ended_at = excluded.ended_at",
			12, holds,
		},
	} {
		if err := insert(ctx, tx, w.into, w.after, w.columns, w.rows); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "update chain set seq = $1, hash = $2 where one = 1", c.Head.Seq, c.Head.Hash.String())
	return err
}

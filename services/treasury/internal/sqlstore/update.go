package sqlstore

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// Update implements [ledger.Store]. If all rows are cached, it decides the change by the
// cache and writes it without a read. The first new row of the journal has the number
// after the cached head, so the insert fails if another process wrote first; it also
// fails if an id that is expected to be new exists. If the write does not prove both, or
// if it fails, Update decides the change again from rows read under the lock of the
// chain.
func (s *Store) Update(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if found, whole := s.memory.recall(keys); whole {
		c := change(found.state())
		keys.Add(c.Need)
		if len(c.Transactions) > 0 && proven(keys, found, c) {
			err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error { return s.write(ctx, tx, found, c) })
			if err == nil {
				s.memory.keep(found, c, true)
				return nil
			}
			s.memory.forget() // also after ErrUnavailable, when the commit may have succeeded
			if !errors.Is(err, sqldb.ErrConflict) {
				return err
			}
			return s.locked(ctx, keys, change, true)
		}
	}
	err := s.locked(ctx, keys, change, false)
	if errors.Is(err, sqldb.ErrConflict) {
		err = s.locked(ctx, keys, change, true)
	}
	return err
}

// locked decides a change under the lock of the chain. With all, it reads each key.
// Otherwise it reads only the rows that are not cached, and the ids that are expected to
// be new only if the write does not prove them to be new.
func (s *Store) locked(ctx context.Context, keys ledger.Keys, change func(ledger.State) ledger.Changes, all bool) error {
	var found rows
	var c ledger.Changes
	var ours bool
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		// The lock comes first; the reads of the same round trip see the state after it.
		locking := tx.QueueRow(ctx, selectHead(tx.Engine)+tx.ForUpdate())
		if found, _ = s.memory.recall(keys); all {
			found = emptyRows(found.Head)
		}
		reading := queueRead(ctx, tx, found, keys, all)
		head, err := scanHead(locking)
		if err != nil {
			return err
		}
		if ours = found.Head == head; !ours {
			stale := len(found.Accounts)+len(found.Holds)+len(found.Tallies) > 0
			if found, ours = emptyRows(head), s.db.Engine == sqldb.SQLite; stale {
				reading = queueRead(ctx, tx, found, keys, all)
			}
		}
		if err := reading.into(ctx, tx, &found); err != nil {
			return err
		}
		if c, err = decide(ctx, tx, &found, keys, change, all); err != nil {
			return err
		}
		if c.Head == head {
			return nil
		}
		return s.write(ctx, tx, found, c)
	})
	if err != nil {
		s.memory.forget()
		return err
	}
	s.memory.keep(found, c, ours)
	return nil
}

// maxDecisions bounds how often a change is decided because it needs further rows. Each
// decision of a chain of parents may need the next one.
const maxDecisions = 16

// decide decides a change on found, and again with the rows that it needs. Unless all is
// set, it also reads the ids that are expected to be new, if the write would not prove
// them to be.
func decide(ctx context.Context, tx *sqldb.Tx, found *rows, keys ledger.Keys, change func(ledger.State) ledger.Changes, all bool) (ledger.Changes, error) {
	for range maxDecisions {
		c := change(found.state())
		switch {
		case !c.Need.Empty():
			keys.Add(c.Need)
			if err := queueRead(ctx, tx, *found, c.Need, all).into(ctx, tx, found); err != nil {
				return c, err
			}
		case all || proven(keys, *found, c):
			return c, nil
		default:
			all = true
			if err := queueRead(ctx, tx, *found, keys, true).into(ctx, tx, found); err != nil {
				return c, err
			}
		}
	}
	return ledger.Changes{}, errUndecided
}

// errUndecided is the error of a change that needs rows which do not exist.
var errUndecided = errors.New("the change cannot be decided: a parent of an agent has no account")

// proven reports whether writing c proves that the ids of keys that found lacks are new:
// their rows are inserted, and the unique keys of the tables refuse a second row.
func proven(keys ledger.Keys, found rows, c ledger.Changes) bool {
	if found.all {
		return true
	}
	for _, id := range keys.NewHolds {
		if _, ok := found.Holds[id]; !ok && !slices.ContainsFunc(c.Holds, func(h ledger.Hold) bool { return h.ID == id }) {
			return false
		}
	}
	for _, id := range keys.NewTransactions {
		if !slices.ContainsFunc(c.Transactions, func(t ledger.Transaction) bool { return t.ID == id }) {
			return false
		}
	}
	return true
}

// reading holds queued reads.
type reading struct {
	holds        parts[ledger.Hold]
	accounts     parts[ledger.Account]
	transactions parts[transaction]
	tallies      parts[tally]
	approvals    parts[ledger.Approval]
	keys         ledger.Keys
	all          bool
}

// queueRead queues the read of the rows of keys that found lacks: accounts and holds, and
// with all also the ids that are expected to be new.
func queueRead(ctx context.Context, tx *sqldb.Tx, found rows, keys ledger.Keys, all bool) reading {
	wanted := slices.Clone(keys.Holds)
	if all {
		wanted = append(wanted, keys.NewHolds...)
	}
	r := reading{all: all, keys: keys}
	r.holds = later(ctx, tx, scanHold, selectHold+" where id in", missing(wanted, found.Holds))
	r.accounts = queueAccounts(ctx, tx, found, keys.Accounts)
	r.tallies = queueTallies(ctx, tx, found, keys.Tallies)
	r.approvals = later(ctx, tx, scanApproval, selectApproval+" where id in", missing(keys.Approvals, found.Approvals))
	if all {
		r.transactions = later(ctx, tx, scanTransaction, selectTransaction+" where id in", missing(keys.NewTransactions, found.Transactions))
	}
	return r
}

// queueAccounts queues the read of the accounts that found lacks, with those of the
// agents of its holds.
func queueAccounts(ctx context.Context, tx *sqldb.Tx, found rows, accounts []string) parts[ledger.Account] {
	wanted := slices.Clone(accounts)
	for _, h := range found.Holds {
		counting, _ := h.CountedBy()
		wanted = append(append(wanted, h.Accounts()...), counting...)
	}
	return later(ctx, tx, scanAccount, selectAccount+" where id in", missing(wanted, found.Accounts))
}

// into adds the rows that were read to found, and reads the accounts of the holds among
// them.
func (r reading) into(ctx context.Context, tx *sqldb.Tx, found *rows) error {
	holds, err := r.holds.all()
	if err != nil {
		return err
	}
	accounts, err := r.accounts.all()
	if err != nil {
		return err
	}
	ts, err := r.transactions.all()
	if err != nil {
		return err
	}
	for _, a := range accounts {
		found.Accounts[a.ID] = a
	}
	if err := r.intoLimits(found); err != nil {
		return err
	}
	if len(holds) > 0 {
		for _, h := range holds {
			found.Holds[h.ID] = h
		}
		more, sums := queueAccounts(ctx, tx, *found, nil), queueTallies(ctx, tx, *found, nil)
		if accounts, err = more.all(); err != nil {
			return err
		}
		for _, a := range accounts {
			found.Accounts[a.ID] = a
		}
		if err := intoTallies(found, sums, nil); err != nil {
			return err
		}
	}
	for _, h := range found.Holds {
		fillAbsent(found.Accounts, h.Accounts())
	}
	fillAbsent(found.Accounts, r.keys.Accounts)
	if err := addLines(ctx, tx, ts); err != nil {
		return err
	}
	for _, t := range ts {
		found.Transactions[t.ID] = t.Transaction
	}
	found.all = found.all || r.all
	return nil
}

// missing returns the ids that found lacks, each once.
func missing[V any](ids []string, found map[string]V) []string {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := found[id]; return ok })
	slices.Sort(ids)
	return slices.Compact(ids)
}

// write writes the changes and their events.
func (s *Store) write(ctx context.Context, tx *sqldb.Tx, found rows, c ledger.Changes) error {
	err := failpoint.Do(ctx, failpoint.TreasuryWrite, func(ctx context.Context) error {
		save(ctx, tx, found, c)
		return nil
	})
	if err != nil || s.announce == nil {
		return err
	}
	return s.announce(ctx, tx, c)
}

// save queues the rows. On PostgreSQL they are sent with the commit.
func save(ctx context.Context, tx *sqldb.Tx, found rows, c ledger.Changes) {
	if tx.Engine == sqldb.Postgres {
		// The row that orders the writers is first; the previous release reads it. The
		// update also verifies that the chain ends at the head on which the change was
		// decided: otherwise it writes 0, which the check constraint of the table
		// refuses.
		tx.Queue(ctx, "update chain set one = case when seq = $3 and hash = $4 then 1 else 0 end, seq = $1, hash = $2 where one = 1",
			c.Head.Seq, c.Head.Hash.String(), found.Head.Seq, found.Head.Hash.String())
	}
	const journalWidth, accountWidth, holdWidth = 14, 4, 14
	journal := make([]any, 0, journalWidth*len(c.Transactions))
	accounts := make([]any, 0, accountWidth*len(c.Accounts))
	made, ended := make([]any, 0, holdWidth*len(c.Holds)), make([]any, 0, holdWidth*len(c.Holds))
	for i := range c.Transactions {
		t := &c.Transactions[i]
		journal = append(journal, t.Seq, t.ID, string(t.Kind), t.Agent, t.Memo, t.Turn, t.Trace, t.At, t.Previous.String(), t.Hash.String(),
			encodeLines(t.Lines), t.Other(), int64(t.SumIn(api.Credits)), int64(t.SumIn(api.USDC)))
	}
	for _, a := range c.Accounts {
		accounts = append(accounts, a.ID, int64(a.Balance), a.Entries, encodeMeters(&a))
	}
	for _, h := range c.Holds {
		to := &made
		if _, ok := found.Holds[h.ID]; ok {
			to = &ended
		}
		*to = append(*to, h.ID, h.Agent, h.Category, h.Turn, int64(h.Amount), int64(h.Settled), h.Payee, string(h.Status),
			h.CreatedAt, h.ExpiresAt, h.EndedAt, h.Parent, string(h.Asset), h.Counted)
	}
	const holds = "insert into holds (id, agent, category, turn, amount, settled, payee, status, created_at, expires_at, ended_at, parent, asset, counted) values "
	for _, w := range []struct {
		into, after string
		columns     int
		rows        []any
	}{
		{"insert into journal (seq, id, kind, agent, memo, turn, trace, at, previous, hash, lines, other, credits_sum, usdc_sum) values ", "", journalWidth, journal},
		{
			"insert into accounts (id, balance, entries, meter) values ",
			" on conflict (id) do update set balance = excluded.balance, entries = excluded.entries, meter = excluded.meter", accountWidth, accounts,
		},
		{holds, "", holdWidth, made},
		{
			holds,
			" on conflict (id) do update set settled = excluded.settled, payee = excluded.payee, status = excluded.status, ended_at = excluded.ended_at",
			holdWidth, ended,
		},
	} {
		insert(ctx, tx, w.into, w.after, w.columns, w.rows)
	}
	saveLimits(ctx, tx, c)
}

// rows is the state by which a change is decided.
type rows struct {
	ledger.State
	all bool // each key was read from the database
}

func emptyRows(head ledger.Head) rows {
	return rows{State: ledger.State{
		Head: head, Accounts: map[string]ledger.Account{}, Holds: map[string]ledger.Hold{}, Transactions: map[string]ledger.Transaction{},
		Tallies: map[string]limits.Tally{}, Approvals: map[string]ledger.Approval{},
	}}
}

// state returns a copy, because a change modifies it.
func (r rows) state() ledger.State {
	return ledger.State{
		Head: r.Head, Accounts: maps.Clone(r.Accounts), Holds: maps.Clone(r.Holds), Transactions: maps.Clone(r.Transactions),
		Tallies: maps.Clone(r.Tallies), Approvals: maps.Clone(r.Approvals),
	}
}

package sqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/social/internal/inbox"
)

const selectMessage = `select m.id, m.from_address, m.to_address, m.content, m.signed_at, m.signature, m.reply_to, m.status,
	m.received_at, m.seq, coalesce((select min(d.name) from directory d where d.address = m.from_address), '') from mail m `

func scanMessage(row sqldb.Scanner) (m inbox.Message, err error) {
	var at int64
	err = row.Scan(&m.ID, &m.From, &m.To, &m.Content, &m.SignedAt, &m.Signature, &m.ReplyTo, &m.Status, &at, &m.Seq, &m.Peer)
	m.Received = time.UnixMicro(at).UTC()
	return m, err
}

// lock serialises the transactions that take messages from a mailbox.
func lock(ctx context.Context, tx *sqldb.Tx, address string) {
	tx.Queue(ctx, "update mailboxes set seq = seq where address = $1", address)
}

// MailboxState implements [inbox.Store].
func (s *Store) MailboxState(ctx context.Context, agent, run string) (w inbox.MailboxState, err error) {
	err = s.db.QueryRowContext(ctx, `select d.address,
			(select count(*) from mail where to_address = d.address and status in ('received', 'in_progress')),
			exists (select 1 from mail where to_address = d.address and status in ('received', 'in_progress', 'failed') and claimed_by = $2)
		from directory d where d.agent = $1`, agent, run).Scan(&w.Address, &w.Unread, &w.Claimed)
	if errors.Is(err, sqldb.ErrNotFound) {
		return inbox.MailboxState{}, nil
	}
	return w, err
}

// Claim implements [inbox.Store].
func (s *Store) Claim(ctx context.Context, address, run, from string, limit int, now time.Time) (claimed []inbox.Message, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		lock(ctx, tx, address)
		tx.Queue(ctx, `update mail set status = case when retry_count >= max_retries then 'failed' else 'received' end
			where to_address = $1 and status = 'in_progress' and claimed_at <= $2`, address, micros(now.Add(-inbox.ClaimTimeout)))
		tx.Queue(ctx, `update mail set claimed_at = $1
			where to_address = $2 and status = 'in_progress' and claimed_by = $3`, micros(now), address, run)
		held := selectMessage + "where m.to_address = $1 and m.status = 'in_progress' and m.claimed_by = $2 order by m.seq"
		if claimed, err = sqldb.All(ctx, tx, scanMessage, held, address, run); err != nil || len(claimed) > 0 {
			return err
		}
		free, err := sqldb.All(ctx, tx, scanMessage, selectMessage+`where m.to_address = $1 and m.status = 'received'
			and ($2 = '' or m.from_address = $2) order by m.seq limit $3`, address, from, limit)
		if err != nil || len(free) == 0 {
			return err
		}
		free = inbox.Fit(free)
		tx.Queue(ctx, `update mail set status = 'in_progress', claimed_by = $1, claimed_at = $2, retry_count = retry_count + 1
			where to_address = $3 and status = 'received' and seq <= $4 and ($5 = '' or from_address = $5)`, run, micros(now), address, free[len(free)-1].Seq, from)
		claimed, err = sqldb.All(ctx, tx, scanMessage, held, address, run)
		return err
	})
	return claimed, err
}

// Settle implements [inbox.Store].
func (s *Store) Settle(ctx context.Context, address, run string, now time.Time) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		lock(ctx, tx, address)
		tx.Queue(ctx, `update mail set status = 'processed', processed_at = $1
			where to_address = $2 and claimed_by = $3 and status <> 'processed'`, micros(now), address, run)
		return nil
	})
}

// List implements [inbox.Store].
func (s *Store) List(ctx context.Context, address string, status inbox.Status, from string, before int64, limit int) ([]inbox.Message, error) {
	return sqldb.All(ctx, s.db, scanMessage, selectMessage+`where m.to_address = $1 and ($2 = '' or m.status = $2)
		and ($3 = '' or m.from_address = $3) and (m.seq < $4 or $4 = 0) order by m.seq desc limit $5`, address, string(status), from, before, limit)
}

// Poll implements [inbox.Store].
func (s *Store) Poll(ctx context.Context, address string, after int64, limit int, now time.Time) (polled []inbox.Message, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		lock(ctx, tx, address)
		agent, err := agentAt(ctx, tx, address)
		if err != nil {
			return err
		}
		if agent == "" && after > 0 {
			tx.Queue(ctx, `update mail set status = 'processed', processed_at = $1
				where to_address = $2 and seq <= $3 and status = 'received'`, micros(now), address, after)
		}
		all, err := sqldb.All(ctx, tx, scanMessage, selectMessage+`where m.to_address = $1 and m.seq > $2
			and m.status in ('received', 'in_progress') order by m.seq limit $3`, address, after, limit)
		polled = inbox.Fit(all)
		return err
	})
	return polled, err
}

// Unread implements [inbox.Store].
func (s *Store) Unread(ctx context.Context, address string) (int64, error) {
	return unread(ctx, s.db, address)
}

func unread(ctx context.Context, q sqldb.Querier, address string) (n int64, err error) {
	err = q.QueryRowContext(ctx, `select count(*) from mail
		where to_address = $1 and status in ('received', 'in_progress')`, address).Scan(&n)
	return n, err
}

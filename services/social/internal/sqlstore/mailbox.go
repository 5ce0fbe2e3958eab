package sqlstore

import (
	"context"
	"errors"
	"strconv"
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

// pageOf returns the query of the first messages for which a condition on mail as m holds:
// at most limit, and of those at most as many as fit into one response and one more, by
// which the reader sees that there are more. Others can send messages of the maximum
// size, so a query by their number alone would read a multiple of the response into memory.
func pageOf(condition, order, limit string) string {
	return selectMessage + `join (select id, sum(size) over (order by seq ` + order + `) - size as ahead
			from (select m.id, m.seq, octet_length(m.content) as size from mail m where ` + condition + ` order by m.seq ` + order + ` limit ` + limit + `) as sizes
		) as page on page.id = m.id where page.ahead <= ` + strconv.Itoa(inbox.MaxBytes) + ` order by m.seq ` + order
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

// settledBy returns the query of the messages that a run has settled, among the latest
// hundred processed ones of its mailbox, $1: the mailbox may have many thousands.
func settledBy(run string) string {
	return `select 1 from (select claimed_by from mail where to_address = $1 and status = 'processed' order by seq desc limit 100) as settled
		where settled.claimed_by = ` + run
}

// Claim implements [inbox.Store]. The request of a run that has ended may be executed late,
// for example by a replica that was paused.
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
		free, err := sqldb.All(ctx, tx, scanMessage, pageOf(`m.to_address = $1 and m.status = 'received'
			and ($2 = '' or m.from_address = $2) and not exists (`+settledBy("$4")+`)`, "asc", "$3"), address, from, limit, run)
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

// Release implements [inbox.Store].
func (s *Store) Release(ctx context.Context, address, run string) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		lock(ctx, tx, address)
		tx.Queue(ctx, `update mail set status = case when retry_count >= max_retries then 'failed' else 'received' end
			where to_address = $1 and status = 'in_progress' and claimed_by = $2`, address, run)
		return nil
	})
}

// List implements [inbox.Store].
func (s *Store) List(ctx context.Context, address string, status inbox.Status, from string, before int64, limit int) ([]inbox.Message, error) {
	return sqldb.All(ctx, s.db, scanMessage, pageOf(`m.to_address = $1 and ($2 = '' or m.status = $2)
		and ($3 = '' or m.from_address = $3) and (m.seq < $4 or $4 = 0)`, "desc", "$5"), address, string(status), from, before, limit)
}

// Poll implements [inbox.Store]. It writes only if there is something to mark: anybody may
// poll a mailbox of its own at any rate, and must not delay those who write.
func (s *Store) Poll(ctx context.Context, address string, after int64, limit int, now time.Time) ([]inbox.Message, error) {
	read, err := sqldb.One[bool](ctx, s.db, `select count(*) > 0 from mail where to_address = $1 and status = 'received' and seq <= $2
		and not exists (select 1 from directory where address = $1)`, address, after)
	if err == nil && read {
		err = s.markRead(ctx, address, after, now)
	}
	if err != nil {
		return nil, err
	}
	all, err := sqldb.All(ctx, s.db, scanMessage, pageOf(`m.to_address = $1 and m.seq > $2
		and m.status in ('received', 'in_progress')`, "asc", "$3"), address, after, limit)
	return inbox.Fit(all), err
}

// markRead marks the messages up to a place as processed, unless a local agent has the
// address.
func (s *Store) markRead(ctx context.Context, address string, upTo int64, now time.Time) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		lock(ctx, tx, address)
		agent, err := agentAt(ctx, tx, address)
		if err == nil && agent == "" {
			tx.Queue(ctx, `update mail set status = 'processed', processed_at = $1
				where to_address = $2 and seq <= $3 and status = 'received'`, micros(now), address, upTo)
		}
		return err
	})
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

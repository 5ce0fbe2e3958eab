// Package sqlstore stores messages, API keys and the directory of local agents in SQL, on SQLite and
// Postgres. It must not depend on the content or the recipients of announcements: it only
// ensures that they are in the same transaction as the change.
package sqlstore

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"time"

	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/social/internal/inbox"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the store, including those of the outbox.
func Migrations() fs.FS { return outbox.WithMigrations(files) }

// Announce adds the event of a message for a local agent to the outbox in tx. It must use
// no more of the message than its id, its addresses and the time of its receipt. It is
// called again if the transaction is retried.
type Announce func(ctx context.Context, tx *sqldb.Tx, agent string, m inbox.Message) error

// Store implements [inbox.Store].
type Store struct {
	db       *sqldb.DB
	announce Announce
}

var _ inbox.Store = (*Store)(nil)

// New returns the store in db, whose schema must be up to date.
func New(db *sqldb.DB, announce Announce) *Store { return &Store{db: db, announce: announce} }

// Receive implements [inbox.Store].
func (s *Store) Receive(ctx context.Context, m inbox.Message, fresh func() error) (duplicate bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		var n int64
		if err := tx.QueryRowContext(ctx, "select count(*) from mail where id = $1", m.ID).Scan(&n); err != nil {
			return err
		}
		if duplicate = n > 0; duplicate {
			return nil
		}
		if err := fresh(); err != nil {
			return err
		}
		// The lock on the sender's row serialises concurrent messages of one sender,
		// including copies of one message.
		tx.Queue(ctx, `insert into senders (address, last_at) values ($1, $2)
			on conflict (address) do update set last_at = excluded.last_at`, m.From, micros(m.Received))
		// Messages of a later time were received before the clock was set back. They must
		// not refuse others until the clock shows that time again.
		latest := sqldb.QueueAll(ctx, tx, scanTime, `select received_at from mail where from_address = $1 and received_at <= $3
			order by received_at desc limit $2`, m.From, inbox.Rate, micros(m.Received.Add(inbox.RateWindow)))
		var err error
		duplicate, err = s.put(ctx, tx, m, latest)
		return err
	})
	return duplicate, err
}

// put stores a message, unless it is a duplicate. The caller has locked the row of the
// sender.
func (s *Store) put(ctx context.Context, tx *sqldb.Tx, m inbox.Message, sent *sqldb.Later[time.Time]) (duplicate bool, err error) {
	var n int64
	if err := tx.QueryRowContext(ctx, "select count(*) from mail where id = $1", m.ID).Scan(&n); err != nil || n > 0 {
		return n > 0, err
	}
	latest, err := sent.All()
	if err != nil {
		return false, err
	}
	if err := inbox.CheckRate(latest, m.Received); err != nil {
		return false, err
	}
	// The sequence of a mailbox starts with the current time, so that a mailbox that was
	// pruned and is created again continues after the cursors that clients may hold.
	place := tx.QueueRow(ctx, `insert into mailboxes (address, seq) values ($1, $2)
		on conflict (address) do update set seq = mailboxes.seq + 1 returning seq`, m.To, micros(m.Received))
	recipient := tx.QueueRow(ctx, selectAgent, m.To)
	if n, err = unread(ctx, tx, m.To); err != nil {
		return false, err
	}
	if n >= inbox.MaxUnread {
		return false, inbox.MailboxFull()
	}
	var seq int64
	if err := place.Scan(&seq); err != nil {
		return false, err
	}
	agent, err := scanAgent(recipient)
	if err != nil {
		return false, err
	}
	announced := 0
	if agent != "" {
		announced = 1
	}
	tx.Queue(ctx, `insert into mail (id, to_address, seq, from_address, content, reply_to, signed_at, signature,
		received_at, max_retries, announced) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		m.ID, m.To, seq, m.From, m.Content, m.ReplyTo, m.SignedAt, m.Signature, micros(m.Received), inbox.MaxAttempts, announced)
	if agent == "" {
		return false, nil
	}
	return false, s.announce(ctx, tx, agent, m)
}

// agentAt returns the agent with an address, or "" if there is none.
func agentAt(ctx context.Context, q sqldb.Querier, address string) (string, error) {
	return scanAgent(q.QueryRowContext(ctx, selectAgent, address))
}

const selectAgent = "select agent from directory where address = $1 order by agent limit 1"

func scanAgent(row *sqldb.Row) (string, error) {
	var agent string
	err := row.Scan(&agent)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", nil
	}
	return agent, err
}

// PutAgent implements [inbox.Store].
func (s *Store) PutAgent(ctx context.Context, a inbox.LocalAgent) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		var address string
		var seq int64
		err := tx.QueryRowContext(ctx, "select address, seq from directory where agent = $1"+tx.ForUpdate(), a.Agent).Scan(&address, &seq)
		if err != nil && !errors.Is(err, sqldb.ErrNotFound) || err == nil && seq >= a.Seq {
			return err
		}
		moved := a.Address != "" && a.Address != address
		if moved {
			// Concurrent messages to the address wait for this lock, and then find the
			// local agent.
			tx.Queue(ctx, `insert into mailboxes (address, seq) values ($1, 0)
				on conflict (address) do update set seq = mailboxes.seq`, a.Address)
		}
		tx.Queue(ctx, `insert into directory (agent, name, address, seq) values ($1, $2, $3, $4)
			on conflict (agent) do update set name = excluded.name, address = excluded.address, seq = excluded.seq
			where directory.seq < excluded.seq`, a.Agent, a.Name, a.Address, a.Seq)
		if !moved {
			return nil
		}
		// Without the contents: strangers may have sent 10,000 messages to the address.
		waiting, err := sqldb.All(ctx, tx, scanHeader, `select id, from_address, to_address, received_at from mail
			where to_address = $1 and announced = 0 and status = 'received' order by seq`, a.Address)
		if err != nil {
			return err
		}
		for _, m := range waiting {
			if err := s.announce(ctx, tx, a.Agent, m); err != nil {
				return err
			}
		}
		tx.Queue(ctx, "update mail set announced = 1 where to_address = $1 and announced = 0", a.Address)
		return nil
	})
}

// AddressOf implements [inbox.Store].
func (s *Store) AddressOf(ctx context.Context, agent string) (string, error) {
	var address string
	err := s.db.QueryRowContext(ctx, "select address from directory where agent = $1", agent).Scan(&address)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", nil
	}
	return address, err
}

// AgentAt implements [inbox.Store].
func (s *Store) AgentAt(ctx context.Context, address string) (string, error) {
	return agentAt(ctx, s.db, address)
}

// Prune implements [inbox.Store].
func (s *Store) Prune(ctx context.Context, before time.Time) error {
	for _, old := range []expired{
		{"mail", "id", "received_at < $1"},
		{"senders", "address", "last_at < $1"},
		{"mailboxes", "address", "seq < $1 and not exists (select 1 from mail where to_address = address)"},
	} {
		if err := s.prune(ctx, old, micros(before)); err != nil {
			return err
		}
	}
	return nil
}

// expired describes rows to be deleted: their table, its primary key and their condition,
// with the parameter $1.
type expired struct{ table, key, condition string }

// prunedAtOnce is the number of rows that one transaction of a pruning deletes, so that it
// does not delay the messages that arrive meanwhile.
const prunedAtOnce = 1000

// prune deletes rows until there are no more. The condition is in the statement twice: on
// PostgreSQL it is checked again for a row that a concurrent transaction has changed.
func (s *Store) prune(ctx context.Context, old expired, arg any) error {
	statement := "delete from " + old.table + " where " + old.condition + " and " + old.key +
		" in (select " + old.key + " from " + old.table + " where " + old.condition + " limit $2)"
	for {
		res, err := s.db.ExecContext(ctx, statement, arg, int64(prunedAtOnce))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n < prunedAtOnce {
			return err
		}
	}
}

func scanHeader(row sqldb.Scanner) (m inbox.Message, err error) {
	var at int64
	err = row.Scan(&m.ID, &m.From, &m.To, &at)
	m.Received = time.UnixMicro(at).UTC()
	return m, err
}

func scanTime(row sqldb.Scanner) (time.Time, error) {
	var at int64
	err := row.Scan(&at)
	return time.UnixMicro(at).UTC(), err
}

func micros(t time.Time) int64 { return t.UnixMicro() }

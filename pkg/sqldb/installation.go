package sqldb

import (
	"context"
	"errors"
)

// installationTables creates the tables that every database has beside those of its
// service: the installation that it belongs to, its progress, and the losses that the
// operator has accepted. Migrate creates them.
const installationTables = `create table if not exists installation (
	one bigint not null primary key check (one = 1),
	id text not null,
	seq bigint not null,
	at bigint not null,
	known text not null
);
create table if not exists losses (
	at bigint not null,
	fault text not null,
	settled_at bigint not null default 0,
	primary key (at, fault)
)`

// Mark is the progress of a database. The zero Mark stands for a database without a mark.
type Mark struct {
	ID    string // of the installation
	Seq   int64  // increases with every mark
	At    int64  // Unix microseconds
	Known string // what the service recorded of other stores, in its own format
}

// ReadMark returns the mark of the database. It returns ErrNotFound if there is none.
func ReadMark(ctx context.Context, q Querier) (Mark, error) {
	var m Mark
	err := q.QueryRowContext(ctx, "select id, seq, at, known from installation where one = 1").Scan(&m.ID, &m.Seq, &m.At, &m.Known)
	return m, err
}

// WriteMark writes the next mark, with a sequence of at least atLeast, and returns its
// sequence. It is one statement, and its success proves that the database can be written.
func WriteMark(ctx context.Context, db *DB, id, known string, at, atLeast int64) (seq int64, err error) {
	err = InTx(ctx, db, func(tx *Tx) error {
		return tx.QueryRowContext(ctx, `insert into installation (one, id, seq, at, known) values (1, $1, $4, $2, $3)
			on conflict (one) do update set id = excluded.id, at = excluded.at, known = excluded.known,
				seq = case when installation.seq + 1 > excluded.seq then installation.seq + 1 else excluded.seq end
			returning seq`, id, at, known, max(atLeast, 1)).Scan(&seq)
	})
	return seq, err
}

// Loss is a fault between the stores that the operator has accepted.
type Loss struct {
	At      int64  `json:"at"` // time of acceptance, Unix microseconds
	Fault   string `json:"fault"`
	Settled int64  `json:"settled"` // time at which the service had processed it, Unix microseconds; 0: not yet
}

// AddLosses records the faults that the operator accepted. A repeated call changes
// nothing.
func AddLosses(ctx context.Context, db *DB, at int64, faults []string) error {
	return InTx(ctx, db, func(tx *Tx) error {
		for _, f := range faults {
			if _, err := tx.ExecContext(ctx, "insert into losses (at, fault) values ($1, $2) on conflict do nothing", at, f); err != nil {
				return err
			}
		}
		return nil
	})
}

// Losses returns the accepted losses, the oldest first.
func Losses(ctx context.Context, q Querier) ([]Loss, error) {
	return All(ctx, q, func(s Scanner) (l Loss, err error) {
		err = s.Scan(&l.At, &l.Fault, &l.Settled)
		return l, err
	}, "select at, fault, settled_at from losses order by at, fault")
}

// SettleLosses records that the service has processed all losses accepted until a time.
func SettleLosses(ctx context.Context, db *DB, until, at int64) error {
	_, err := db.ExecContext(ctx, "update losses set settled_at = $2 where at <= $1 and settled_at = 0", until, at)
	return err
}

// HasMark reports whether the database has a mark. A database of an older release has
// none.
func HasMark(ctx context.Context, db *DB) (bool, error) {
	if ok, err := hasTable(ctx, db, "losses"); err != nil || !ok {
		return false, err
	}
	_, err := ReadMark(ctx, db)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

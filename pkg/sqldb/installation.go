package sqldb

import (
	"context"
	"errors"
)

// What every database says of itself, beside its own tables: which installation it
// belongs to, how far it is, and which losses the operator has accepted. Migrate
// makes the tables.
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

// Mark is how far a database is. The zero Mark is that of one without a mark.
type Mark struct {
	ID    string // of the installation
	Seq   int64  // grows with every mark
	At    int64  // Unix microseconds
	Known string // what the database's service recorded of other stores, in its own format
}

// ReadMark returns the database's mark. Errors: ErrNotFound when it has none.
func ReadMark(ctx context.Context, q Querier) (Mark, error) {
	var m Mark
	err := q.QueryRowContext(ctx, "select id, seq, at, known from installation where one = 1").Scan(&m.ID, &m.Seq, &m.At, &m.Known)
	return m, err
}

// WriteMark makes the next mark, at least of sequence atLeast, and returns its
// sequence. It is one statement, which proves that the database can be written.
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
	At      int64  `json:"at"` // when it was accepted, Unix microseconds
	Fault   string `json:"fault"`
	Settled int64  `json:"settled"` // when the service had dealt with it; 0: not yet
}

// AddLosses records what the operator accepted. The same again changes nothing.
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

// Losses returns what was accepted, the oldest first.
func Losses(ctx context.Context, q Querier) ([]Loss, error) {
	return All(ctx, q, func(s Scanner) (l Loss, err error) {
		err = s.Scan(&l.At, &l.Fault, &l.Settled)
		return l, err
	}, "select at, fault, settled_at from losses order by at, fault")
}

// SettleLosses notes that the service has dealt with all losses until a time.
func SettleLosses(ctx context.Context, db *DB, until, at int64) error {
	_, err := db.ExecContext(ctx, "update losses set settled_at = $2 where at <= $1 and settled_at = 0", until, at)
	return err
}

// marked says whether the database has the tables of this file.
func marked(ctx context.Context, db *DB) (bool, error) {
	table := "select count(*) from sqlite_master where type = 'table' and name = 'losses'"
	if db.Engine == Postgres {
		table = "select count(to_regclass('losses'))"
	}
	var n int
	err := db.QueryRowContext(ctx, table).Scan(&n)
	return n > 0, err
}

// HasMark says whether the database has a mark; one that an older release made has
// none.
func HasMark(ctx context.Context, db *DB) (bool, error) {
	if ok, err := marked(ctx, db); err != nil || !ok {
		return false, err
	}
	_, err := ReadMark(ctx, db)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

package sqldb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/anima-run/anima/pkg/wait"
)

// Tx is a transaction. It must be used by one goroutine at a time.
//
// After a statement has failed, the following statements fail too and InTx does not
// commit: Postgres behaves so, and on SQLite Tx does the same. A write that is expected
// to conflict uses ON CONFLICT.
type Tx struct {
	Engine
	lite   *liteConn
	pg     *pgTx
	failed error

	spans *spans  // nil: no statement has a span
	first *string // the first statement, which names the span of the transaction; may be nil
}

// InTx runs fn in a transaction that writes, and commits it if fn returns nil. Otherwise,
// and when fn panics, the transaction is rolled back.
//
// On a conflict with another transaction InTx rolls back and calls fn again, up to ten
// times, with growing random pauses, until ctx ends. So fn must have no effects outside
// the transaction, and must set results rather than add to them. After the last attempt
// the error is ErrBusy. fn must use only the Tx: on SQLite a statement on the DB would
// wait for the connection that fn itself uses. After ErrUnavailable, or if ctx ended, the
// transaction may have been committed nevertheless.
//
// The isolation level on Postgres is READ COMMITTED, and rows that are read to be changed
// are locked with ForUpdate: transactions that spend from one account then queue at its
// row, while SERIALIZABLE would abort all but one of them each time. On SQLite one
// transaction writes at a time, from its start. Those that wait for it share the
// following commit, each within a savepoint: a failure of one does not affect the
// others.
func InTx(ctx context.Context, db *DB, fn func(tx *Tx) error) error {
	return db.spans.transaction(ctx, fn, func(fn func(*Tx) error) error {
		return retry(ctx, func() error {
			if db.Engine == SQLite {
				return db.commits.inTx(ctx, 0, fn)
			}
			return db.pg.once(ctx, "begin isolation level read committed", true, fn)
		})
	})
}

// Snapshot runs fn in a read-only transaction that sees the database as it was at its
// first statement. It does not block writers.
func Snapshot(ctx context.Context, db *DB, fn func(tx *Tx) error) error {
	return db.spans.transaction(ctx, fn, func(fn func(*Tx) error) error {
		return retry(ctx, func() error {
			if db.Engine == SQLite {
				return db.read.once(ctx, "begin", fn)
			}
			return db.pg.once(ctx, "begin isolation level repeatable read, read only", false, fn)
		})
	})
}

// once runs fn in a new transaction that the statement begin starts.
func (p *litePool) once(ctx context.Context, begin string, fn func(*Tx) error) error {
	c, err := p.acquire(ctx)
	if err != nil {
		return mapIn(ctx, err)
	}
	defer p.release(c) // rolls back what is not committed
	if err := c.control(begin); err != nil {
		return mapIn(ctx, err)
	}
	defer c.endReading()
	if err := inside(&Tx{Engine: SQLite, lite: c}, fn); err != nil {
		return err
	}
	if begin == "begin" { // a read-only transaction needs no commit
		return mapIn(ctx, ctx.Err())
	}
	return mapIn(ctx, c.commit(ctx))
}

// inside runs fn; it returns nil if tx may be committed.
func inside(tx *Tx, fn func(*Tx) error) error {
	if err := fn(tx); err != nil {
		return Map(err)
	}
	if tx.failed != nil {
		return fmt.Errorf("not committed: an earlier statement failed: %w", tx.failed)
	}
	return nil
}

// ExecContext runs a statement that returns no rows.
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (res Result, err error) {
	if err := tx.doomed(); err != nil {
		return Result{}, err
	}
	span := tx.start(ctx, query)
	if tx.pg != nil {
		res.rows, err = tx.pg.exec(ctx, query, args)
	} else {
		res.rows, err = tx.lite.exec(ctx, query, args)
	}
	finish(ctx, span, err)
	return res, tx.note(mapIn(ctx, err))
}

// QueryContext returns rows, which must be closed before the next statement.
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*Rows, error) {
	if err := tx.doomed(); err != nil {
		return nil, err
	}
	span := tx.start(ctx, query)
	found, err := tx.query(ctx, query, args)
	if err != nil {
		finish(ctx, span, err)
		return nil, tx.note(mapIn(ctx, err))
	}
	return &Rows{found: found, ctx: ctx, tx: tx, span: span}, nil
}

func (tx *Tx) query(ctx context.Context, query string, args []any) (rowSource, error) {
	if tx.pg != nil {
		return tx.pg.query(ctx, query, args)
	}
	return tx.lite.query(ctx, query, args)
}

// QueryRowContext returns one row; the query runs in its Scan.
func (tx *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *Row {
	return &Row{tx: tx, ctx: ctx, query: query, args: args}
}

func (tx *Tx) queryRow(ctx context.Context, query string, args, dest []any) (err error) {
	span := tx.start(ctx, query)
	defer func() { finish(ctx, span, err) }()
	if tx.pg != nil {
		rows, err := tx.pg.query(ctx, query, args)
		if err != nil {
			return err
		}
		return rows.one(dest)
	}
	return tx.lite.queryRow(ctx, query, args, dest)
}

func (tx *Tx) doomed() error {
	if tx.failed == nil {
		return nil
	}
	return fmt.Errorf("an earlier statement failed: %w", tx.failed)
}

func (tx *Tx) note(err error) error {
	if err != nil {
		tx.failed = err
	}
	return err
}

const (
	attempts   = 10
	firstPause = 2 * time.Millisecond
	longPause  = 250 * time.Millisecond
)

// retry calls do until it returns an error other than ErrBusy, or nil, at most attempts
// times.
func retry(ctx context.Context, do func() error) error {
	for try := range attempts - 1 {
		err := do()
		if !errors.Is(err, ErrBusy) {
			return err
		}
		// Half of the pause is random, so that transactions that collided do not collide
		// again.
		d := min(firstPause<<try, longPause) / 2
		if ended := wait.For(ctx, d+rand.N(d)); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
	return do()
}

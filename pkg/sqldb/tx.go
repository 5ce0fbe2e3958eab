package sqldb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Tx is a transaction, for one goroutine at a time.
//
// A statement that fails dooms it, on both engines as on Postgres: those that
// follow fail too, and InTx does not commit. A write that may conflict and go on
// says so with ON CONFLICT.
type Tx struct {
	Engine
	lite   *liteConn
	pg     *pgTx
	failed error
}

// InTx runs fn in a transaction that writes, and commits it if fn returns nil.
// Otherwise, and when fn panics, nothing of it remains.
//
// When another transaction is in the way, fn runs again from the start, up to ten
// times with growing, random pauses and no longer than ctx; so fn must not act on
// the world, and must set results rather than add to them. What remains is
// ErrBusy. fn must use the Tx only: a statement on the DB inside would, on
// SQLite, wait for the writer that fn itself holds. After ErrUnavailable, or when
// ctx ended, a commit may have happened all the same.
//
// Isolation is READ COMMITTED on Postgres, and rows that are read to be changed
// are locked with ForUpdate: spenders of one account then queue at its row,
// while SERIALIZABLE would abort all but one of them at each turn. On SQLite one
// transaction writes at a time, from its start; those that wait for it share the
// commit after it, each as if it were alone: one that fails takes no other with it.
func InTx(ctx context.Context, db *DB, fn func(tx *Tx) error) error {
	return retry(ctx, func() error {
		if db.Engine == SQLite {
			return db.commits.inTx(ctx, 0, fn)
		}
		return db.pg.once(ctx, "begin isolation level read committed", true, fn)
	})
}

// Snapshot runs fn in a transaction that only reads and sees the database as it
// was at its first statement. It delays no writer.
func Snapshot(ctx context.Context, db *DB, fn func(tx *Tx) error) error {
	return retry(ctx, func() error {
		if db.Engine == SQLite {
			return db.read.once(ctx, "begin", fn)
		}
		return db.pg.once(ctx, "begin isolation level repeatable read, read only", false, fn)
	})
}

// once runs fn in a transaction of its own, which begin begins.
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
	if begin == "begin" { // of what was only read nothing is to be committed
		return mapIn(ctx, ctx.Err())
	}
	return mapIn(ctx, c.commit(ctx))
}

// inside runs fn; nil means that tx may be committed.
func inside(tx *Tx, fn func(*Tx) error) error {
	if err := fn(tx); err != nil {
		return Map(err)
	}
	if tx.failed != nil {
		return fmt.Errorf("not committed, a statement before had failed: %w", tx.failed)
	}
	return nil
}

// ExecContext runs a statement that returns no rows.
func (tx *Tx) ExecContext(ctx context.Context, query string, args ...any) (res Result, err error) {
	if err := tx.doomed(); err != nil {
		return Result{}, err
	}
	if tx.pg != nil {
		res.rows, err = tx.pg.exec(ctx, query, args)
	} else {
		res.rows, err = tx.lite.exec(ctx, query, args)
	}
	return res, tx.note(mapIn(ctx, err))
}

// QueryContext returns rows, which must be closed before the next statement.
func (tx *Tx) QueryContext(ctx context.Context, query string, args ...any) (*Rows, error) {
	if err := tx.doomed(); err != nil {
		return nil, err
	}
	found, err := tx.query(ctx, query, args)
	if err != nil {
		return nil, tx.note(mapIn(ctx, err))
	}
	return &Rows{found: found, ctx: ctx, tx: tx}, nil
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

func (tx *Tx) queryRow(ctx context.Context, query string, args, dest []any) error {
	if tx.pg != nil {
		return tx.pg.queryRow(ctx, query, args, dest)
	}
	return tx.lite.queryRow(ctx, query, args, dest)
}

func (tx *Tx) doomed() error {
	if tx.failed == nil {
		return nil
	}
	return fmt.Errorf("a statement before had failed: %w", tx.failed)
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

// retry calls do until it returns something else than ErrBusy.
func retry(ctx context.Context, do func() error) error {
	for try := range attempts - 1 {
		err := do()
		if !errors.Is(err, ErrBusy) {
			return err
		}
		// Half fixed, half random: those that collided do not meet again.
		d := min(firstPause<<try, longPause) / 2
		pause := time.NewTimer(d + rand.N(d))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	return do()
}

package sqldb

import (
	"context"
	"errors"
)

// Result is what a statement without rows has done.
type Result struct{ rows int64 }

// RowsAffected is how many rows an INSERT, UPDATE or DELETE has changed. The error is
// always nil.
func (r Result) RowsAffected() (int64, error) { return r.rows, nil }

// Scanner is a row whose columns can be copied out: a *Row or a *Rows.
//
// Scan takes a pointer for each column, to a string, an integer, a bool, a float, a
// []byte or a named type of one of these; to a [Null] of one; to a pointer to one, which
// NULL makes nil; or to an any. NULL is an error for the others, but for []byte, which
// it makes nil.
type Scanner interface{ Scan(dest ...any) error }

// Row is the result of a query for one row. The query runs when Scan is called.
type Row struct {
	db    *DB
	tx    *Tx             // instead of db
	ctx   context.Context //nolint:containedctx // of the one query
	query string
	args  []any
	saved *savedRow // of a query that was queued
}

// Scan runs the query and copies the columns of its first row into dest. It returns
// ErrNotFound when there was no row.
func (r *Row) Scan(dest ...any) error {
	if r.saved != nil {
		return r.scanSaved(dest)
	}
	if r.tx == nil {
		return mapIn(r.ctx, r.db.queryRow(r.ctx, r.query, r.args, dest))
	}
	if err := r.tx.doomed(); err != nil {
		return err
	}
	err := mapIn(r.ctx, r.tx.queryRow(r.ctx, r.query, r.args, dest))
	if errors.Is(err, ErrNotFound) {
		return err
	}
	return r.tx.note(err)
}

// rowSource is where the rows of a query come from.
type rowSource interface {
	columns
	next() (bool, error)
	close()
}

// Rows are the results of a query, for one goroutine at a time.
type Rows struct {
	found  rowSource
	ctx    context.Context //nolint:containedctx // of the one query
	tx     *Tx             // that the query is of; may be nil
	err    error
	closed bool
}

// Next goes to the next row, first to the first one. It returns false, and closes the
// rows, when there is none or Err says why not.
func (r *Rows) Next() bool {
	if r.closed {
		return false
	}
	more, err := r.found.next()
	if err != nil {
		r.err = mapIn(r.ctx, err)
		if r.tx != nil {
			_ = r.tx.note(r.err)
		}
	}
	if !more {
		_ = r.Close()
	}
	return more
}

// Scan copies the columns of the row into dest.
func (r *Rows) Scan(dest ...any) error {
	if r.closed {
		return errors.New("scan: there is no row")
	}
	return scanRow(r.found, dest)
}

// Err returns what ended the rows early, and nil when they were read to their end.
func (r *Rows) Err() error { return r.err }

// Close ends the query. A second time it does nothing. The error is always nil.
func (r *Rows) Close() error {
	if !r.closed {
		r.closed = true
		r.found.close()
	}
	return nil
}

// All runs query and returns what scan makes of each row, in their order; nil
// when there are none.
func All[T any](ctx context.Context, q Querier, scan func(Scanner) (T, error), query string, args ...any) (all []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, mapIn(ctx, err)
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return all, nil
}

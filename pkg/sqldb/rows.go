package sqldb

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/trace"
)

// Result is the result of a statement without rows.
type Result struct{ rows int64 }

// RowsAffected returns the number of rows that an INSERT, UPDATE or DELETE changed. The
// error is always nil.
func (r Result) RowsAffected() (int64, error) { return r.rows, nil }

// Scanner is the row of a query: a *Row or a *Rows.
//
// Scan requires a pointer for each column: to a string, an integer, a bool, a float, a
// []byte or a named type of one of these, to a [Null] of one, to a pointer to one, or to
// an any. NULL sets a pointer, a []byte and an any to nil and a Null to its zero value;
// for the other types it is an error.
type Scanner interface{ Scan(dest ...any) error }

// Row is the result of a query for one row. The query runs when Scan is called.
type Row struct {
	db    *DB
	tx    *Tx             // set instead of db in a transaction
	ctx   context.Context //nolint:containedctx // the context of this query only
	query string
	args  []any
	saved *savedRow // set if the query was queued
}

// Scan runs the query and copies the columns of its first row into dest. It returns
// ErrNotFound if there is no row.
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

// rowSource is the source of the rows of a query: an implementation for each engine.
type rowSource interface {
	columns
	next() (bool, error)
	close()
}

// Rows holds the results of a query. It must be used by one goroutine at a time.
type Rows struct {
	found  rowSource
	ctx    context.Context //nolint:containedctx // the context of this query only
	tx     *Tx             // the transaction of the query, or nil
	span   trace.Span      // may be nil
	err    error
	closed bool
}

// Next advances to the next row, at first to the first one. At the end, or on an error
// that Err returns, it closes the rows and returns false.
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

// Err returns the error that ended the rows early, or nil if all rows were read.
func (r *Rows) Err() error { return r.err }

// Close ends the query. A repeated call does nothing. The error is always nil.
func (r *Rows) Close() error {
	if !r.closed {
		r.closed = true
		r.found.close()
		finish(r.ctx, r.span, r.err)
	}
	return nil
}

// All runs query and returns the result of scan for each row, in the order of the rows;
// nil if there are none.
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

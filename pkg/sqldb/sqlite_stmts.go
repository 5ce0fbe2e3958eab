package sqldb

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// SQLite compiles each statement anew, which costs more than most of ours take to
// run: 27 against 7 µs for an insert of 12 columns, 35 against 20 µs for a select
// by key. So a connection keeps the statements that it has compiled, as pgx does
// on Postgres.

// maxStmts bounds the statements that one connection keeps.
const maxStmts = 256

// limits finds the bare parameters of limits. SQLite plans with their values, so that
// it would compile such a statement anew each time one is given: 37 instead of 14 µs
// (BenchmarkLimit).
var limits = regexp.MustCompile(`\blimit (\$[0-9]+)`)

type cachingConnector struct {
	driver.Connector
	spans *spans
}

func (c cachingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	inner, ok := conn.(sqliteConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("sqlite driver: %T lacks a method", conn), conn.Close())
	}
	return &cachingConn{sqliteConn: inner, spans: c.spans, stmts: map[string]*cachedStmt{}}, nil
}

// sqliteConn is what the driver's connections do and database/sql looks for.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// cachingConn is used by one goroutine at a time, as every driver.Conn.
type cachingConn struct {
	sqliteConn
	spans *spans // the twin of what a pgxTracer does on Postgres
	stmts map[string]*cachedStmt
}

type cachedStmt struct {
	driver.Stmt
	open bool // its rows are being read
}

func (c *cachingConn) Close() error {
	var errs []error
	for _, s := range c.stmts {
		errs = append(errs, s.Close())
	}
	clear(c.stmts)
	return errors.Join(append(errs, c.sqliteConn.Close())...)
}

func (c *cachingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	span := c.spans.start(ctx, query)
	res, err := c.exec(ctx, query, args)
	finish(ctx, span, err)
	return res, err
}

func (c *cachingConn) exec(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.stmt(ctx, query, args)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return c.sqliteConn.ExecContext(ctx, query, args)
	}
	return s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

func (c *cachingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	span := c.spans.start(ctx, query)
	rows, err := c.query(ctx, query, args)
	if span == nil {
		return rows, err
	}
	if err != nil {
		finish(ctx, span, err)
		return nil, err
	}
	return &tracedRows{Rows: rows, end: func(err error) { finish(ctx, span, err) }}, nil
}

func (c *cachingConn) query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.stmt(ctx, query, args)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return c.sqliteConn.QueryContext(ctx, query, args)
	}
	rows, err := s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	s.open = true
	return &cachedRows{rows, s}, nil
}

func (c *cachingConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.sqliteConn.BeginTx(ctx, opts)
	if err != nil || !c.spans.wanted(ctx) {
		return tx, err
	}
	return tracedTx{tx, func(commit func() error) error {
		span := c.spans.start(ctx, "commit")
		err := commit()
		finish(ctx, span, err)
		return err
	}}, nil
}

// stmt returns the statement for query, or nil where it should not be kept: text
// without arguments may be a script or differ each time, and one whose rows are
// still open is taken.
func (c *cachingConn) stmt(ctx context.Context, query string, args []driver.NamedValue) (*cachedStmt, error) {
	if len(args) == 0 {
		return nil, nil
	}
	if s := c.stmts[query]; s != nil {
		if s.open {
			return nil, nil
		}
		return s, nil
	}
	if len(c.stmts) >= maxStmts {
		c.evict()
	}
	inner, err := c.PrepareContext(ctx, limits.ReplaceAllString(query, "limit cast($1 as integer)"))
	if err != nil {
		return nil, err
	}
	s := &cachedStmt{Stmt: inner}
	c.stmts[query] = s
	return s, nil
}

// evict drops any one statement that is not in use.
func (c *cachingConn) evict() {
	for query, s := range c.stmts {
		if !s.open {
			_ = s.Close() // repeats the error of its last run, which was told then
			delete(c.stmts, query)
			return
		}
	}
}

type cachedRows struct {
	driver.Rows
	stmt *cachedStmt
}

func (r *cachedRows) Close() error {
	r.stmt.open = false
	return r.Rows.Close()
}

// tracedRows ends the span of its statement when it is closed: SQLite finds the
// rows while they are read.
type tracedRows struct {
	driver.Rows
	failed error
	end    func(error)
}

func (r *tracedRows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed = err
	}
	return err
}

func (r *tracedRows) Close() error {
	err := r.Rows.Close()
	r.end(cmp.Or(r.failed, err))
	return err
}

type tracedTx struct {
	driver.Tx
	traced func(commit func() error) error
}

func (t tracedTx) Commit() error { return t.traced(t.Tx.Commit) }

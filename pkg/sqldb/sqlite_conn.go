package sqldb

import (
	"context"
	"regexp"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
)

// Compiling a statement takes longer than running most statements of the services: 27
// against 7 µs for an insert of 12 columns, 35 against 20 µs for a select by key. So a
// connection caches its compiled statements, as pgx does on Postgres.

const (
	// maxStmts is the maximum number of compiled statements that a connection keeps.
	maxStmts = 256
	// maxBound is the maximum size in bytes of the arguments that a kept statement holds
	// until its next use.
	maxBound = 4 << 10
)

// limits matches bare parameters of LIMIT. SQLite plans with their values, so it would
// compile such a statement again for each value: 37 instead of 14 µs (BenchmarkLimit).
var limits = regexp.MustCompile(`\blimit (\$[0-9]+)`)

// liteConn is a connection to a SQLite file. It must be used by one goroutine at a time.
type liteConn struct {
	raw         *sqlite.Conn
	count       *counters
	checkpoints *checkpointer
	stmts       map[string]*liteStmt // by the text of the query, before compile changes it
	watch       watch
	// reading holds the open rows.
	reading []*liteRows
	// released is the time of the last return to the pool.
	released time.Time
}

// liteStmt is a compiled statement, and the columns of its current row.
type liteStmt struct {
	raw    *sqlite.Stmt
	params []int // for each parameter the index of its argument
	kept   bool
	open   bool // its rows are being read
}

// liteError is an error of the engine.
type liteError struct {
	code sqlite.ResultCode
	err  error
}

func (e *liteError) Error() string { return e.err.Error() }
func (e *liteError) Unwrap() error { return e.err }

func liteErr(err error) error {
	if err == nil {
		return nil
	}
	return &liteError{sqlite.ErrCode(err), err}
}

func (c *liteConn) close() error {
	for _, s := range c.stmts {
		_ = s.raw.Finalize() // repeats the error of its last run, which was returned then
	}
	clear(c.stmts)
	return liteErr(c.raw.Close())
}

// exec runs a statement, or a script if there are no arguments, and returns how many rows
// the last statement changed.
func (c *liteConn) exec(ctx context.Context, query string, args []any) (changed int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c.count.statements.Add(1)
	if len(args) == 0 {
		changed, err = c.script(ctx, query)
	} else {
		changed, err = c.execOne(ctx, query, args)
	}
	if err == nil && c.raw.AutocommitEnabled() {
		c.checkpoints.committed(c.count.commits.Add(1))
	}
	return changed, err
}

func (c *liteConn) execOne(ctx context.Context, query string, args []any) (int64, error) {
	s, err := c.start(query, args)
	if err != nil {
		return 0, err
	}
	defer c.done(s, args)
	return c.finishRows(ctx, s)
}

// finishRows runs a statement to its end and returns the number of rows changed.
func (c *liteConn) finishRows(ctx context.Context, s *liteStmt) (int64, error) {
	for more := true; more; {
		var err error
		if more, err = c.step(ctx, s); err != nil {
			return 0, err
		}
	}
	return int64(c.raw.Changes()), nil
}

// script runs statements without arguments. They are not kept, because their text may
// differ each time.
func (c *liteConn) script(ctx context.Context, text string) (changed int64, err error) {
	for {
		if text = strings.TrimSpace(text); text == "" {
			return changed, nil
		}
		raw, rest, err := c.raw.PrepareTransient(text)
		if err != nil {
			return 0, liteErr(err)
		}
		changed, err = c.finishRows(ctx, &liteStmt{raw: raw})
		_ = raw.Finalize() // repeats err
		if err != nil {
			return 0, err
		}
		text = text[len(text)-rest:]
	}
}

// queryRow runs a query and scans its first row.
func (c *liteConn) queryRow(ctx context.Context, query string, args, dest []any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.count.statements.Add(1)
	s, err := c.start(query, args)
	if err != nil {
		return err
	}
	found, err := c.step(ctx, s)
	if found {
		err = scanRow(s, dest)
	}
	c.done(s, args)
	if err == nil && !found {
		return errNoRow
	}
	return err
}

// query runs a query up to its first row.
func (c *liteConn) query(ctx context.Context, query string, args []any) (*liteRows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.count.statements.Add(1)
	s, err := c.start(query, args)
	if err != nil {
		return nil, err
	}
	r := &liteRows{liteStmt: s, conn: c, ctx: ctx, args: args}
	c.reading = append(c.reading, r)
	if r.first, r.err = c.step(ctx, s); r.err != nil {
		r.close()
		return nil, r.err
	}
	r.ahead = true
	return r, nil
}

// queryInto runs a query and passes its rows to t.
func (c *liteConn) queryInto(ctx context.Context, query string, args []any, t taker) error {
	r, err := c.query(ctx, query, args)
	if err != nil {
		return err
	}
	defer r.close()
	for {
		more, err := r.next()
		if err != nil {
			return err
		}
		if !more {
			t.end()
			return nil
		}
		t.row(r)
	}
}

// endReading closes all open rows.
func (c *liteConn) endReading() {
	for len(c.reading) > 0 {
		c.reading[len(c.reading)-1].close()
	}
}

// step advances to the next row; it returns false at the end. It interrupts a slow
// statement when ctx ends.
func (c *liteConn) step(ctx context.Context, s *liteStmt) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c.watch.begin(ctx)
	more, err := s.raw.Step()
	if c.watch.end() {
		c.rearm()
	}
	if err != nil {
		return false, liteErr(err)
	}
	return more, nil
}

// rearm makes an interrupted connection usable again.
func (c *liteConn) rearm() { c.raw.SetInterrupt(c.watch.rearm()) }

// control runs a statement of transaction control. No context interrupts it.
func (c *liteConn) control(query string) error {
	s, err := c.stmt(query, true)
	if err != nil {
		return err
	}
	_, err = s.raw.Step()
	c.done(s, nil)
	return liteErr(err)
}

// commit commits the transaction.
func (c *liteConn) commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := c.control("commit")
	if err == nil {
		c.checkpoints.committed(c.count.commits.Add(1))
	}
	return err
}

// rollback rolls back the open transaction, if there is one.
func (c *liteConn) rollback() error {
	if c.raw.AutocommitEnabled() {
		return nil
	}
	return c.control("rollback")
}

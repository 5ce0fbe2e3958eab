package sqldb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgTx is a transaction on Postgres. Statements without a result that is needed in
// between are sent together: BEGIN with the first ones, COMMIT with the last ones.
type pgTx struct {
	pool   *pgPool
	conn   *pgxpool.Conn // set at the first flight
	begin  string        // the statement that begins the transaction; "" after it was sent
	writes bool          // the commit is counted
	queued []*queued
}

// queued is a statement that has not been sent yet.
type queued struct {
	ctx   context.Context //nolint:containedctx // the context of this statement only
	spans *spans
	query string
	args  []any
	taker taker // receives the result; may be nil
}

// once runs fn in a new transaction.
func (p *pgPool) once(ctx context.Context, begin string, writes bool, fn func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := &pgTx{pool: p, begin: begin, writes: writes}
	defer t.end(ctx)
	if err := inside(&Tx{Engine: Postgres, pg: t}, fn); err != nil {
		return err
	}
	return mapIn(ctx, t.commit(ctx))
}

// rollbackTimeout is the time limit of the rollback of a transaction that is not
// committed.
const rollbackTimeout = 5 * time.Second

// end rolls back an uncommitted transaction and releases the connection.
func (t *pgTx) end(ctx context.Context) {
	if t.conn == nil {
		return
	}
	if pg := t.conn.Conn().PgConn(); !pg.IsClosed() && !pg.IsBusy() && pg.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		t.pool.count.flights.Add(1)
		_, _ = t.conn.Exec(ctx, "rollback") // on failure the connection is closed, which ends the transaction
	}
	t.pool.release(t.conn)
}

// errRolledBack is the error of a COMMIT that the server answered with ROLLBACK, because
// a statement of the transaction had failed.
var errRolledBack = errors.New("the server has rolled back the transaction")

func (t *pgTx) commit(ctx context.Context) error {
	if t.conn == nil && len(t.queued) == 0 {
		return nil // no statement was sent or queued
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := t.send(ctx, "commit", nil)
	if err != nil {
		return err
	}
	tag, err := f.results.Exec()
	err = errors.Join(err, f.results.Close())
	if err == nil && tag.String() != "COMMIT" {
		err = errRolledBack
	}
	if t.writes && err == nil {
		t.pool.count.commits.Add(1)
	}
	return err
}

func (t *pgTx) queue(ctx context.Context, s *spans, query string, args []any, to taker) {
	t.pool.count.statements.Add(1)
	t.queued = append(t.queued, &queued{ctx, s, query, args, to})
}

func (t *pgTx) exec(ctx context.Context, query string, args []any) (changed int64, err error) {
	if len(args) == 0 && strings.Contains(query, ";") {
		return t.script(ctx, query)
	}
	if args, err = plain(args); err != nil {
		return 0, err
	}
	t.pool.count.statements.Add(1)
	f, err := t.send(ctx, query, args)
	if err != nil {
		return 0, err
	}
	tag, err := f.results.Exec()
	if cerr := f.results.Close(); err == nil {
		err = cerr
	}
	return tag.RowsAffected(), err
}

// script runs several statements in one text, which the protocol does not allow in a
// batch.
func (t *pgTx) script(ctx context.Context, text string) (int64, error) {
	if err := t.flush(ctx); err != nil {
		return 0, err
	}
	t.pool.count.statements.Add(1)
	t.pool.count.flights.Add(1)
	tag, err := t.conn.Exec(ctx, text)
	return tag.RowsAffected(), err
}

func (t *pgTx) query(ctx context.Context, query string, args []any) (*pgRows, error) {
	args, err := plain(args)
	if err != nil {
		return nil, err
	}
	t.pool.count.statements.Add(1)
	f, err := t.send(ctx, query, args)
	if err != nil {
		return nil, err
	}
	rows, _ := f.results.Query()                                        // the rows have the same error
	found := &pgRows{rows: rows, end: func() { _ = f.results.Close() }} // the rows have the error
	return found, found.begin()
}

// flight is a batch of statements that were sent together. The results of all but the
// last have been read.
type flight struct {
	results pgx.BatchResults
	sent    time.Time
}

// flush begins the transaction if it has not begun, and sends the queued statements.
func (t *pgTx) flush(ctx context.Context) error {
	if t.begin == "" && len(t.queued) == 0 {
		return nil
	}
	f, err := t.send(ctx, "", nil)
	if err != nil {
		return err
	}
	return f.results.Close()
}

// send sends the queued statements and then query, if it is not empty, and reads the
// results of the queued statements.
func (t *pgTx) send(ctx context.Context, query string, args []any) (flight, error) {
	if err := ctx.Err(); err != nil {
		return flight{}, err
	}
	waiting := t.queued
	t.queued = nil
	for try := 1; ; try++ {
		f, err := t.try(ctx, waiting, query, args)
		if err == nil || t.begin == "" || try == pgTries || !pgconn.SafeToRetry(err) || ctx.Err() != nil {
			t.begin = ""
			return f, err
		}
		if t.conn != nil { // otherwise there was none
			t.pool.release(t.conn)
			t.conn = nil
		}
	}
}

func (t *pgTx) try(ctx context.Context, waiting []*queued, query string, args []any) (f flight, err error) {
	if t.conn == nil {
		if t.conn, err = t.pool.acquire(ctx); err != nil {
			return flight{}, err
		}
	}
	var batch pgx.Batch
	if t.begin != "" {
		batch.Queue(t.begin)
	}
	for _, q := range waiting {
		batch.Queue(q.query, q.args...)
	}
	if query != "" {
		batch.Queue(query, args...)
	}
	t.pool.count.flights.Add(1)
	f = flight{sent: time.Now()}
	f.results = t.conn.SendBatch(ctx, &batch)
	if t.begin != "" {
		if _, err := f.results.Exec(); err != nil { // a statement that could not be prepared, or BEGIN
			_ = f.results.Close() // repeats err
			return flight{}, err
		}
	}
	for _, q := range waiting {
		if err := t.answer(q, f); err != nil {
			_ = f.results.Close() // repeats err
			return flight{}, err
		}
	}
	return f, nil
}

// answer reads the result of a queued statement.
func (t *pgTx) answer(q *queued, f flight) error {
	rows, _ := f.results.Query() // the rows have the same error
	row := pgRow{types: t.conn.Conn().TypeMap()}
	for rows.Next() {
		if q.taker != nil {
			row.fields, row.raw = rows.FieldDescriptions(), rows.RawValues()
			q.taker.row(&row)
		}
	}
	err := rows.Err()
	if err == nil && q.taker != nil {
		q.taker.end()
	}
	if q.spans.wanted(q.ctx) && q.spans.statements {
		finish(q.ctx, q.spans.startAt(q.ctx, q.query, f.sent), err)
	}
	if err != nil {
		return fmt.Errorf("an earlier statement failed: %w", err)
	}
	return nil
}

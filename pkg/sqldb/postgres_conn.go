package sqldb

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pgPool holds the connections to a Postgres server.
type pgPool struct {
	pool  *pgxpool.Pool
	count *counters

	mu   sync.Mutex
	used map[*pgxpool.Conn]struct{}
}

// pgTries is how many connections are tried for a statement while none of them has sent
// it, as after a restart of the server.
const pgTries = 3

func (p *pgPool) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	c, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[c] = struct{}{}
	return c, nil
}

func (p *pgPool) release(c *pgxpool.Conn) {
	p.mu.Lock()
	delete(p.used, c)
	p.mu.Unlock()
	c.Release()
}

// closeTimeout is how long close waits for connections that are still in use.
const closeTimeout = 5 * time.Second

// close interrupts the statements in progress and closes the connections.
func (p *pgPool) close() error {
	p.mu.Lock()
	for c := range p.used {
		_ = c.Conn().PgConn().Conn().SetDeadline(time.Unix(1, 0)) // fails only if the connection is closed already
	}
	p.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		p.pool.Close()
	}()
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	select {
	case <-closed:
		return nil
	case <-late.C:
		return errors.New("close: a transaction has not ended, or rows were not closed")
	}
}

// with calls do with a connection. While the statement has not been sent, it retries with
// another connection, up to pgTries times.
func (p *pgPool) with(ctx context.Context, do func(*pgxpool.Conn) (keeps bool, err error)) error {
	for try := 1; ; try++ {
		c, err := p.acquire(ctx)
		if err != nil {
			return err
		}
		p.count.flights.Add(1)
		keeps, err := do(c)
		if !keeps {
			p.release(c)
		}
		if err == nil || try == pgTries || !pgconn.SafeToRetry(err) || ctx.Err() != nil {
			return err
		}
	}
}

// exec runs a statement, or a script if there are no arguments, outside a transaction.
func (p *pgPool) exec(ctx context.Context, query string, args []any) (changed int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if args, err = plain(args); err != nil {
		return 0, err
	}
	p.count.statements.Add(1)
	err = p.with(ctx, func(c *pgxpool.Conn) (bool, error) {
		tag, err := c.Exec(ctx, query, args...)
		changed = tag.RowsAffected()
		return false, err
	})
	if err == nil {
		p.count.commits.Add(1)
	}
	return changed, err
}

func (p *pgPool) queryRow(ctx context.Context, query string, args, dest []any) error {
	rows, err := p.query(ctx, query, args)
	if err != nil {
		return err
	}
	return rows.(*pgRows).one(dest)
}

func (p *pgPool) query(ctx context.Context, query string, args []any) (rowSource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	args, err := plain(args)
	if err != nil {
		return nil, err
	}
	p.count.statements.Add(1)
	var found *pgRows
	err = p.with(ctx, func(c *pgxpool.Conn) (keeps bool, err error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return false, err
		}
		found = &pgRows{rows: rows, end: func() { p.release(c) }}
		return true, found.begin()
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// pgRows holds the rows of a query.
type pgRows struct {
	pgRow
	rows  pgx.Rows
	ahead bool // begin has read the first row, or the end if first is false, and next has not returned it yet
	first bool
	end   func() // called once, after the rows are closed
}

// begin reads the first row; after an error the rows are closed.
func (r *pgRows) begin() (err error) {
	if r.first, err = r.next(); err != nil {
		r.close()
		return err
	}
	r.ahead = true
	return nil
}

func (r *pgRows) next() (bool, error) {
	if r.ahead {
		r.ahead = false
		return r.first, nil
	}
	if !r.rows.Next() {
		return false, r.rows.Err()
	}
	r.pgRow = pgRow{r.rows.FieldDescriptions(), r.rows.RawValues(), r.rows.Conn().TypeMap()}
	return true, nil
}

func (r *pgRows) close() {
	if r.end == nil {
		return
	}
	r.rows.Close()
	end := r.end
	r.end = nil
	end()
}

// one scans the first row and closes the rows.
func (r *pgRows) one(dest []any) error {
	found, err := r.next()
	if found {
		err = scanRow(r, dest)
	}
	r.close()
	switch {
	case err != nil:
		return err
	case r.rows.Err() != nil: // an error after the first row
		return r.rows.Err()
	case !found:
		return errNoRow
	}
	return nil
}

// pgRow is a row in the encoding of the server.
type pgRow struct {
	fields []pgconn.FieldDescription
	raw    [][]byte
	types  *pgtype.Map
}

func (r *pgRow) count() int { return len(r.raw) }

func (r *pgRow) kind(i int) kind {
	if r.raw[i] == nil {
		return null
	}
	switch r.fields[i].DataTypeOID {
	case pgtype.Int8OID, pgtype.Int4OID, pgtype.Int2OID, pgtype.OIDOID, pgtype.BoolOID:
		return integer
	case pgtype.Float8OID, pgtype.Float4OID:
		return real
	case pgtype.ByteaOID:
		return blob
	default:
		return text
	}
}

func (r *pgRow) binary(i int) bool { return r.fields[i].Format == pgtype.BinaryFormatCode }

func (r *pgRow) integer(i int) int64 {
	b := r.raw[i]
	if !r.binary(i) {
		if r.fields[i].DataTypeOID == pgtype.BoolOID {
			return map[string]int64{"t": 1}[string(b)]
		}
		n, _ := strconv.ParseInt(string(b), 10, 64) // cannot fail: the server encoded the digits
		return n
	}
	switch len(b) {
	case 1:
		return int64(b[0])
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b)))
	case 4:
		if r.fields[i].DataTypeOID == pgtype.OIDOID {
			return int64(binary.BigEndian.Uint32(b))
		}
		return int64(int32(binary.BigEndian.Uint32(b)))
	default:
		return int64(binary.BigEndian.Uint64(b))
	}
}

func (r *pgRow) real(i int) float64 {
	b := r.raw[i]
	switch {
	case !r.binary(i):
		f, _ := strconv.ParseFloat(string(b), 64) // cannot fail: the server encoded the digits
		return f
	case len(b) == 4:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	default:
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	}
}

func (r *pgRow) text(i int, was string) string {
	b := r.raw[i]
	switch oid := r.fields[i].DataTypeOID; oid {
	case pgtype.TextOID, pgtype.VarcharOID, pgtype.NameOID, pgtype.BPCharOID, pgtype.UnknownOID, pgtype.QCharOID, pgtype.JSONOID:
	case pgtype.ByteaOID:
		return string(r.bytes(i))
	default:
		if r.binary(i) {
			var s string
			if err := r.types.Scan(oid, pgtype.BinaryFormatCode, b, &s); err == nil {
				return s
			}
		}
	}
	if string(b) == was {
		return was
	}
	return string(b)
}

func (r *pgRow) bytes(i int) []byte {
	b := r.raw[i]
	if r.fields[i].DataTypeOID != pgtype.ByteaOID {
		return []byte(r.text(i, ""))
	}
	if hexed, ok := strings.CutPrefix(string(b), `\x`); ok && !r.binary(i) {
		b, _ = hex.DecodeString(hexed) // cannot fail: the server encoded the digits
		return b
	}
	return append([]byte{}, b...)
}

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

func (t *pgTx) queryRow(ctx context.Context, query string, args, dest []any) error {
	rows, err := t.query(ctx, query, args)
	if err != nil {
		return err
	}
	return rows.(*pgRows).one(dest)
}

func (t *pgTx) query(ctx context.Context, query string, args []any) (rowSource, error) {
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
	if err := found.begin(); err != nil {
		return nil, err
	}
	return found, nil
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
		t.pool.release(t.conn)
		t.conn = nil
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

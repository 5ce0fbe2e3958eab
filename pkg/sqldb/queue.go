package sqldb

import (
	"context"
	"errors"
)

// Queue runs a statement whose result is not needed. On Postgres the statement is sent
// with the next statement that needs a result, or with COMMIT, so that a transaction
// takes one round trip for each result that it depends on. On SQLite it runs immediately.
// On both, statements take effect in the order of the calls.
//
// If the statement fails, the transaction cannot be committed: a later statement returns
// the error, or InTx if there is no later statement. args must not be changed until then.
func (tx *Tx) Queue(ctx context.Context, query string, args ...any) {
	tx.queue(ctx, query, args, nil)
}

// QueueRow is QueryRowContext for a query that is sent as Queue does. Rows that are
// queued one after another arrive in one round trip, that of the first Scan. The query
// runs even if its row is never scanned.
func (tx *Tx) QueueRow(ctx context.Context, query string, args ...any) *Row {
	row := &Row{tx: tx, ctx: ctx, saved: &savedRow{}}
	tx.queue(ctx, query, args, row.saved)
	return row
}

// Later holds the rows of a query that was queued.
type Later[T any] struct {
	tx      *Tx
	ctx     context.Context //nolint:containedctx // the context of this query only
	scan    func(Scanner) (T, error)
	arrived bool
	all     []T
	err     error // the error of scan
}

// QueueAll is All for a query that is sent as [Tx.QueueRow] does. scan is called when the
// rows arrive, before All returns them; it must not use the transaction.
func QueueAll[T any](ctx context.Context, tx *Tx, scan func(Scanner) (T, error), query string, args ...any) *Later[T] {
	l := &Later[T]{tx: tx, ctx: ctx, scan: scan}
	tx.queue(ctx, query, args, l)
	return l
}

// All returns the result of scan for each row, in the order of the rows; nil if there are
// none.
func (l *Later[T]) All() ([]T, error) {
	if err := l.tx.send(l.ctx, l.arrived); err != nil {
		return nil, err
	}
	if l.err != nil {
		return nil, mapIn(l.ctx, l.err)
	}
	return l.all, nil
}

func (l *Later[T]) row(c columns) {
	if l.err != nil {
		return
	}
	v, err := l.scan(columnScanner{c})
	l.all, l.err = append(l.all, v), err
}

func (l *Later[T]) end() { l.arrived = true }

// taker receives the result of a query that was queued.
type taker interface {
	row(columns) // called for each row, which is valid until row returns
	end()        // called after the last row
}

// queue runs a statement on SQLite, and appends it to the next flight on Postgres. t may
// be nil.
func (tx *Tx) queue(ctx context.Context, query string, args []any, t taker) {
	if tx.failed != nil {
		return
	}
	args, err := plain(args)
	if err == nil && tx.pg != nil {
		tx.named(query)
		tx.pg.queue(ctx, tx.spans, query, args, t)
		return
	}
	span := tx.start(ctx, query)
	switch {
	case err != nil:
	case t == nil:
		_, err = tx.lite.exec(ctx, query, args)
	default:
		err = tx.lite.queryInto(ctx, query, args, t)
	}
	finish(ctx, span, err)
	_ = tx.note(mapIn(ctx, err)) // later statements return the error
}

// send sends the queued statements unless the awaited result has arrived.
func (tx *Tx) send(ctx context.Context, arrived bool) error {
	if err := tx.doomed(); err != nil || arrived {
		return err
	}
	return tx.note(mapIn(ctx, tx.pg.flush(ctx)))
}

// columnScanner is the Scanner of a row that has arrived.
type columnScanner struct{ columns }

func (s columnScanner) Scan(dest ...any) error { return scanRow(s.columns, dest) }

// savedRow is a copy of the first row of a query that was queued.
type savedRow struct {
	values  []value
	found   bool
	arrived bool
}

// value is the value of a column.
type value struct {
	kind kind
	n    int64
	f    float64
	s    string
}

func (r *savedRow) row(c columns) {
	if r.found {
		return
	}
	r.found = true
	r.values = make([]value, c.count())
	for i := range r.values {
		v := &r.values[i]
		switch v.kind = c.kind(i); v.kind {
		case integer:
			v.n = c.integer(i)
		case real:
			v.f = c.real(i)
		case text, blob:
			v.s = c.text(i, "")
		case null:
		}
	}
}

func (r *savedRow) end() { r.arrived = true }

func (r *savedRow) count() int                  { return len(r.values) }
func (r *savedRow) kind(i int) kind             { return r.values[i].kind }
func (r *savedRow) integer(i int) int64         { return r.values[i].n }
func (r *savedRow) real(i int) float64          { return r.values[i].f }
func (r *savedRow) text(i int, _ string) string { return r.values[i].s }
func (r *savedRow) bytes(i int) []byte          { return []byte(r.values[i].s) }

// scan copies the row into dest.
func (r *savedRow) scan(dest []any) error {
	if !r.found {
		return errNoRow
	}
	return scanRow(r, dest)
}

// scanSaved is Scan for a row that was queued.
func (r *Row) scanSaved(dest []any) error {
	if err := r.tx.send(r.ctx, r.saved.arrived); err != nil {
		return err
	}
	err := mapIn(r.ctx, r.saved.scan(dest))
	if errors.Is(err, ErrNotFound) {
		return err
	}
	return r.tx.note(err)
}

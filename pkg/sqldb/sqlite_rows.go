package sqldb

import (
	"context"
	"slices"
)

// liteRows holds the rows of a query. SQLite computes them while they are read.
type liteRows struct {
	*liteStmt
	conn  *liteConn
	ctx   context.Context //nolint:containedctx // the context of this query only
	args  []any
	ahead bool // query has read the first row, or the end if first is false, and next has not returned it yet
	first bool
	err   error
	pool  *litePool // the pool to release the connection to; nil in a transaction
}

func (r *liteRows) next() (more bool, err error) {
	if r.ahead {
		r.ahead = false
		return r.first, nil
	}
	more, r.err = r.conn.step(r.ctx, r.liteStmt)
	return more, r.err
}

func (r *liteRows) close() {
	i := slices.Index(r.conn.reading, r)
	if i < 0 {
		return // endReading closed the rows at the end of the transaction
	}
	r.conn.reading = slices.Delete(r.conn.reading, i, i+1)
	r.conn.done(r.liteStmt, r.args)
	if r.pool != nil {
		r.pool.release(r.conn)
	}
}

package sqldb

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

func (p *pgPool) query(ctx context.Context, query string, args []any) (found *pgRows, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if args, err = plain(args); err != nil {
		return nil, err
	}
	p.count.statements.Add(1)
	err = p.with(ctx, func(c *pgxpool.Conn) (keeps bool, err error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return false, err
		}
		found = &pgRows{rows: rows, end: func() { p.release(c) }}
		return true, found.begin()
	})
	return found, err
}

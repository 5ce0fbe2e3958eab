// Package sqldb opens SQLite and Postgres behind one interface, so that a store is
// written once and runs on both. It owns the differences between the engines:
// connections, transactions and their retries, error kinds, and migrations. It must not
// contain the tables or queries of a service: it defines only schema_migrations,
// installation and losses.
//
// Statements use $1 placeholders, ON CONFLICT and RETURNING, and columns of type text and
// bigint; these behave the same on both engines. Arguments are Go strings for text and
// integers for bigint: SQLite accepts either for both types, Postgres does not.
// LastInsertId does not exist on Postgres, and double quotes are for identifiers only.
//
// On Postgres each statement of a transaction takes one round trip unless it is queued:
// see [Tx.Queue].
package sqldb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Engine is the name of a database engine.
type Engine string

// The supported engines.
const (
	SQLite   Engine = "sqlite"
	Postgres Engine = "postgres"
)

// ForUpdate returns the text that ends a SELECT whose rows the same transaction will
// write. It is empty on SQLite, where a transaction is the only writer from its start.
// The lock allows other transactions to refer to the row by a foreign key: with a
// stronger lock, two writers that each refer to a row first and lock it afterwards would
// deadlock.
func (e Engine) ForUpdate() string {
	if e == Postgres {
		return " for no key update"
	}
	return ""
}

// Options holds the settings of [Open] that the URL does not contain.
type Options struct {
	// Schema is the Postgres schema that holds the tables. It is created if it is missing
	// and is the only one on the search path. If it is empty, the server's search path
	// applies. A SQLite file belongs to one service and has no schemas; there Schema is
	// only the database name in spans.
	Schema string
	// MaxConns is the maximum number of connections of this process: all connections on
	// Postgres, the readers on SQLite, which has one writer in addition. 0 means 8.
	MaxConns int
	// TracerProvider creates one span for each transaction, as a child of the span that is
	// recording in the context of the call. Without such a span, or with a nil provider,
	// there are none. A span is named by the operation and table of the transaction's first
	// statement, such as "INSERT outbox", and contains neither the text nor the arguments
	// of a statement. db.namespace is Schema on both engines, so set Schema for SQLite too.
	TracerProvider trace.TracerProvider
	// StatementSpans adds one span for each statement of a transaction.
	StatementSpans bool
	// MeterProvider exports [Stats] as anima.sql.statements, anima.sql.commits and
	// anima.sql.flights until Close. If it is nil, nothing is exported.
	MeterProvider metric.MeterProvider
}

// DB is a database. It is safe for concurrent use.
//
// On SQLite, one connection writes and the others read: writers queue in this process
// instead of polling the lock of the file. Measured with 16 writers: with one shared pool
// of 8 connections some waited for 1.6 to 2.4 s, with this arrangement for 50 to 120 ms.
// Methods that read therefore refuse statements that write.
type DB struct {
	Engine
	write, read *litePool // SQLite only
	commits     *committer
	checkpoints *checkpointer
	pg          *pgPool // Postgres only
	count       *counters
	spans       *spans
	url         string
	opts        Options
}

// Querier is the interface that DB and Tx have in common.
type Querier interface {
	// ExecContext runs a statement that returns no rows.
	ExecContext(ctx context.Context, query string, args ...any) (Result, error)
	// QueryContext returns rows; the caller closes them.
	QueryContext(ctx context.Context, query string, args ...any) (*Rows, error)
	// QueryRowContext returns one row; the query runs in its Scan.
	QueryRowContext(ctx context.Context, query string, args ...any) *Row
}

// connectTimeout is the time limit of Open. An earlier deadline of ctx takes precedence.
const connectTimeout = 10 * time.Second

// Open opens the database at url and checks that it answers:
//
//	sqlite:PATH               a file, created if it is missing; its folder must exist
//	sqlite:PATH?sync=full     every commit is on the disk before it returns
//	sqlite:PATH?sync=normal   the default: a power failure may lose the last commits
//	postgres://user:password@host:port/database?sslmode=…
//
// An error says how to correct the problem and never contains the password. It is
// ErrUnavailable if the server does not answer and may still start.
func Open(ctx context.Context, url string, opts Options) (*DB, error) {
	if opts.MaxConns <= 0 {
		opts.MaxConns = 8
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	count, err := newCounters(opts.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("counters of the database: %w", err)
	}
	db, err := open(ctx, url, opts, count)
	if err != nil {
		return nil, errors.Join(err, count.page.Unregister())
	}
	return db, nil
}

func open(ctx context.Context, url string, opts Options, count *counters) (*DB, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	switch {
	case ok && scheme == "sqlite":
		return openSQLite(ctx, url, rest, opts, count)
	case ok && isPostgres(scheme):
		return openPostgres(ctx, url, opts, count)
	}
	return nil, errors.New("database URL: use sqlite:PATH or postgres://user:password@host:port/database")
}

// Reopen opens the same database again with separate connections, as another process
// would.
func (db *DB) Reopen(ctx context.Context) (*DB, error) { return Open(ctx, db.url, db.opts) }

// Close closes every connection. Statements in progress end with an error.
func (db *DB) Close() error {
	err := db.count.page.Unregister()
	if db.Engine == Postgres {
		return errors.Join(err, db.pg.close())
	}
	db.checkpoints.close()
	return errors.Join(err, db.read.close(), db.write.close())
}

// Ping returns an error if the database does not answer a query.
func (db *DB) Ping(ctx context.Context) error {
	var one int
	if err := db.QueryRowContext(ctx, "select 1").Scan(&one); err != nil {
		return fmt.Errorf("ping %s: %w", db.Engine, err)
	}
	return nil
}

// ExecContext runs one statement in its own transaction, and retries it while the engine
// is busy, as InTx does.
func (db *DB) ExecContext(ctx context.Context, query string, args ...any) (res Result, err error) {
	span := db.spans.start(ctx, query)
	err = retry(ctx, func() error {
		res.rows, err = db.exec(ctx, query, args)
		return mapIn(ctx, err)
	})
	finish(ctx, span, err)
	return res, err
}

func (db *DB) exec(ctx context.Context, query string, args []any) (int64, error) {
	if db.Engine == Postgres {
		return db.pg.exec(ctx, query, args)
	}
	c, err := db.write.acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer db.write.release(c)
	return c.exec(ctx, query, args)
}

// ExecDeferred is ExecContext for frequent statements without urgency (deferred writes). On
// SQLite the statement joins the next transaction, or is committed together with other
// deferred writes after 50 ms. ExecDeferred returns after that commit.
func (db *DB) ExecDeferred(ctx context.Context, query string, args ...any) (res Result, err error) {
	if db.Engine == Postgres || deferral == 0 {
		return db.ExecContext(ctx, query, args...)
	}
	span := db.spans.start(ctx, query)
	err = retry(ctx, func() error {
		return db.commits.inTx(ctx, deferral, func(tx *Tx) error {
			res, err = tx.ExecContext(ctx, query, args...)
			return err
		})
	})
	finish(ctx, span, err)
	return res, err
}

// QueryContext runs a query; the caller closes the rows, or uses All. On SQLite it
// refuses to write: INSERT … RETURNING must be in InTx.
func (db *DB) QueryContext(ctx context.Context, query string, args ...any) (*Rows, error) {
	span := db.spans.start(ctx, query)
	found, err := db.query(ctx, query, args)
	if err != nil {
		finish(ctx, span, err)
		return nil, mapIn(ctx, err)
	}
	return &Rows{found: found, ctx: ctx, span: span}, nil
}

func (db *DB) query(ctx context.Context, query string, args []any) (rowSource, error) {
	if db.Engine == Postgres {
		return db.pg.query(ctx, query, args)
	}
	c, err := db.read.acquire(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.query(ctx, query, args)
	if err != nil {
		db.read.release(c)
		return nil, err
	}
	r.pool = db.read
	return r, nil
}

// QueryRowContext reads one row, as QueryContext does.
func (db *DB) QueryRowContext(ctx context.Context, query string, args ...any) *Row {
	return &Row{db: db, ctx: ctx, query: query, args: args}
}

func (db *DB) queryRow(ctx context.Context, query string, args, dest []any) (err error) {
	span := db.spans.start(ctx, query)
	defer func() { finish(ctx, span, err) }()
	if db.Engine == Postgres {
		rows, err := db.pg.query(ctx, query, args)
		if err != nil {
			return err
		}
		return rows.one(dest)
	}
	c, err := db.read.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.read.release(c)
	return c.queryRow(ctx, query, args, dest)
}

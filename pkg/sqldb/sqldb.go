// Package sqldb opens the two SQL engines behind one face, so that a store is
// written once and runs on SQLite and on Postgres. It owns what differs between
// them: connections, transactions and their retries, the names of errors, and
// migrations. It must not know any table but its own.
//
// Statements use $1 placeholders, ON CONFLICT and RETURNING, and columns of type
// text and bigint; these behave the same on both. Arguments are Go strings for
// text and integers for bigint: SQLite would take either for both, Postgres does
// not. LastInsertId does not exist on Postgres, and double quotes are for
// identifiers only.
//
// A transaction waits for the server once for each statement, unless they are queued:
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

	"github.com/anima-run/anima/pkg/failpoint"
)

// Engine is one of the two databases.
type Engine string

// The engines.
const (
	SQLite   Engine = "sqlite"
	Postgres Engine = "postgres"
)

// ForUpdate is the text to end a SELECT with when its rows will be written in the
// same transaction. It is empty on SQLite, where a transaction is the only writer
// from its start. Who only refers to such a row by a foreign key is not kept out:
// two writers that each refer to a row first and lock it then would wait for each
// other for ever.
func (e Engine) ForUpdate() string {
	if e == Postgres {
		return " for no key update"
	}
	return ""
}

// Options are what a URL does not say.
type Options struct {
	// Schema, on Postgres, holds the tables: it is made if it is missing and is
	// the only one on the search path. Empty leaves the path to the server. A
	// SQLite file belongs to one service and has no schemas; there it is the name of
	// the database in spans.
	Schema string
	// MaxConns bounds the connections of this process: all of them on Postgres,
	// the readers on SQLite, which has one writer besides. 0 means 8.
	MaxConns int
	// TracerProvider makes the spans of statements, below the span that is recorded
	// in the context of a call; without one there, or with a nil provider, there are
	// none. They are named by what the statement does, such as "INSERT outbox", and
	// hold neither its text nor its arguments. db.namespace is Schema, on both
	// engines, so give SQLite the same one.
	TracerProvider trace.TracerProvider
	// MeterProvider shows [Stats] as anima.sql.statements, anima.sql.commits and
	// anima.sql.flights until Close. Nil shows nothing.
	MeterProvider metric.MeterProvider
}

// DB is a database. It is safe for concurrent use.
//
// On SQLite, writes pass one connection and reads have others: writers then queue
// in this process instead of polling the file's lock. Measured with 16 writers,
// one shared pool of 8 left some waiting for 1.6 to 2.4 s, this 50 to 120 ms.
// Methods that read therefore refuse statements that write.
type DB struct {
	Engine
	write, read *litePool // of SQLite
	commits     *committer
	pg          *pgPool // of Postgres
	count       *counters
	url         string
	opts        Options
}

// Querier is what a DB and a Tx have in common.
type Querier interface {
	// ExecContext runs a statement that returns no rows.
	ExecContext(ctx context.Context, query string, args ...any) (Result, error)
	// QueryContext returns rows; the caller closes them.
	QueryContext(ctx context.Context, query string, args ...any) (*Rows, error)
	// QueryRowContext returns one row; the query runs in its Scan.
	QueryRowContext(ctx context.Context, query string, args ...any) *Row
}

// connectTimeout bounds Open where ctx has no deadline of its own.
const connectTimeout = 10 * time.Second

// Open opens the database at url and proves that it answers:
//
//	sqlite:PATH               a file, made if it is missing; its folder must exist
//	sqlite:PATH?sync=full     every commit is on the disk before it returns
//	sqlite:PATH?sync=normal   the default: a power cut may take the last commits
//	postgres://user:password@host:port/database?sslmode=…
//
// An error says what to do and never holds the password. It is ErrUnavailable
// when a server may still come up.
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
	case ok && (scheme == "postgres" || scheme == "postgresql"):
		return openPostgres(ctx, url, opts, count)
	}
	return nil, errors.New("database URL: use sqlite:PATH or postgres://user:password@host:port/database")
}

// Reopen opens the same database again with connections of its own, as another
// process would.
func (db *DB) Reopen(ctx context.Context) (*DB, error) { return Open(ctx, db.url, db.opts) }

// Close closes every connection. Statements that still run end with an error.
func (db *DB) Close() error {
	err := db.count.page.Unregister()
	if db.Engine == Postgres {
		return errors.Join(err, db.pg.close())
	}
	return errors.Join(err, db.read.close(), db.write.close())
}

// Ping reports whether the database answers a query.
func (db *DB) Ping(ctx context.Context) error {
	var one int
	if err := db.QueryRowContext(ctx, "select 1").Scan(&one); err != nil {
		return fmt.Errorf("ping %s: %w", db.Engine, err)
	}
	return nil
}

// ExecContext runs one statement in a transaction of its own, again while the
// engine is busy.
func (db *DB) ExecContext(ctx context.Context, query string, args ...any) (res Result, err error) {
	err = retry(ctx, func() error {
		res.rows, err = db.exec(ctx, query, args)
		return mapIn(ctx, err)
	})
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

// soon is how long [DB.ExecSoon] waits for others. Where services are made to die it
// waits for nobody, so that each run passes the same points.
const soon = 50 * time.Millisecond

// ExecSoon is ExecContext for what comes often and nobody waits for: on SQLite it is
// committed with the next transaction, or with others of its kind after 50 ms.
func (db *DB) ExecSoon(ctx context.Context, query string, args ...any) (res Result, err error) {
	if db.Engine == Postgres || failpoint.Enabled {
		return db.ExecContext(ctx, query, args...)
	}
	err = retry(ctx, func() error {
		return db.commits.inTx(ctx, soon, func(tx *Tx) error {
			res, err = tx.ExecContext(ctx, query, args...)
			return err
		})
	})
	return res, err
}

// QueryContext reads rows; the caller closes them, or uses All. It refuses to write on
// SQLite: INSERT … RETURNING belongs in InTx.
func (db *DB) QueryContext(ctx context.Context, query string, args ...any) (*Rows, error) {
	found, err := db.query(ctx, query, args)
	if err != nil {
		return nil, mapIn(ctx, err)
	}
	return &Rows{found: found, ctx: ctx}, nil
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

func (db *DB) queryRow(ctx context.Context, query string, args, dest []any) error {
	if db.Engine == Postgres {
		return db.pg.queryRow(ctx, query, args, dest)
	}
	c, err := db.read.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.read.release(c)
	return c.queryRow(ctx, query, args, dest)
}

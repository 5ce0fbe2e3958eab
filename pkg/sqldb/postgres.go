package sqldb

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
)

func isPostgres(scheme string) bool { return scheme == "postgres" || scheme == "postgresql" }

// CheckPostgres returns an error for a URL that [Open] cannot use for a Postgres, without the
// URL. It makes no connection.
func CheckPostgres(url string) error {
	_, err := parsePostgres(url)
	return err
}

func parsePostgres(url string) (*pgxpool.Config, error) {
	scheme, _, _ := strings.Cut(url, "://")
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil || !isPostgres(scheme) {
		// The cause may contain the password.
		return nil, errors.New("not a valid Postgres URL; use postgres://user:password@host:port/database and write special characters of the password as %XX")
	}
	return cfg, nil
}

func openPostgres(ctx context.Context, url string, opts Options, count *counters) (*DB, error) {
	conns, err := parsePostgres(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	cfg := conns.ConnConfig
	if opts.Schema != "" {
		if !regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`).MatchString(opts.Schema) {
			return nil, fmt.Errorf("schema %q: use lower-case letters, digits and _", opts.Schema)
		}
		cfg.RuntimeParams["search_path"] = opts.Schema
	}
	setDefault(cfg.RuntimeParams, "application_name", "anima")
	// A process that is suspended inside a transaction must not keep its row locks: the
	// server ends the session after 30 s.
	setDefault(cfg.RuntimeParams, "idle_in_transaction_session_timeout", "30000")

	if cfg.ConnectTimeout == 0 || cfg.ConnectTimeout > dialTimeout {
		cfg.ConnectTimeout = dialTimeout // for each address; pgx tries the next one
	}
	cfg.DialFunc = dialer().DialContext
	// After a failover the name of the server may have led to a standby. A new connection
	// looks it up again.
	keeps := cfg.OnPgError
	cfg.OnPgError = func(c *pgconn.PgConn, err *pgconn.PgError) bool { return err.Code != standby && keeps(c, err) }

	namespace := opts.Schema
	if namespace == "" {
		namespace = cfg.Database
	}
	conns.MaxConns = int32(opts.MaxConns)
	conns.MaxConnIdleTime = 5 * time.Minute
	conns.MaxConnLifetime = time.Hour // reconnects after a failover behind a service address
	conns.PingTimeout = silence
	pool, err := pgxpool.NewWithConfig(ctx, conns)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	db := &DB{
		Engine: Postgres, url: url, opts: opts, count: count, spans: newSpans(opts, semconv.DBSystemNamePostgreSQL, namespace),
		pg: &pgPool{pool: pool, count: count, used: map[*pgxpool.Conn]struct{}{}},
	}
	if err := pool.Ping(ctx); err != nil {
		return nil, errors.Join(explain(ctx, cfg, err), db.Close())
	}
	if opts.Schema != "" {
		if err := db.ensureSchema(ctx, cfg.User); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

func setDefault(params map[string]string, name, value string) {
	if _, set := params[name]; !set {
		params[name] = value
	}
}

// explain returns an error that says how to correct a failed connection.
func explain(ctx context.Context, cfg *pgx.ConnConfig, err error) error {
	at := "postgres at " + net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case answered && (pg.Code == "28P01" || pg.Code == "28000"):
		return fmt.Errorf("%s refused the user %q: %s; correct the user and the password in the database URL, or pg_hba.conf", at, cfg.User, pg.Message)
	case answered && pg.Code == "3D000":
		return fmt.Errorf("%s has no database %q; create it, or correct the database URL", at, cfg.Database)
	case answered:
		return fmt.Errorf("%s: %w", at, Map(err))
	}
	reason := strings.Join(strings.Fields(err.Error()), " ")
	if op, ok := errors.AsType[*net.OpError](err); ok {
		reason = op.Error() // without the line that pgx adds for each address that it tried
	}
	cause := fmt.Errorf("%s does not answer: %s; start it, or correct the database URL", at, reason)
	if ctx.Err() != nil {
		cause = fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return &Error{Kind: ErrUnavailable, cause: cause}
}

// ensureSchema creates the schema if it is missing. It checks first, so that a user
// without the right to create schemas can use one that the operator created.
func (db *DB) ensureSchema(ctx context.Context, user string) error {
	err := InTx(ctx, db, func(tx *Tx) error {
		// Concurrent CREATE SCHEMA statements for the same name collide in the catalogue
		// even with IF NOT EXISTS.
		if err := tx.Lock(ctx, "schema "+db.opts.Schema); err != nil {
			return err
		}
		var n int
		err := tx.QueryRowContext(ctx, "select count(*) from pg_namespace where nspname = $1", db.opts.Schema).Scan(&n)
		if err != nil || n > 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `create schema "`+db.opts.Schema+`"`)
		return err
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" {
		return fmt.Errorf("schema %s: the user %q may not create it: %w; create it with: create schema %s authorization %s",
			db.opts.Schema, user, err, db.opts.Schema, user)
	}
	if err != nil {
		return fmt.Errorf("schema %s: %w", db.opts.Schema, err)
	}
	return nil
}

// Lock takes the advisory lock named what, which is held until the end of the
// transaction. On SQLite it does nothing, because a transaction is the only writer.
func (tx *Tx) Lock(ctx context.Context, what string) error {
	if tx.Engine != Postgres {
		return nil
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte("anima " + what)) // never fails
	_, err := tx.ExecContext(ctx, "select pg_advisory_xact_lock($1)", int64(h.Sum64()))
	return err
}

package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"modernc.org/sqlite"
)

// openSQLite opens the database named by rest, the URL without its scheme.
func openSQLite(ctx context.Context, whole, rest string, opts Options) (*DB, error) {
	path, sync, err := parseSQLite(rest)
	if err != nil {
		return nil, err
	}
	if err := touch(path); err != nil {
		return nil, err
	}
	namespace := opts.Schema
	if namespace == "" {
		namespace = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	spans := newSpans(opts.TracerProvider, semconv.DBSystemNameSQLite, namespace)
	db := &DB{Engine: SQLite, url: whole, opts: opts}
	// With a write-ahead log readers and the writer do not wait for each other. The
	// file remembers it, so the writer goes first and readers need not ask.
	if db.write, err = sqlitePool(path, sync, 1, "_txlock=immediate&_journal_mode=WAL", spans); err != nil {
		return nil, err
	}
	db.commits = &committer{pool: db.write, spans: spans}
	if db.read, err = sqlitePool(path, sync, opts.MaxConns, "_query_only=1", spans); err != nil {
		return nil, errors.Join(err, db.write.Close())
	}
	for _, pool := range []*sql.DB{db.write, db.read} {
		// Two processes that make the same file at once get in each other's way.
		err := retry(ctx, func() error { return mapIn(ctx, pool.PingContext(ctx)) })
		if err != nil {
			err = fmt.Errorf("database file %s: %w; it must be a SQLite file in a folder that this user may write", path, err)
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// parseSQLite splits PATH?sync=MODE.
func parseSQLite(rest string) (path, sync string, err error) {
	path, sync = rest, "NORMAL"
	if i := strings.LastIndexByte(rest, '?'); i >= 0 {
		path = rest[:i]
		switch rest[i+1:] {
		case "sync=normal":
		case "sync=full":
			sync = "FULL"
		default:
			return "", "", fmt.Errorf("database URL: sqlite takes ?sync=full or ?sync=normal, not ?%s", rest[i+1:])
		}
	}
	if path == "" || strings.HasPrefix(path, ":") {
		return "", "", errors.New("database URL: sqlite needs the path of a file, as in sqlite:data/anima.db")
	}
	path, err = filepath.Abs(path)
	return path, sync, err
}

// touch makes the file if it is missing, readable by its owner only; SQLite gives
// the files beside it the same mode. Its errors are plainer than SQLite's.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("database file: %w; make the folder %s first", err, filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("database file: %w; name a file that this user may write", err)
	}
	return f.Close()
}

func sqlitePool(path, sync string, conns int, mode string, spans *spans) (*sql.DB, error) {
	dsn := (&url.URL{Scheme: "file", Path: path}).String() + "?" + strings.Join([]string{
		mode,
		"_busy_timeout=1000", // ms; for other processes, InTx then tries again
		"_synchronous=" + sync,
		"_foreign_keys=1",
		"_dqs=0",                               // "x" is never a string, as on Postgres
		"_pragma=journal_size_limit(67108864)", // a burst does not leave a huge WAL file behind
	}, "&")
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, fmt.Errorf("database file %s: %w", path, err)
	}
	pool := sql.OpenDB(cachingConnector{c, spans})
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns) // a connection made anew would have to prepare its statements again
	return pool, nil
}

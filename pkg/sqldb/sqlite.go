package sqldb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"zombiezen.com/go/sqlite"
)

// openSQLite opens the database named by rest, the URL without its scheme.
func openSQLite(ctx context.Context, whole, rest string, opts Options, count *counters) (*DB, error) {
	path, sync, err := parseSQLite(rest)
	if err != nil {
		return nil, err
	}
	if err := touch(path); err != nil {
		return nil, err
	}
	sharePages()
	namespace := opts.Schema
	if namespace == "" {
		namespace = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	db := &DB{Engine: SQLite, url: whole, opts: opts, count: count, spans: newSpans(opts, semconv.DBSystemNameSQLite, namespace)}
	db.checkpoints = newCheckpointer(db)
	pool := func(conns int, pragmas ...string) *litePool {
		pragmas = append(pragmas, "synchronous="+sync, "foreign_keys=on",
			"journal_size_limit="+strconv.Itoa(commitPages*pageBytes)) // bounds the WAL file after a burst of writes
		return newLitePool(conns, func() (*liteConn, error) { return openLite(path, pragmas, db.count, db.checkpoints) })
	}
	// In WAL mode readers and the writer do not block each other. The mode is stored in
	// the file, so the writer sets it first and readers need not. Each commit of the
	// writer invalidates the page caches of the readers, so those are small: 500 KiB.
	db.write = pool(1, "journal_mode=wal", "wal_autocheckpoint="+strconv.Itoa(commitPages))
	db.read = pool(opts.MaxConns, "query_only=on", "cache_size=-500")
	db.commits = &committer{pool: db.write}
	for _, pool := range []*litePool{db.write, db.read} {
		// The first transactions of two processes that create the same file may conflict.
		err := retry(ctx, func() error {
			c, err := pool.acquire(ctx)
			if err != nil {
				return mapIn(ctx, err)
			}
			defer pool.release(c)
			return mapIn(ctx, c.queryRow(ctx, "select count(*) from sqlite_master", nil, []any{new(int)}))
		})
		if err != nil {
			err = fmt.Errorf("database file %s: %w; it must be a SQLite file in a folder that this user may write", path, err)
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// parseSQLite splits PATH?sync=MODE into the absolute path and the synchronous pragma.
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

// touch creates the file if it is missing, readable by its owner only; SQLite gives the
// WAL and index files the same mode. Its errors are clearer than those of SQLite.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("database file: %w; create the folder %s first", err, filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("database file: %w; name a file that this user may write", err)
	}
	return f.Close()
}

// busyTimeout is how long a statement waits for other processes before it returns
// ErrBusy, which InTx retries.
const busyTimeout = time.Second

func openLite(path string, pragmas []string, count *counters, checkpoints *checkpointer) (_ *liteConn, err error) {
	// A path, not a URI: no character of it is special.
	raw, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, liteErr(err)
	}
	c := &liteConn{raw: raw, count: count, checkpoints: checkpoints, stmts: map[string]*liteStmt{}}
	raw.SetBusyTimeout(busyTimeout) // the default waits without a limit
	raw.SetInterrupt(c.watch.init())
	for _, p := range pragmas {
		if err := c.control("pragma " + p); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// idleConn is how long an unused connection is kept. Each holds up to a megabyte of pages
// and compiled statements.
const idleConn = 20 * time.Second

// litePool holds the connections of one kind, writer or reader, to a file. It opens a
// connection at its first use and keeps it, because a new connection has to compile its
// statements again. Connections that were unused for idleConn are closed when another
// connection is released.
type litePool struct {
	open  func() (*liteConn, error)
	slots chan struct{} // its capacity is the maximum number of connections in use
	idle  time.Duration // see idleConn

	mu     sync.Mutex
	free   []*liteConn // the one released last is at the end
	used   map[*liteConn]struct{}
	closed bool
}

func newLitePool(conns int, open func() (*liteConn, error)) *litePool {
	return &litePool{open: open, slots: make(chan struct{}, conns), idle: idleConn, used: map[*liteConn]struct{}{}}
}

// acquire waits for a free slot and returns a connection. The caller must release it.
func (p *litePool) acquire(ctx context.Context) (*liteConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case p.slots <- struct{}{}:
	default:
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c, err := p.take()
	if err != nil {
		<-p.slots
	}
	return c, err
}

// errClosed is the error of statements after Close.
var errClosed = errors.New("the database is closed")

func (p *litePool) take() (*liteConn, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, errClosed
	}
	if n := len(p.free); n > 0 {
		c := p.free[n-1]
		p.free = p.free[:n-1]
		p.used[c] = struct{}{}
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	c, err := p.open()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(errClosed, c.close())
	}
	p.used[c] = struct{}{}
	return c, nil
}

// release rolls back an open transaction and returns the connection to the pool.
func (p *litePool) release(c *liteConn) {
	failed := c.rollback() != nil
	now := time.Now()
	p.mu.Lock()
	delete(p.used, c)
	keep := !p.closed && !failed
	if keep {
		c.released = now
		p.free = append(p.free, c)
	}
	n := 0
	for n < len(p.free)-1 && now.Sub(p.free[n].released) >= p.idle {
		n++
	}
	unused := slices.Clone(p.free[:n])
	p.free = slices.Delete(p.free, 0, n)
	p.mu.Unlock()
	if !keep {
		_ = c.close() // the caller already has the error of the statement
	}
	for _, c := range unused {
		_ = c.close() // it has no open transaction
	}
	<-p.slots
}

// close closes the free connections and interrupts the statements of the others, which
// are closed when they are released.
func (p *litePool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, c := range p.free {
		errs = append(errs, c.close())
	}
	p.free = nil
	for c := range p.used {
		c.watch.interrupt()
	}
	return errors.Join(errs...)
}

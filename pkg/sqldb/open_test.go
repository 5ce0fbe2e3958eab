package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

// refusing returns the address of a port without a listener.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return l.Addr().String()
}

func TestOpenSaysWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(sqldbtest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	other := *server
	other.Path = "/nothing_here"
	tests := []struct {
		name, url, schema string
		want              []string // substrings of the error
		unavailable       bool
	}{
		{"no scheme", "data/anima.db", "", []string{"sqlite:PATH", "postgres://"}, false},
		{"other engine", "mysql://root:hunter2@db/x", "", []string{"sqlite:PATH", "postgres://"}, false},
		{"no path", "sqlite:", "", []string{"path of a file"}, false},
		{"in memory", "sqlite::memory:", "", []string{"path of a file"}, false},
		{"unknown option", "sqlite:a.db?sync=fast", "", []string{"sync=full", "sync=fast"}, false},
		{"no folder", "sqlite:" + filepath.Join(dir, "none", "a.db"), "", []string{"create the folder " + filepath.Join(dir, "none")}, false},
		{"folder is a file", "sqlite:" + filepath.Join(text, "a.db"), "", []string{"a file that this user may write"}, false},
		{"path is a folder", "sqlite:" + dir, "", []string{"a file that this user may write"}, false},
		{"not a database", "sqlite:" + text, "", []string{text, "must be a SQLite file"}, false},
		{"password not escaped", "postgres://u:hunter2%zz@db/x", "", []string{"not a valid Postgres URL", "%XX"}, false},
		{"bad port", "postgres://u:hunter2@db:port/x", "", []string{"not a valid Postgres URL"}, false},
		{"bad schema", server.String(), "Robert'); drop", []string{"lower-case"}, false},
		{"refused", "postgres://u:hunter2@" + refusing(t) + "/x?sslmode=disable", "", []string{"does not answer", "refused", "start it"}, true},
		{"no database", other.String(), "", []string{`no database "nothing_here"`, "create it"}, false},
	}
	for _, tt := range tests {
		db, err := sqldb.Open(t.Context(), tt.url, sqldb.Options{Schema: tt.schema})
		if err == nil {
			t.Errorf("%s: no error", tt.name)
			_ = db.Close()
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want something with %q", tt.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the password is in %q", tt.name, err)
		}
		if got := errors.Is(err, sqldb.ErrUnavailable); got != tt.unavailable {
			t.Errorf("%s: ErrUnavailable is %v, want %v: %v", tt.name, got, tt.unavailable, err)
		}
	}
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	// A server that requests a password and refuses it, in the protocol of Postgres.
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				return err
			}
			buf := make([]byte, 4096)
			if _, err := conn.Read(buf); err != nil { // the startup message
				return err
			}
			if _, err := conn.Write([]byte{'R', 0, 0, 0, 8, 0, 0, 0, 3}); err != nil { // request for a clear-text password
				return err
			}
			if _, err := conn.Read(buf); err != nil {
				return err
			}
			fields := "SFATAL\x00VFATAL\x00C28P01\x00Mpassword authentication failed for user \"u\"\x00\x00"
			_, err = conn.Write(append([]byte{'E', 0, 0, 0, byte(4 + len(fields))}, fields...))
			return err
		}()
	}()
	_, err = sqldb.Open(t.Context(), "postgres://u:hunter2@"+l.Addr().String()+"/x?sslmode=disable", sqldb.Options{})
	if err == nil || !strings.Contains(err.Error(), "correct the user and the password") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want what to correct, without the password", err)
	}
	if errors.Is(err, sqldb.ErrUnavailable) {
		t.Errorf("%v is ErrUnavailable: waiting would not help", err)
	}
	if err := errors.Join(<-served, l.Close()); err != nil {
		t.Error(err)
	}
}

// TestServerDies stops a server during a transaction.
func TestServerDies(t *testing.T) {
	t.Parallel()
	sqldbtest.Postgres(t) // skips the test if Postgres is switched off
	server, err := sqldbtest.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db, err := sqldb.Open(t.Context(), server.URL(), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // its connections are closed already
	err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
		if err := errors.Join(tx.QueryRowContext(t.Context(), "select 1").Scan(new(int)), server.Stop()); err != nil {
			return err
		}
		for range 2 { // on the second iteration the connection is already closed
			if err := tx.QueryRowContext(t.Context(), "select 1").Scan(new(int)); !errors.Is(err, sqldb.ErrUnavailable) {
				t.Errorf("statement: got %v, want ErrUnavailable", err)
			}
		}
		return nil
	})
	if !errors.Is(err, sqldb.ErrUnavailable) {
		t.Errorf("commit: got %v, want ErrUnavailable", err)
	}
	// Callers of the service receive a temporary error with a code and a retry delay.
	if w := api.Wire(fmt.Errorf("write: %w", err)); w.Code != api.Unavailable || w.RetryAfter == 0 {
		t.Errorf("on the wire: got %+v, want unavailable and a time to wait", w)
	}
	if err := db.Ping(t.Context()); !errors.Is(err, sqldb.ErrUnavailable) {
		t.Errorf("ping: got %v, want ErrUnavailable", err)
	}
	if _, err := db.Reopen(t.Context()); !errors.Is(err, sqldb.ErrUnavailable) {
		t.Errorf("open: got %v, want ErrUnavailable", err)
	}
}

// TestConnectionEnds checks that a lost connection and a refused write are different
// errors, and that the next write succeeds.
func TestConnectionEnds(t *testing.T) {
	t.Parallel()
	db, err := sqldb.Open(t.Context(), sqldbtest.Postgres(t), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
		var pid int
		if err := tx.QueryRowContext(t.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
			return err
		}
		if _, err := db.ExecContext(t.Context(), "select pg_terminate_backend($1)", pid); err != nil {
			return err
		}
		_, err := tx.ExecContext(t.Context(), "create table x (id bigint)")
		return err
	})
	if !errors.Is(err, sqldb.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Errorf("the next connection: %v", err)
	}
}

// TestStandby checks that a connection to a server that takes no writes, as the previous
// primary after a failover, is not used again.
func TestStandby(t *testing.T) {
	t.Parallel()
	db, err := sqldb.Open(t.Context(), sqldbtest.Postgres(t), sqldb.Options{MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	exec(t, db, "create table x (id bigint)")
	insert := func(tx *sqldb.Tx) error {
		tx.Queue(t.Context(), "insert into x (id) values ($1)", 1)
		return nil
	}
	for name, write := range map[string]func() error{
		"statement":   func() error { _, err := db.ExecContext(t.Context(), "insert into x (id) values ($1)", 1); return err },
		"transaction": func() error { return sqldb.InTx(t.Context(), db, insert) },
	} {
		exec(t, db, "set default_transaction_read_only = on") // of the only connection
		if err := write(); !errors.Is(err, sqldb.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", name, err)
		}
		if err := write(); err != nil {
			t.Errorf("%s on the next connection: got %v, want no error", name, err)
		}
	}
}

// TestRolledBackByTheServer checks the case that rows are closed before an error in a
// later row is read, so that the server answers COMMIT with a rollback.
func TestRolledBackByTheServer(t *testing.T) {
	t.Parallel()
	db, err := sqldb.Open(t.Context(), sqldbtest.Postgres(t), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
		rows, err := tx.QueryContext(t.Context(), "select 1 / (3 - i) from generate_series(1, $1) i", 3) //nolint:rowserrcheck // the unread error is the subject of the test
		if err != nil {
			return err
		}
		rows.Next()
		return rows.Close()
	})
	if err == nil {
		t.Error("no error")
	}
}

func TestSchemaMadeByManyAtOnce(t *testing.T) {
	t.Parallel()
	server := sqldbtest.Postgres(t)
	const replicas = 8
	errs := make(chan error, replicas)
	for range replicas {
		go func() {
			errs <- func() error {
				db, err := sqldb.Open(t.Context(), server, sqldb.Options{Schema: "treasury", MaxConns: 1})
				if err != nil {
					return err
				}
				var path string
				err = db.QueryRowContext(t.Context(), "select current_schema()").Scan(&path)
				if err == nil && path != "treasury" {
					err = fmt.Errorf("current schema is %q", path)
				}
				return errors.Join(err, db.Close())
			}()
		}()
	}
	for range replicas {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestSQLiteFileIsPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	db, err := sqldb.Open(t.Context(), "sqlite:"+path, sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "create table x (id bigint)"); err != nil {
		t.Error(err)
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != 0o600 {
			t.Errorf("%s: mode %o, want 600", filepath.Base(name), got)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestSQLiteMadeByManyAtOnce opens, migrates and writes one new file through concurrent
// handles, as processes that start at the same time do.
func TestSQLiteMadeByManyAtOnce(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "a.db")
	const processes = 6
	errs := make(chan error, processes)
	for i := range processes {
		go func() {
			errs <- func() error {
				db, err := sqldb.Open(t.Context(), url, sqldb.Options{})
				if err != nil {
					return err
				}
				if err = sqldb.Migrate(t.Context(), db, accounts); err == nil {
					_, err = db.ExecContext(t.Context(), "insert into entries (id, account, amount) values ($1, 'a', 1)", i)
				}
				return errors.Join(err, db.Close())
			}()
		}()
	}
	for range processes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestMapKeepsContextErrors(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, context.Canceled, fmt.Errorf("x: %w", context.DeadlineExceeded), errors.New("other")} {
		if got := sqldb.Map(err); got != err { //nolint:errorlint // identity is required
			t.Errorf("Map(%v) = %v", err, got)
		}
	}
}

// TestMapOfASlowServer tests that a connection that a server does not accept in time is an
// error of the database, although it wraps that of a context.
func TestMapOfASlowServer(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts, no program answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	cfg, err := pgconn.ParseConfig("postgres://anima@" + l.Addr().String() + "/anima?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnectTimeout = 50 * time.Millisecond
	_, err = pgconn.ConnectConfig(t.Context(), cfg)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a timeout", err)
	}
	if got := sqldb.Map(err); !errors.Is(got, sqldb.ErrUnavailable) || api.CodeOf(got) != api.Unavailable {
		t.Errorf("got %v, want %v", got, sqldb.ErrUnavailable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pgconn.ConnectConfig(ctx, cfg)
	if got := sqldb.Map(err); errors.Is(got, sqldb.ErrUnavailable) || !errors.Is(got, context.Canceled) {
		t.Errorf("cancelled: got %v, want %v", got, context.Canceled)
	}
}

// Package sqldbtest provides databases on both engines, a new one for each test. It is
// for tests only.
package sqldbtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
)

// The environment variables of the tests.
const (
	// URLVariable is the URL of a Postgres server to use instead of a private one; its
	// user must be allowed to create databases and schemas.
	URLVariable = "ANIMA_TEST_POSTGRES_URL"
	// SwitchVariable, set to "off", skips the tests on Postgres with a message.
	SwitchVariable = "ANIMA_TEST_POSTGRES"
)

// Each runs test twice, in parallel: on SQLite and on Postgres. The database has only the
// migrations applied, and is deleted afterwards.
//
// Without Postgres the test fails with an error that says how to install it; it is
// skipped only if SwitchVariable is "off".
func Each(t *testing.T, migrations fs.FS, test func(t *testing.T, db *sqldb.DB)) {
	t.Helper()
	EachWith(t, sqldb.Options{}, migrations, test)
}

// EachWith is Each for databases that are opened with opts, except Schema, which EachWith
// chooses.
func EachWith(t *testing.T, opts sqldb.Options, migrations fs.FS, test func(t *testing.T, db *sqldb.DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, sqlite(t, opts, migrations))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, postgres(t, opts, migrations))
	})
}

// SQLite returns a migrated database in a temporary file, closed when t ends.
func SQLite(t testing.TB, migrations fs.FS) *sqldb.DB {
	t.Helper()
	return sqlite(t, sqldb.Options{}, migrations)
}

func sqlite(t testing.TB, opts sqldb.Options, migrations fs.FS) *sqldb.DB {
	t.Helper()
	opts.Schema = unique()
	return open(t, "sqlite:"+filepath.Join(t.TempDir(), "test.db"), opts, migrations)
}

// Postgres returns the URL of an empty database, which is dropped when t ends.
func Postgres(t testing.TB) string {
	t.Helper()
	admin, adminURL := adminDB(t)
	name := unique()
	run(t, admin, "create database "+name+" template template0") // template0 has no connections
	t.Cleanup(func() { run(t, admin, "drop database "+name+" with (force)") })
	u, err := url.Parse(adminURL)
	if err != nil {
		t.Fatalf("%s must be a postgres:// URL", URLVariable) // the cause may quote a password
	}
	u.Path = "/" + name
	return u.String()
}

// postgres returns a migrated database in a new schema, as a service has in production. A
// schema takes milliseconds to create, a database a tenth of a second.
func postgres(t testing.TB, opts sqldb.Options, migrations fs.FS) *sqldb.DB {
	t.Helper()
	admin, adminURL := adminDB(t)
	name := unique()
	t.Cleanup(func() { run(t, admin, "drop schema if exists "+name+" cascade") })
	opts.Schema = name
	return open(t, adminURL, opts, migrations)
}

func open(t testing.TB, url string, opts sqldb.Options, migrations fs.FS) *sqldb.DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	db, err := sqldb.Open(ctx, url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := sqldb.Migrate(ctx, db, migrations); err != nil {
		t.Fatal(err)
	}
	return db
}

// Before returns the migrations whose names sort before a name: the schema of an earlier
// release.
func Before(t testing.TB, migrations fs.FS, name string) fs.FS {
	t.Helper()
	earlier := fstest.MapFS{}
	files, err := fs.Glob(migrations, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file >= name {
			continue
		}
		text, err := fs.ReadFile(migrations, file)
		if err != nil {
			t.Fatal(err)
		}
		earlier[file] = &fstest.MapFile{Data: text}
	}
	return earlier
}

func unique() string { return "test_" + strings.ToLower(rand.Text()) }

func run(t testing.TB, db *sqldb.DB, statement string) {
	t.Helper()
	// Cleanup functions call this too, after the end of t.Context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		t.Fatal(err)
	}
}

// adminDB connects to the server that the tests of this binary share.
func adminDB(t testing.TB) (*sqldb.DB, string) {
	t.Helper()
	if v, _ := os.LookupEnv(SwitchVariable); v == "off" {
		t.Skipf("NOT TESTED ON POSTGRES: %s=off", SwitchVariable)
	}
	server, err := shared()
	if err != nil {
		t.Fatalf("postgres: %v", err)
	}
	db, err := sqldb.Open(t.Context(), server.URL(), sqldb.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db, server.URL()
}

// shared returns the server of a test binary, started by the first test that needs it. No
// code stops it: the warden script ends it when the process ends for any reason.
var shared = sync.OnceValues(func() (*Server, error) {
	if url, _ := os.LookupEnv(URLVariable); url != "" {
		return &Server{url: url}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s, err := Start(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (or set %s to the URL of a server, or %s=off to test without)", err, URLVariable, SwitchVariable)
	}
	return s, nil
})

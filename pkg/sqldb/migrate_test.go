package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

func files(pairs ...string) fstest.MapFS {
	fs := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		fs[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return fs
}

var first = files("0001_create_things.sql", "create table things (id text primary key);\n-- and\ninsert into things values ('one');")

func things(t *testing.T, db *sqldb.DB) []string {
	t.Helper()
	got, err := sqldb.All(t.Context(), db, func(row sqldb.Scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, "select id from things order by id")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestMigrateRunsWhatIsNew(t *testing.T) {
	t.Parallel()
	second := files(
		"0001_create_things.sql", string(first["0001_create_things.sql"].Data),
		"0002_add_engine.sql", "insert into things values (\n-- only sqlite\n'sqlite'\n-- only postgres\n'postgres'\n-- both\n)",
	)
	sqldbtest.Each(t, first, func(t *testing.T, db *sqldb.DB) {
		before := time.Now().Add(-time.Minute).UnixMicro()
		for range 2 { // the second call has nothing to do
			if err := sqldb.Migrate(t.Context(), db, second); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff([]string{"one", string(db.Engine)}, things(t, db)); diff != "" {
			t.Errorf("things (-want +got):\n%s", diff)
		}
		v, err := sqldb.Version(t.Context(), db)
		if err != nil || v != 2 {
			t.Errorf("version is %d, %v, want 2", v, err)
		}
		var at int64
		if err := db.QueryRowContext(t.Context(), "select applied_at from schema_migrations where version = $1", 2).Scan(&at); err != nil {
			t.Fatal(err)
		}
		if after := time.Now().Add(time.Minute).UnixMicro(); at < before || at > after {
			t.Errorf("applied at %d µs, want between %d and %d", at, before, after)
		}
	})
}

func TestVersionOfEmptyDatabase(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"sqlite:" + filepath.Join(t.TempDir(), "a.db"), sqldbtest.Postgres(t)} {
		db, err := sqldb.Open(t.Context(), url, sqldb.Options{})
		if err != nil {
			t.Fatal(err)
		}
		v, err := sqldb.Version(t.Context(), db)
		if err := errors.Join(err, db.Close()); err != nil || v != 0 {
			t.Errorf("version is %d, %v, want 0", v, err)
		}
	}
}

func TestFailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	broken := files(
		"0001_create_things.sql", string(first["0001_create_things.sql"].Data),
		"0002_add_two.sql", "insert into things values ('two'); insert into nothing values (1);",
	)
	sqldbtest.Each(t, first, func(t *testing.T, db *sqldb.DB) {
		err := sqldb.Migrate(t.Context(), db, broken)
		if err == nil || !strings.Contains(err.Error(), "0002_add_two.sql") {
			t.Errorf("got %v, want an error that names the file", err)
		}
		if diff := cmp.Diff([]string{"one"}, things(t, db)); diff != "" {
			t.Errorf("things (-want +got):\n%s", diff)
		}
		if v, err := sqldb.Version(t.Context(), db); err != nil || v != 1 {
			t.Errorf("version is %d, %v, want 1", v, err)
		}
	})
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		files fstest.MapFS
		want  string
	}{
		{"changed", files("0001_create_things.sql", "create table things (id bigint)"), "changed after it was applied"},
		{"gap", files("0001_create_things.sql", "select 1", "0003_drop_things.sql", "select 1"), "0002 is missing"},
		{"same number", files("0001_create_things.sql", "select 1", "0001_drop_things.sql", "select 1"), "exists twice"},
		{"same name in two folders", files("a/0001_x.sql", "select 1", "b/0001_x.sql", "select 1"), "exists twice"},
		{"bad name", files("1-things.sql", "select 1"), "NNNN_verb_phrase.sql"},
		{"file of one engine", files("0001_a.sql", "select 1", "0001_a.postgres.sql", "select 1"), "NNNN_verb_phrase.sql"},
		{"lines of no engine", files("0001_a.sql", "select 1;\n-- only mysql\nselect 2"), `"-- only mysql": want only sqlite or only postgres`},
		{"nothing", files("README.md", "no migrations here"), "no migrations"},
	}
	sqldbtest.Each(t, first, func(t *testing.T, db *sqldb.DB) {
		for _, tt := range tests {
			err := sqldb.Migrate(t.Context(), db, tt.files)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want something with %q", tt.name, err, tt.want)
			}
		}
		if diff := cmp.Diff([]string{"one"}, things(t, db)); diff != "" {
			t.Errorf("things (-want +got):\n%s", diff)
		}
	})
}

// TestTwoReleases runs programs of two releases on one database, as during an upgrade or
// a rollback.
func TestTwoReleases(t *testing.T) {
	t.Parallel()
	newer := files("0001_create_things.sql", string(first["0001_create_things.sql"].Data), "0002_create_more.sql", "create table more (id bigint)")
	sqldbtest.Each(t, first, func(t *testing.T, db *sqldb.DB) {
		if err := sqldb.Behind(t.Context(), db, first); err != nil {
			t.Errorf("the old program on the old schema: %v", err)
		}
		if err := sqldb.Behind(t.Context(), db, newer); !errors.Is(err, sqldb.ErrBehind) || !strings.Contains(err.Error(), "0002_create_more") {
			t.Errorf("the new program on the old schema: got %v, want that 0002_create_more is missing", err)
		}
		for _, fsys := range []fstest.MapFS{newer, first, newer} {
			if err := sqldb.Migrate(t.Context(), db, fsys); err != nil {
				t.Fatal(err)
			}
			if err := sqldb.Behind(t.Context(), db, fsys); err != nil {
				t.Error(err)
			}
		}
		if v, err := sqldb.Version(t.Context(), db); err != nil || v != 2 {
			t.Errorf("version is %d, %v, want 2", v, err)
		}
	})
}

// TestMigratorsAtOnce lets concurrently started replicas migrate the same database. Each
// migration must run once; a second run would fail.
func TestMigratorsAtOnce(t *testing.T) {
	t.Parallel()
	all := files("0001_create_things.sql", string(first["0001_create_things.sql"].Data))
	for i := 2; i <= 6; i++ {
		all[fmt.Sprintf("%04d_add_thing.sql", i)] = &fstest.MapFile{Data: fmt.Appendf(nil,
			"create table t%d (id bigint); insert into things values ('thing %d')", i, i)}
	}
	sqldbtest.Each(t, first, func(t *testing.T, db *sqldb.DB) {
		const replicas = 5
		errs := make(chan error, replicas)
		for range replicas {
			go func() {
				errs <- func() error {
					mine, err := db.Reopen(t.Context())
					if err != nil {
						return err
					}
					return errors.Join(sqldb.Migrate(t.Context(), mine, all), mine.Close())
				}()
			}()
		}
		for range replicas {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if got := len(things(t, db)); got != 6 {
			t.Errorf("%d things, want 6", got)
		}
	})
}

func TestMigrateEndsWithContext(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, first, func(t *testing.T, db *sqldb.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := sqldb.Migrate(ctx, db, first); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
	})
}

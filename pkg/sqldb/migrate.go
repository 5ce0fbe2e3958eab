package sqldb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// migration is one change of a schema.
type migration struct {
	version  int
	name     string // NNNN_verb_phrase
	checksum string // SHA-256 of the text, in hex
	text     string // for one engine
}

// Migrate applies the migrations of fsys that have not run. fsys holds, at any depth,
// files NNNN_verb_phrase.sql numbered from 0001 without a gap; 0000 is for tables that a
// package adds to every store. A file may have several statements. It is one transaction,
// so it must not commit. The lines after "-- only sqlite" or "-- only postgres" are for
// that engine, until the next such line or "-- both".
//
// Replicas may call Migrate concurrently: each migration runs once. Migrate returns an
// error for a database whose migrations were changed after they had run. It does not
// change a database that is newer than fsys: during an upgrade or a rollback, programs of
// two releases use the database, so a migration may only add to the schema that the
// release before it uses (docs/adr/0008-schema-and-releases.md).
func Migrate(ctx context.Context, db *DB, fsys fs.FS) error {
	all, err := migrations(fsys, db.Engine)
	if err != nil {
		return err
	}
	for done := false; !done; {
		err := InTx(ctx, db, func(tx *Tx) (err error) {
			done, err = migrateOne(ctx, tx, db.opts.Schema, all)
			return err
		})
		if err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	return nil
}

// ErrBehind means that the schema is older than the program.
var ErrBehind = errors.New("the schema is behind")

// Behind returns [ErrBehind] with the missing migration if the schema is older than fsys,
// and nil if a program with fsys can use it.
func Behind(ctx context.Context, db *DB, fsys fs.FS) error {
	all, err := migrations(fsys, db.Engine)
	if err != nil {
		return err
	}
	want := all[len(all)-1]
	got, err := Version(ctx, db)
	switch {
	case err != nil:
		return fmt.Errorf("schema version: %w", err)
	case got < want.version:
		return fmt.Errorf("%w: it is at migration %04d and %s is needed; run the program with the argument migrate", ErrBehind, got, want.name)
	}
	if ok, err := hasTable(ctx, db, "losses"); err != nil {
		return fmt.Errorf("schema version: %w", err)
	} else if !ok {
		return fmt.Errorf("%w: the table installation is missing; run the program with the argument migrate", ErrBehind)
	}
	return nil
}

// Version returns the number of the last migration that has run; 0 if none has.
func Version(ctx context.Context, db *DB) (int, error) {
	if ok, err := hasTable(ctx, db, "schema_migrations"); err != nil || !ok {
		return 0, err
	}
	var n int
	err := db.QueryRowContext(ctx, "select coalesce(max(version), 0) from schema_migrations").Scan(&n)
	return n, err
}

func hasTable(ctx context.Context, db *DB, name string) (bool, error) {
	query := "select count(*) from sqlite_master where type = 'table' and name = $1"
	if db.Engine == Postgres {
		query = "select count(to_regclass($1))"
	}
	var n int
	err := db.QueryRowContext(ctx, query, name).Scan(&n)
	return n > 0, err
}

// migrateOne runs the first migration that has not run; done means that all had run.
func migrateOne(ctx context.Context, tx *Tx, schema string, all []migration) (done bool, err error) {
	if err := tx.Lock(ctx, "migrate "+schema); err != nil {
		return false, err
	}
	_, err = tx.ExecContext(ctx, `create table if not exists schema_migrations (
		version bigint not null primary key,
		name text not null,
		checksum text not null,
		applied_at bigint not null
	)`)
	if err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, installationTables); err != nil {
		return false, err
	}
	ran, err := All(ctx, tx, func(row Scanner) (m migration, err error) {
		err = row.Scan(&m.version, &m.name, &m.checksum)
		return m, err
	}, "select version, name, checksum from schema_migrations order by version")
	if err != nil {
		return false, err
	}
	if err := agree(ran, all); err != nil {
		return false, err
	}
	if len(ran) >= len(all) {
		return true, nil
	}
	next := all[len(ran)]
	if _, err := tx.ExecContext(ctx, next.text); err != nil {
		return false, fmt.Errorf("%s.sql: %w", next.name, err)
	}
	now := "cast(unixepoch('subsec') * 1000000 as integer)"
	if tx.Engine == Postgres {
		now = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
	}
	_, err = tx.ExecContext(ctx, "insert into schema_migrations (version, name, checksum, applied_at) values ($1, $2, $3, "+now+")",
		next.version, next.name, next.checksum)
	return false, err
}

// agree returns an error if the migrations that ran are not the first ones of all.
func agree(ran, all []migration) error {
	for i, r := range ran[:min(len(ran), len(all))] {
		m := all[i]
		switch {
		case r.version != m.version:
			return fmt.Errorf("the database lacks migration %s but has %s: restore a backup", m.name, r.name)
		case r.checksum != m.checksum:
			return fmt.Errorf("migration %s was changed after it was applied as %s: restore it and write a new migration", m.name, r.name)
		}
	}
	return nil
}

// migrations reads the files for one engine, in the order of their numbers.
func migrations(fsys fs.FS, engine Engine) ([]migration, error) {
	form := regexp.MustCompile(`^([0-9]{4})_[a-z0-9]+(?:_[a-z0-9]+)*\.sql$`)
	var all []migration
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(p) != ".sql" {
			return err
		}
		m := form.FindStringSubmatch(path.Base(p))
		if m == nil {
			return fmt.Errorf("migration %s: name it NNNN_verb_phrase.sql", p)
		}
		file, err := fs.ReadFile(fsys, p)
		if err != nil {
			return fmt.Errorf("migration: %w", err)
		}
		text, err := textFor(engine, string(file))
		if err != nil {
			return fmt.Errorf("migration %s: %w", p, err)
		}
		version, err := strconv.Atoi(m[1])
		sum := sha256.Sum256([]byte(text))
		all = append(all, migration{version, strings.TrimSuffix(path.Base(p), ".sql"), hex.EncodeToString(sum[:]), text})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("no migrations: give the folder that holds NNNN_verb_phrase.sql")
	}
	slices.SortFunc(all, func(a, b migration) int { return a.version - b.version })
	first := min(all[0].version, 1)
	for i, m := range all {
		if m.version != first+i {
			return nil, fmt.Errorf("migration %s: number %04d is missing or exists twice", m.name, first+i)
		}
	}
	return all, nil
}

// textFor returns the lines of a file that are for one engine, without the lines that
// divide it.
func textFor(engine Engine, file string) (string, error) {
	var text strings.Builder
	only := engine
	for line := range strings.Lines(file) {
		name, divides := strings.CutPrefix(strings.TrimSpace(line), "-- only ")
		switch {
		case divides:
			if only = Engine(name); only != SQLite && only != Postgres {
				return "", fmt.Errorf("%q: want only %s or only %s", strings.TrimSpace(line), SQLite, Postgres)
			}
		case strings.TrimSpace(line) == "-- both":
			only = engine
		case only == engine:
			text.WriteString(line)
		}
	}
	return text.String(), nil
}

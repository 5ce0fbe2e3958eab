package outbox

import (
	"embed"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// The table inbox is not used any more; the checksum of its migration does not allow to
// remove it.
//
// The migrations differ between the engines because the numbers of rows must increase
// in the order of insertion: with times instead, the messages of two replicas could
// overtake each other.
//
//go:embed migrations/*.sql
var files embed.FS

// WithMigrations returns the migrations in the folder migrations of store, with those of
// the outbox's tables, which have the number 0000. Those of store begin at 0001.
func WithMigrations(store fs.FS) fs.FS {
	sub, err := fs.Sub(store, "migrations")
	if err != nil {
		panic(err) // only for an invalid path
	}
	return merged{sub}
}

type merged struct{ store fs.FS }

// Open implements [fs.FS].
func (m merged) Open(name string) (fs.File, error) {
	f, err := files.Open(path.Join("migrations", name))
	if name == "." || errors.Is(err, fs.ErrNotExist) {
		return m.store.Open(name)
	}
	return f, err
}

// ReadDir implements [fs.ReadDirFS].
func (m merged) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(m.store, name)
	if err != nil || name != "." {
		return all, err
	}
	own, err := files.ReadDir("migrations")
	if err != nil {
		return nil, err
	}
	all = append(own, all...)
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, nil
}

package outbox

import (
	"embed"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// The tables differ between the engines in how they number rows: a clock would
// let the messages of two replicas overtake each other.
//
//go:embed migrations/*.sql
var files embed.FS

// WithMigrations adds the outbox's tables to a store's migrations, as number
// 0000. The store's own start at 0001 and lie in the top folder of store.
func WithMigrations(store fs.FS) fs.FS { return merged{store} }

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

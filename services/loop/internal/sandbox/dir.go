package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
)

// ReadDir returns the names in a directory of the workspace root, sorted, from the first
// limit entries. more reports whether there are further entries. path follows the rules
// of ReadFile. Names of directories end in "/"; symbolic links and special files are
// omitted.
func ReadDir(root, path string, limit int) (names []string, more bool, err error) {
	dir, name, err := locate(root, path)
	if err != nil {
		return nil, false, err
	}
	defer dir.Close() // read only: an error of Close loses no data
	f, err := dir.Open(name)
	if err != nil {
		return nil, false, explain(path, err)
	}
	defer f.Close() // read only
	entries, err := f.ReadDir(limit + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, explain(path, err)
	}
	for _, e := range entries[:min(len(entries), limit)] {
		switch {
		case e.IsDir():
			names = append(names, e.Name()+"/")
		case e.Type().IsRegular():
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, len(entries) > limit, nil
}

// RemoveAll removes a file, or a directory with its content, from the workspace root. A
// missing path is not an error. Symbolic links are removed, not followed.
func RemoveAll(root, path string) error {
	dir, name, err := locate(root, path)
	if err != nil {
		return err
	}
	defer dir.Close() // an error of Close loses no data
	if name == "." {
		return fmt.Errorf("%s: %w", path, ErrIsDir)
	}
	if err := dir.RemoveAll(name); err != nil {
		return explain(path, err)
	}
	return nil
}

// Replace moves a directory of the workspace root from one path to another and removes
// the directory that was at the new path. A concurrent reader sees the old directory,
// then for a short time none, then the new one, but never a mixture.
func Replace(root, from, to string) error {
	dir, name, err := locate(root, from)
	if err != nil {
		return err
	}
	defer dir.Close() // an error of Close loses no data
	if !filepath.IsLocal(to) {
		return fmt.Errorf("%s: %w", to, ErrOutside)
	}
	if err := dir.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return explain(to, err)
	}
	old := name + ".old" // next to from, which is temporary, too
	err = dir.Rename(to, old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return explain(to, err)
	}
	if err := dir.Rename(name, to); err != nil {
		return explain(to, err)
	}
	if err := dir.RemoveAll(old); err != nil {
		return explain(old, err)
	}
	parent, err := dir.Open(filepath.Dir(to))
	if err != nil {
		return explain(to, err)
	}
	return errors.Join(parent.Sync(), parent.Close())
}

package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
)

// ReadDir lists the names in a directory of the workspace root, sorted, at most
// limit of them; more says that there are others. path follows the rules of
// ReadFile. Directories end in "/", links are left out.
func ReadDir(root, path string, limit int) (names []string, more bool, err error) {
	dir, name, err := locate(root, path)
	if err != nil {
		return nil, false, err
	}
	defer dir.Close() // Only read from.
	f, err := dir.Open(name)
	if err != nil {
		return nil, false, explain(path, err)
	}
	defer f.Close() // Only read from.
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

// RemoveAll removes a file or a directory of the workspace root with all that is
// in it; what is not there is no error. Links are removed, not followed.
func RemoveAll(root, path string) error {
	dir, name, err := locate(root, path)
	if err != nil {
		return err
	}
	defer dir.Close() // What it holds is the kernel's.
	if name == "." {
		return fmt.Errorf("%s: %w", path, ErrIsDir)
	}
	if err := dir.RemoveAll(name); err != nil {
		return explain(path, err)
	}
	return nil
}

// Replace moves a directory of the workspace root to another place in it. What
// was there is removed: whoever looks sees the old directory, for a moment none,
// then the new one, never a mixture.
func Replace(root, from, to string) error {
	dir, name, err := locate(root, from)
	if err != nil {
		return err
	}
	defer dir.Close() // What it holds is the kernel's.
	if !filepath.IsLocal(to) {
		return fmt.Errorf("%s: %w", to, ErrOutside)
	}
	if err := dir.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return explain(to, err)
	}
	old := name + ".old" // Beside what is moved, which is as temporary.
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

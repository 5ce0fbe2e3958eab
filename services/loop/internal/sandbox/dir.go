package sandbox

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// ReadDir returns the names in a directory of the workspace root, sorted, from the first
// limit entries. more reports whether there are further entries. path follows the rules
// of ReadFile. Names of directories end in "/"; symbolic links and special files are
// omitted.
func ReadDir(root, path string, limit int) (names []string, more bool, err error) {
	err = within(root, path, func(dir *os.Root, name string) error {
		f, err := dir.Open(name)
		if err != nil {
			return err
		}
		defer f.Close() // read only
		entries, err := f.ReadDir(limit + 1)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		more = len(entries) > limit
		for _, e := range entries[:min(len(entries), limit)] {
			switch {
			case e.IsDir():
				names = append(names, e.Name()+"/")
			case e.Type().IsRegular():
				names = append(names, e.Name())
			}
		}
		slices.Sort(names)
		return nil
	})
	return names, more, err
}

// RemoveAll removes a file, or a directory with its content, from the workspace root. A
// missing path is not an error. Symbolic links are removed, not followed.
func RemoveAll(root, path string) error {
	return within(root, path, func(dir *os.Root, name string) error {
		if name == "." {
			return ErrIsDir
		}
		return dir.RemoveAll(name)
	})
}

// Replace moves a directory of the workspace root from one path to another, both relative
// to root, and removes the directory that was at the new path. A symbolic link returns
// ErrNotADir. A concurrent reader sees the old directory, then for a short time none, then
// the new one, but never a mixture.
func Replace(root, from, to string) error {
	return within(root, to, func(dir *os.Root, name string) error {
		if !filepath.IsLocal(from) {
			return ErrOutside
		}
		if info, err := dir.Lstat(from); err != nil {
			return err
		} else if !info.IsDir() { // a link would not be listed afterwards
			return ErrNotADir
		}
		if err := dir.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		old := from + ".old" // next to from, which is temporary, too
		if err := dir.Rename(name, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := dir.Rename(from, name); err != nil {
			return err
		}
		if err := dir.RemoveAll(old); err != nil {
			return err
		}
		return syncFolder(dir, filepath.Dir(name))
	})
}

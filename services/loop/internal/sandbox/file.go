package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// MaxFile is the maximum size in bytes of a file that WriteFile writes, and the default
// limit of ReadFile.
const MaxFile = 1 << 20

// Errors of ReadFile and WriteFile. For a missing file they return fs.ErrNotExist.
var (
	ErrOutside   = errors.New("outside the workspace")
	ErrTooLarge  = errors.New("too large")
	ErrIsDir     = errors.New("is a directory")
	ErrNotADir   = errors.New("part of the path is not a directory")
	ErrIrregular = errors.New("not a regular file")
)

// ReadFile reads a file of the workspace root. path is relative to root, or an absolute
// path below root. A symbolic link is followed only within root. A file of more than
// limit bytes returns ErrTooLarge; a limit of zero or less means MaxFile. ReadFile does
// not block on a named pipe without a writer; it returns ErrIrregular.
func ReadFile(root, path string, limit int64) (data []byte, err error) {
	if limit <= 0 {
		limit = MaxFile
	}
	err = within(root, path, func(dir *os.Root, name string) error {
		f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close() // read only
		info, err := f.Stat()
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return ErrIsDir
		case !info.Mode().IsRegular():
			return ErrIrregular
		case info.Size() > limit:
			return fmt.Errorf("%w: %d bytes, at most %d can be read", ErrTooLarge, info.Size(), limit)
		}
		read, err := io.ReadAll(io.LimitReader(f, limit+1))
		if err == nil && int64(len(read)) > limit { // the file has grown since Stat
			err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
		}
		if err == nil {
			data = read
		}
		return err
	})
	return data, err
}

// WriteFile creates or replaces a file of the workspace root, and creates its parent
// directories. path follows the rules of ReadFile. The replacement is atomic: concurrent
// readers, and readers after a crash, see the old or the new content. A symbolic link at
// path is replaced, not followed. More than MaxFile bytes return ErrTooLarge.
func WriteFile(root, path string, data []byte) error {
	return within(root, path, func(dir *os.Root, name string) error {
		if len(data) > MaxFile {
			return fmt.Errorf("%w: %d bytes, at most %d can be written", ErrTooLarge, len(data), MaxFile)
		}
		mode := fs.FileMode(0o644)
		switch info, err := dir.Lstat(name); {
		case err == nil && info.IsDir():
			return ErrIsDir
		case err == nil && info.Mode().IsRegular():
			mode = info.Mode().Perm()
		}
		if err := dir.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return replace(dir, name, data, mode)
	})
}

// replace writes data to a temporary file next to name and renames it to name.
func replace(dir *os.Root, name string, data []byte, mode fs.FileMode) error {
	temporary := filepath.Join(filepath.Dir(name), ".write-"+rand.Text())
	f, err := dir.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = dir.Rename(temporary, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(temporary))
	}
	return syncFolder(dir, filepath.Dir(name))
}

func syncFolder(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// within calls do with the opened workspace and path relative to it, and explains its
// error.
func within(root, path string, do func(dir *os.Root, name string) error) error {
	name := path
	if filepath.IsAbs(path) {
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, ErrOutside)
		}
		name = rel
	}
	switch {
	case path == "" || strings.ContainsRune(path, 0):
		return fmt.Errorf("%q: %w", path, fs.ErrInvalid)
	case !filepath.IsLocal(name):
		return fmt.Errorf("%s: %w", path, ErrOutside)
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open the workspace: %w", err)
	}
	defer dir.Close() // do has synced what it wrote
	if err := do(dir, filepath.Clean(name)); err != nil {
		return explain(path, err)
	}
	return nil
}

// explain converts an error of the system into an error about the workspace, without the
// workspace's absolute path.
func explain(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: no such file in the workspace: %w", path, fs.ErrNotExist)
	case strings.Contains(err.Error(), "path escapes from parent"): // package os exports no error for this case
		return fmt.Errorf("%s: %w", path, ErrOutside)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s: %w", path, ErrNotADir)
	case errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%s: %w", path, ErrIsDir)
	case errors.Is(err, syscall.ENXIO): // a socket
		return fmt.Errorf("%s: %w", path, ErrIrregular)
	}
	return fmt.Errorf("%s: %w", path, err)
}

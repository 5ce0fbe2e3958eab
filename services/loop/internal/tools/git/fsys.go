package git

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/go-git/go-billy/v5"
)

// maxWritten is the maximum number of bytes that one operation writes, so that a clone
// cannot fill the disk that all agents share.
const maxWritten = 256 << 20

var errTooMuch = fmt.Errorf("more than %d MiB were written", maxWritten>>20)

// disk is the state that all file systems of one operation share.
type disk struct {
	ctx     context.Context //nolint:containedctx // context of one operation: go-git does not pass one
	written int64
	roots   []*os.Root
}

func (d *disk) close() error {
	var errs []error
	for _, r := range d.roots {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

func (d *disk) open(r *os.Root, err error) (*fsys, error) {
	if err != nil {
		return nil, err
	}
	d.roots = append(d.roots, r)
	return &fsys{disk: d, root: r}, nil
}

// dotGit is the folder of a repository's own files. Within it, alternates names further
// object folders. It is hidden from go-git, which follows it without a limit if it names
// the repository itself.
const (
	dotGit     = ".git"
	alternates = "objects/info/alternates"
)

// fsys is a folder of the workspace as a file system of go-git. Every access goes through
// os.Root, so a symbolic link cannot lead out of the workspace, even if it is created
// concurrently.
type fsys struct {
	*disk
	root *os.Root
	dot  bool // within a folder .git
}

var _ billy.Filesystem = (*fsys)(nil)

// local returns a name relative to the folder, as os.Root requires. ".." above the folder
// has no effect.
func local(name string) string {
	name = strings.TrimPrefix(filepath.Clean("/"+name), "/")
	if name == "" {
		return "."
	}
	return name
}

func (f *fsys) Create(name string) (billy.File, error) {
	return f.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
}

func (f *fsys) Open(name string) (billy.File, error) { return f.OpenFile(name, os.O_RDONLY, 0) }

func (f *fsys) OpenFile(name string, flag int, perm os.FileMode) (billy.File, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, err
	}
	at := local(name)
	if f.dot && at == alternates {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if flag&os.O_CREATE != 0 {
		if err := f.parents(at); err != nil {
			return nil, err
		}
	}
	// Without O_NONBLOCK, opening a named pipe would block until the other end is opened.
	file, err := f.root.OpenFile(at, flag|syscall.O_NONBLOCK, perm.Perm())
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &opened{File: file, name: name, disk: f.disk}, nil
}

func (f *fsys) parents(at string) error {
	if dir := filepath.Dir(at); dir != "." {
		return f.root.MkdirAll(dir, 0o755)
	}
	return nil
}

func (f *fsys) Stat(name string) (os.FileInfo, error)  { return f.look(name, f.root.Stat) }
func (f *fsys) Lstat(name string) (os.FileInfo, error) { return f.look(name, f.root.Lstat) }

func (f *fsys) look(name string, how func(string) (os.FileInfo, error)) (os.FileInfo, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, err
	}
	return how(local(name))
}

func (f *fsys) Rename(from, to string) error {
	if err := f.parents(local(to)); err != nil {
		return err
	}
	return f.root.Rename(local(from), local(to))
}

func (f *fsys) Remove(name string) error { return f.root.Remove(local(name)) }

func (f *fsys) Join(elem ...string) string { return filepath.Join(elem...) }

func (f *fsys) TempFile(dir, prefix string) (billy.File, error) {
	return f.OpenFile(filepath.Join(dir, prefix+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func (f *fsys) ReadDir(name string) ([]os.FileInfo, error) {
	if err := f.ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := f.root.Open(local(name))
	if err != nil {
		return nil, err
	}
	all, err := dir.Readdir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b os.FileInfo) int { return strings.Compare(a.Name(), b.Name()) })
	return all, nil
}

func (f *fsys) MkdirAll(name string, perm os.FileMode) error {
	return f.root.MkdirAll(local(name), perm.Perm())
}

func (f *fsys) Symlink(target, link string) error {
	at := local(link)
	if err := f.parents(at); err != nil {
		return err
	}
	return f.root.Symlink(target, at)
}

func (f *fsys) Readlink(link string) (string, error) { return f.root.Readlink(local(link)) }

func (f *fsys) Chroot(name string) (billy.Filesystem, error) {
	if err := f.root.MkdirAll(local(name), 0o755); err != nil {
		return nil, err
	}
	sub, err := f.open(f.root.OpenRoot(local(name)))
	if err != nil {
		return nil, err
	}
	sub.dot = f.dot || local(name) == dotGit
	return sub, nil
}

// Root returns a name for display. go-git opens no file by it.
func (f *fsys) Root() string { return f.root.Name() }

// opened is an open file. Its locks do nothing, because only one operation at a time uses
// a workspace.
type opened struct {
	*os.File
	name string
	disk *disk
}

func (o *opened) Name() string { return o.name }

func (o *opened) Write(p []byte) (int, error) {
	if err := o.disk.ctx.Err(); err != nil {
		return 0, err
	}
	if o.disk.written += int64(len(p)); o.disk.written > maxWritten {
		return 0, errTooMuch
	}
	return o.File.Write(p)
}

func (o *opened) Read(p []byte) (int, error) {
	if err := o.disk.ctx.Err(); err != nil {
		return 0, err
	}
	return o.File.Read(p)
}

func (o *opened) Lock() error   { return nil }
func (o *opened) Unlock() error { return nil }

package git

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	formatdiff "github.com/go-git/go-git/v5/plumbing/format/diff"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/utils/diff"
	"github.com/sergi/go-diff/diffmatchpatch"
)

// maxDiffFile is the maximum size of a file that is compared line by line, in bytes.
const maxDiffFile = 1 << 20

// diff returns the changes line by line: with staged, the index against the latest
// commit, otherwise the folder against the index. Like git diff, it omits untracked
// files.
func (r *repo) diff(staged bool) (string, error) {
	changes, err := r.changes()
	if err != nil {
		return "", err
	}
	index, err := r.git.Storer.Index()
	if err != nil {
		return "", err
	}
	head, err := r.headTree()
	if err != nil {
		return "", err
	}
	var all patch
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		code := changes[name].Worktree
		if staged {
			code = changes[name].Staging
		}
		if code == git.Unmodified || code == git.Untracked {
			continue
		}
		var was, is []byte
		if e, err := index.Entry(name); err == nil {
			if was, err = r.blob(e.Hash); err != nil {
				return "", err
			}
		}
		if !staged {
			is, err = r.work(name)
		} else {
			was, is = nil, was
			if f, ferr := head.File(name); ferr == nil {
				was, err = r.blob(f.Hash)
			}
		}
		if err != nil {
			return "", err
		}
		all = append(all, newFile(name, was, is))
	}
	var b strings.Builder
	if err := formatdiff.NewUnifiedEncoder(&b, formatdiff.DefaultContextLines).Encode(all); err != nil {
		return "", err
	}
	if b.Len() == 0 {
		return "no differences in tracked files", nil
	}
	return b.String(), nil
}

func (r *repo) headTree() (*object.Tree, error) {
	c, err := r.head()
	if err != nil || c == nil {
		return &object.Tree{}, err
	}
	return c.Tree()
}

// blob returns the content of a blob, or nil if it is longer than maxDiffFile.
func (r *repo) blob(h plumbing.Hash) ([]byte, error) {
	b, err := r.git.BlobObject(h)
	if err != nil || b.Size > maxDiffFile {
		return nil, err
	}
	text, err := object.NewFile("", filemode.Regular, b).Contents()
	return []byte(text), err
}

// work returns the content of a file of the folder, or nil if it is missing, not regular
// or longer than maxDiffFile.
func (r *repo) work(name string) ([]byte, error) {
	info, err := r.fs.Lstat(name)
	if errors.Is(err, os.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Size() > maxDiffFile) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := r.fs.Open(name)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxDiffFile)) // returns a non-nil slice for an empty file
	return data, errors.Join(err, f.Close())
}

// changedLines returns the number of lines that a change adds and removes.
func changedLines(was, is []byte) (added, removed int) {
	for _, d := range diff.Do(string(was), string(is)) {
		n := strings.Count(strings.TrimSuffix(d.Text, "\n")+"\n", "\n")
		switch {
		case d.Text == "":
		case d.Type == diffmatchpatch.DiffInsert:
			added += n
		case d.Type == diffmatchpatch.DiffDelete:
			removed += n
		}
	}
	return added, removed
}

// Implementations of the interfaces of go-git's diff encoder.
type (
	patch []formatdiff.FilePatch
	file  struct {
		from, to formatdiff.File
		binary   bool
		chunks   []formatdiff.Chunk
	}
	side struct {
		path string
		hash plumbing.Hash
	}
	chunk struct{ diffmatchpatch.Diff }
)

func newFile(name string, was, is []byte) file {
	f := file{binary: !utf8.Valid(was) || !utf8.Valid(is) || bytes.ContainsRune(was, 0) || bytes.ContainsRune(is, 0)}
	if was != nil {
		f.from = side{name, plumbing.ComputeHash(plumbing.BlobObject, was)}
	}
	if is != nil {
		f.to = side{name, plumbing.ComputeHash(plumbing.BlobObject, is)}
	}
	if !f.binary {
		for _, d := range diff.Do(string(was), string(is)) {
			f.chunks = append(f.chunks, chunk{d})
		}
	}
	return f
}

func (p patch) FilePatches() []formatdiff.FilePatch { return p }
func (p patch) Message() string                     { return "" }

func (f file) IsBinary() bool                    { return f.binary }
func (f file) Files() (from, to formatdiff.File) { return f.from, f.to }
func (f file) Chunks() []formatdiff.Chunk        { return f.chunks }

func (s side) Hash() plumbing.Hash     { return s.hash }
func (s side) Mode() filemode.FileMode { return filemode.Regular }
func (s side) Path() string            { return s.path }

func (c chunk) Content() string { return c.Text }
func (c chunk) Type() formatdiff.Operation {
	switch c.Diff.Type {
	case diffmatchpatch.DiffInsert:
		return formatdiff.Add
	case diffmatchpatch.DiffDelete:
		return formatdiff.Delete
	case diffmatchpatch.DiffEqual:
	}
	return formatdiff.Equal
}

package git

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// Trailers of the commits that record an agent's changes of its own files. A repeated
// call finds its earlier commit by them.
const (
	trailerCall   = "Anima-Call: "
	trailerFile   = "Anima-File: "
	trailerRevert = "Anima-Reverts: "
)

// far is the maximum number of commits that are searched for a trailer.
const far = 500

// trailer returns the value of a trailer in a commit's message, or "".
func trailer(c *object.Commit, name string) string {
	for line := range strings.Lines(c.Message) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// edited returns the hash of the commit that the call with this key made, or "".
func (r *repo) edited(key string) (hash string, err error) {
	err = r.walk(far, func(c *object.Commit) bool {
		if trailer(c, trailerCall) == key {
			hash = c.Hash.String()
		}
		return hash == ""
	})
	return hash, err
}

// edit writes a file and commits it. Before the write it commits the current content, if
// that is not recorded yet. A call that is repeated after a crash finds its commit, or
// does the remaining steps.
func (r *repo) edit(c engine.Call, a catalog.Args) (string, error) {
	path, content, description := a.String("path"), []byte(a.String("content")), a.String("description")
	if done, err := r.edited(c.Key); err != nil || done != "" {
		return "changed " + path + ", commit " + done, err
	}
	name, err := within(r.workspace, path)
	if err != nil {
		return "", err
	}
	before, err := sandbox.ReadFile(r.workspace, name, sandbox.MaxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// If an earlier attempt crashed after the write, the file already has the new
	// content, which is not to be recorded as the old one.
	if string(before) != string(content) {
		if _, err := r.record(name, "Before: "+filepath.Base(name), c); err != nil {
			return "", err
		}
	}
	if err := sandbox.WriteFile(r.workspace, name, content); err != nil {
		return "", err
	}
	message := firstLine(description) + "\n\n" + quoted(description) + trailerFile + name + "\n" + trailerCall + c.Key + "\n"
	hash, err := r.record(name, message, c)
	if err != nil {
		return "", err
	}
	if hash == "" {
		return path + " has that content already", nil
	}
	added, removed := changedLines(before, content)
	return fmt.Sprintf("changed %s: %d lines added, %d removed, commit %s; revert_last_edit reverts it", path, added, removed, hash), nil
}

// record stages one file and commits all staged changes. It returns the hash, or "" if
// there is nothing to commit.
func (r *repo) record(name, message string, c engine.Call) (string, error) {
	if err := r.tree.AddWithOptions(&git.AddOptions{Path: name, SkipStatus: true}); err != nil {
		// A missing file that is not tracked has nothing to record.
		if _, lerr := r.fs.Lstat(name); errors.Is(lerr, fs.ErrNotExist) {
			return "", nil
		}
		return "", err
	}
	return r.commit(message, false, author(c))
}

// firstLine returns the first line of a description, cut to 72 characters, as the subject
// of a commit.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if utf8.RuneCountInString(line) > 72 {
		line = sanitize.First(line, 71) + "…"
	}
	return line
}

// quoted returns a long description as the body of a commit, quoted so that none of its
// lines is read as a trailer.
func quoted(s string) string {
	s = strings.TrimSpace(s)
	if s == firstLine(s) {
		return ""
	}
	return "> " + strings.ReplaceAll(s, "\n", "\n> ") + "\n\n"
}

// revert restores the content of a file from before the latest recorded edit that is not
// reverted yet, and records that with the call's key. Errors: NotFound if there is no
// such edit; Conflict if the file was changed since.
func (r *repo) revert(c engine.Call, _ catalog.Args) (string, error) {
	if done, err := r.edited(c.Key); err != nil || done != "" {
		return "reverted, commit " + done, err
	}
	undone := map[string]bool{}
	var edit *object.Commit
	err := r.walk(far, func(c *object.Commit) bool {
		if h := trailer(c, trailerRevert); h != "" {
			undone[h] = true
		} else if trailer(c, trailerFile) != "" && !undone[c.Hash.String()] {
			edit = c
		}
		return edit == nil
	})
	if err != nil {
		return "", err
	}
	if edit == nil {
		return "", api.Errorf(api.NotFound, "there is no recorded edit to revert")
	}
	name, what := trailer(edit, trailerFile), firstLine(edit.Message)
	made, err := at(edit, name)
	if err != nil {
		return "", err
	}
	var before []byte
	if edit.NumParents() > 0 {
		parent, err := edit.Parent(0)
		if err != nil {
			return "", err
		}
		if before, err = at(parent, name); err != nil {
			return "", err
		}
	}
	now, err := r.work(name)
	if err != nil {
		return "", err
	}
	// An attempt that crashed before it could record has left the earlier content.
	if !same(now, made) && !same(now, before) {
		return "", &api.Error{Code: api.Conflict, Message: name + " was changed since that edit", Next: "compare with git_diff and edit the file"}
	}
	if before != nil {
		err = sandbox.WriteFile(r.workspace, name, before)
	} else if err = r.fs.Remove(name); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return "", err
	}
	hash, err := r.record(name, "Revert: "+what+"\n\n"+trailerRevert+edit.Hash.String()+"\n"+trailerCall+c.Key+"\n", c)
	return fmt.Sprintf("reverted %q: %s has its earlier content, commit %s", what, name, hash), err
}

// at returns the content of a file in a commit, or nil if the commit does not contain it.
// Errors: Invalid if the file is longer than maxDiffFile.
func at(c *object.Commit, name string) ([]byte, error) {
	f, err := c.File(name)
	if errors.Is(err, object.ErrFileNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Size > maxDiffFile {
		return nil, api.Errorf(api.Invalid, "%s is too long to revert", name)
	}
	text, err := f.Contents()
	return []byte(text), err
}

// same compares contents. nil means no file and differs from an empty file.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && string(a) == string(b) }

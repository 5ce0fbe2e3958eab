package git

import (
	"errors"
	"os"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/anima-run/anima/pkg/api"
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

// Edited returns the hash of the commit that the call with this key made, or "".
func (r *Repo) Edited(key string) (hash string, err error) {
	err = r.walk(far, func(c *object.Commit) bool {
		if trailer(c, trailerCall) == key {
			hash = c.Hash.String()
		}
		return hash == ""
	})
	return hash, err
}

// RecordEdit commits a file that a call changed, with the call's key as a trailer. It
// returns the hash, or "" if the file is unchanged.
func (r *Repo) RecordEdit(name, description, key string, by Who) (string, error) {
	return r.Record(name, firstLine(description)+"\n\n"+quoted(description)+trailerFile+name+"\n"+trailerCall+key+"\n", by)
}

// firstLine returns the first line of a description, cut to 72 characters, as the subject
// of a commit.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(line); len(r) > 72 {
		line = string(r[:71]) + "…"
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

// Reverted describes a commit of Revert.
type Reverted struct{ Hash, File, What string }

// Revert restores the content of a file from before the latest recorded edit that is not
// reverted yet, and records that with the call's key. write replaces a file. Errors:
// NotFound if there is no such edit; Conflict if the file was changed since.
func (r *Repo) Revert(key string, by Who, write func(name string, content []byte) error) (Reverted, error) {
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
		return Reverted{}, err
	}
	if edit == nil {
		return Reverted{}, api.Errorf(api.NotFound, "there is no recorded edit to take back")
	}
	out := Reverted{File: trailer(edit, trailerFile), What: firstLine(edit.Message)}
	made, err := r.at(edit, out.File)
	if err != nil {
		return out, err
	}
	var before []byte
	if edit.NumParents() > 0 {
		parent, err := edit.Parent(0)
		if err != nil {
			return out, err
		}
		if before, err = r.at(parent, out.File); err != nil {
			return out, err
		}
	}
	now, err := r.work(out.File)
	if err != nil {
		return out, err
	}
	// An attempt that crashed before it could record has left the earlier content.
	if !same(now, made) && !same(now, before) {
		return out, &api.Error{Code: api.Conflict, Message: out.File + " was changed since that edit", Next: "look at git_diff and change it by hand"}
	}
	if before == nil {
		err = r.fs.Remove(out.File)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	} else {
		err = write(out.File, before)
	}
	if err != nil {
		return out, err
	}
	out.Hash, err = r.Record(out.File, "Revert: "+out.What+"\n\n"+trailerRevert+edit.Hash.String()+"\n"+trailerCall+key+"\n", by)
	return out, err
}

// at returns the content of a file in a commit, or nil if the commit does not contain it.
// Errors: Invalid if the file is longer than maxDiffFile.
func (r *Repo) at(c *object.Commit, name string) ([]byte, error) {
	f, err := c.File(name)
	if errors.Is(err, object.ErrFileNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if f.Size > maxDiffFile {
		return nil, api.Errorf(api.Invalid, "%s is too long to be taken back", name)
	}
	data, err := r.blob(f.Hash)
	if data == nil && err == nil {
		data = []byte{}
	}
	return data, err
}

// same compares contents. nil means no file and differs from an empty file.
func same(a, b []byte) bool { return (a == nil) == (b == nil) && string(a) == string(b) }

// Package git has the tools for git repositories in an agent's folder, with git as a
// library. It starts no program but itself, runs no hooks and reads no settings of the
// machine. No content of a repository can make it read or write outside the agent's
// folder, or end the service. Remotes are reached over https, and in tests over http,
// only.
//
// Package git must not decide whether an operation is allowed.
package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/anima-run/anima/pkg/api"
)

// repo is a repository that is open for one operation. It is not safe for concurrent use.
type repo struct {
	git       *git.Repository
	tree      *git.Worktree
	fs        *fsys
	workspace string
}

// busy has one token for each workspace that a call of this process uses.
var busy = struct {
	sync.Mutex
	of map[string]chan struct{}
}{of: map[string]chan struct{}{}}

// take waits until no other operation uses the workspace, or until ctx ends. The returned
// function releases the workspace. Entries of busy are not removed; their number is that
// of the agents.
func take(ctx context.Context, workspace string) (func(), error) {
	busy.Lock()
	c := busy.of[workspace]
	if c == nil {
		c = make(chan struct{}, 1)
		busy.of[workspace] = c
	}
	busy.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// within returns a path relative to the workspace; "" and the workspace itself are ".".
// Errors: Invalid for a path outside.
func within(workspace, name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "~"); ok && (rest == "" || rest[0] == '/') {
		name = workspace + rest
	}
	if filepath.IsAbs(name) {
		rel, err := filepath.Rel(workspace, name)
		if err != nil {
			return "", api.Errorf(api.Invalid, "%s is outside the workspace", name)
		}
		name = rel
	}
	name = filepath.Clean(name)
	if !filepath.IsLocal(name) {
		return "", api.Errorf(api.Invalid, "the path is outside the workspace")
	}
	return name, nil
}

// scratch is the folder of the commands' temporary files.
const scratch = ".tmp/"

// open opens the repository in a folder of a workspace. If the workspace itself has no
// repository, open creates it. The caller must call close. Errors: NotFound if another
// folder is missing or has no repository.
func open(ctx context.Context, workspace, name string) (*repo, error) {
	at, err := within(workspace, name)
	if err != nil {
		return nil, err
	}
	r := &repo{workspace: workspace, fs: &fsys{disk: &disk{ctx: ctx}}}
	if err := r.open(at); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *repo) open(at string) error {
	top, err := r.fs.open(os.OpenRoot(r.workspace))
	if err != nil {
		return fmt.Errorf("open the workspace: %w", err)
	}
	r.fs = top
	if at != "." {
		folder, err := top.open(top.root.OpenRoot(at))
		if err != nil {
			return api.Errorf(api.NotFound, "there is no folder %s", at)
		}
		r.fs = folder
	}
	_, err = r.fs.Lstat(dotGit)
	if err != nil && at != "." {
		return &api.Error{Code: api.NotFound, Message: at + " is no repository", Next: "leave the path out to use the one of your folder"}
	}
	made := err != nil
	dot, err := r.fs.Chroot(dotGit)
	if err != nil {
		return fmt.Errorf("open .git: %w", err)
	}
	store := filesystem.NewStorage(dot, cache.NewObjectLRU(16*cache.MiByte))
	if r.git, err = git.Open(store, r.fs); errors.Is(err, git.ErrRepositoryNotExists) && at == "." {
		r.git, err = git.InitWithOptions(store, r.fs, git.InitOptions{DefaultBranch: "refs/heads/main"})
		made = true
	}
	if err == nil {
		r.tree, err = r.git.Worktree()
	}
	if err != nil {
		return fmt.Errorf("open the repository: %w", err)
	}
	// The temporary files of commands are not part of the work. The pattern is also
	// written to info/exclude for the program git; go-git does not read that file.
	r.tree.Excludes = append(r.tree.Excludes, gitignore.ParsePattern(scratch, nil))
	if !made {
		return nil
	}
	f, err := dot.Create("info/exclude")
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(scratch + "\n"))
	return errors.Join(err, f.Close())
}

func (r *repo) close() error { return r.fs.close() }

// current returns the name of the current branch, or "detached at" and a short hash.
func (r *repo) current() (string, error) {
	head, err := r.git.Reference(plumbing.HEAD, false)
	switch {
	case err != nil:
		return "", err
	case head.Type() == plumbing.SymbolicReference:
		return head.Target().Short(), nil
	}
	return "detached at " + head.Hash().String()[:7], nil
}

// head returns the latest commit, or nil if there is none.
func (r *repo) head() (*object.Commit, error) {
	ref, err := r.git.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r.git.CommitObject(ref.Hash())
}

// walk calls f with the latest commits along the first parents, the latest first and at
// most limit, until f returns false.
func (r *repo) walk(limit int, f func(*object.Commit) bool) error {
	c, err := r.head()
	for n := 0; err == nil && c != nil && n < limit && f(c); n++ {
		if err = r.fs.ctx.Err(); err != nil {
			return err
		}
		if c.NumParents() == 0 {
			return nil
		}
		c, err = c.Parent(0)
	}
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil // end of a shallow clone
	}
	return err
}

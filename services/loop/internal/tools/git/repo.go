// Package git provides git operations on an agent's folder as a library. It starts no
// programs, runs no hooks and reads no settings of the machine. No content of a
// repository can make it read or write outside the agent's folder. Remotes are reached
// over https, and in tests over http, only.
//
// Package git must not decide whether an operation is allowed.
package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/anima-run/anima/pkg/api"
)

// Who is the author of a commit, with its time.
type Who struct {
	Name, Email string
	At          time.Time
}

func (w Who) signature() *object.Signature {
	return &object.Signature{Name: w.Name, Email: w.Email, When: w.At.UTC()}
}

// Repo is a repository that is open for one operation. It is not safe for concurrent use.
type Repo struct {
	git  *git.Repository
	tree *git.Worktree
	fs   *fsys
	free func()
}

// busy has one token for each workspace in use, because go-git does no locking.
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

// Within returns a path relative to the workspace; "" and the workspace itself are ".".
// Errors: Invalid for a path outside.
func Within(workspace, name string) (string, error) {
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

// Open opens the repository in a folder of a workspace. If the workspace itself has no
// repository, Open creates it. The caller must call Close. Errors: NotFound if another
// folder is missing or has no repository.
func Open(ctx context.Context, workspace, name string) (*Repo, error) {
	at, err := Within(workspace, name)
	if err != nil {
		return nil, err
	}
	free, err := take(ctx, workspace)
	if err != nil {
		return nil, err
	}
	d := &disk{ctx: ctx}
	r, err := open(d, workspace, at)
	if err != nil {
		free()
		return nil, errors.Join(err, d.close())
	}
	r.free = free
	return r, nil
}

func open(d *disk, workspace, at string) (*Repo, error) {
	top, err := d.open(os.OpenRoot(workspace))
	if err != nil {
		return nil, fmt.Errorf("open the workspace: %w", err)
	}
	folder := top
	if at != "." {
		if folder, err = d.open(top.root.OpenRoot(at)); err != nil {
			return nil, api.Errorf(api.NotFound, "there is no folder %s", at)
		}
	}
	_, err = folder.Lstat(".git")
	if err != nil && at != "." {
		return nil, &api.Error{Code: api.NotFound, Message: at + " is no repository", Next: "leave the path out to use the one of your folder"}
	}
	made := err != nil
	dot, err := folder.Chroot(".git")
	if err != nil {
		return nil, fmt.Errorf("open .git: %w", err)
	}
	store := filesystem.NewStorage(dot, cache.NewObjectLRU(16*cache.MiByte))
	r := &Repo{fs: folder}
	if r.git, err = git.Open(store, folder); errors.Is(err, git.ErrRepositoryNotExists) && at == "." {
		r.git, err = git.InitWithOptions(store, folder, git.InitOptions{DefaultBranch: "refs/heads/main"})
		made = true
	}
	if err != nil {
		return nil, fmt.Errorf("open the repository: %w", err)
	}
	if r.tree, err = r.git.Worktree(); err != nil {
		return nil, fmt.Errorf("open the repository: %w", err)
	}
	// The temporary files of commands are not part of the work. The pattern is also
	// written to info/exclude for the program git; go-git does not read that file.
	r.tree.Excludes = append(r.tree.Excludes, gitignore.ParsePattern(scratch, nil))
	if made {
		f, err := dot.Create("info/exclude")
		if err != nil {
			return nil, err
		}
		_, err = f.Write([]byte(scratch + "\n"))
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Close releases the workspace for the next operation.
func (r *Repo) Close() error {
	err := r.fs.close()
	r.free()
	return err
}

// Change is a changed file with the status codes of git status --short.
type Change struct {
	Path              string
	Staging, Worktree byte
}

// Status returns the current branch and the changed files, sorted by path.
func (r *Repo) Status() (branch string, changes []Change, err error) {
	s, err := r.tree.Status()
	if err != nil {
		return "", nil, err
	}
	for name, f := range s {
		if f.Staging != git.Unmodified || f.Worktree != git.Unmodified {
			changes = append(changes, Change{name, byte(f.Staging), byte(f.Worktree)})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	branch, err = r.Branch()
	return branch, changes, err
}

// Branch returns the name of the current branch, or "detached at" and a short hash.
func (r *Repo) Branch() (string, error) {
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
func (r *Repo) head() (*object.Commit, error) {
	ref, err := r.git.Head()
	if errors.Is(err, plumbing.ErrReferenceNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return r.git.CommitObject(ref.Hash())
}

// Commit commits the staged changes; with all, it stages all changes before. It returns
// the hash, or "" if there is nothing to commit.
func (r *Repo) Commit(message string, all bool, by Who) (string, error) {
	if all {
		if err := r.tree.AddWithOptions(&git.AddOptions{All: true}); err != nil {
			return "", err
		}
	}
	h, err := r.tree.Commit(message, &git.CommitOptions{Author: by.signature()})
	if errors.Is(err, git.ErrEmptyCommit) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return h.String(), nil
}

// Record stages one file and commits all staged changes. It returns the hash, or "" if
// there is nothing to commit.
func (r *Repo) Record(name, message string, by Who) (string, error) {
	if err := r.tree.AddWithOptions(&git.AddOptions{Path: name, SkipStatus: true}); err != nil {
		// A missing file that is not tracked has nothing to record.
		if _, lerr := r.fs.Lstat(name); errors.Is(lerr, os.ErrNotExist) {
			return "", nil
		}
		return "", err
	}
	return r.Commit(message, false, by)
}

// Entry is one commit of a log.
type Entry struct {
	Hash, Author, Message string
	At                    time.Time
}

// Log returns the latest limit commits, the latest first.
func (r *Repo) Log(limit int) ([]Entry, error) {
	var out []Entry
	err := r.walk(limit, func(c *object.Commit) bool {
		out = append(out, Entry{c.Hash.String(), c.Author.Name, c.Message, c.Author.When.UTC()})
		return true
	})
	return out, err
}

// walk calls f with the latest commits along the first parents, at most limit, until f
// returns false.
func (r *Repo) walk(limit int, f func(*object.Commit) bool) error {
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

// Branches returns the names of the branches, sorted.
func (r *Repo) Branches() ([]string, error) {
	refs, err := r.git.Branches()
	if err != nil {
		return nil, err
	}
	var out []string
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		out = append(out, ref.Name().Short())
		return nil
	})
	slices.Sort(out)
	return out, err
}

// CreateBranch creates a branch at the current commit. If it exists at the same commit,
// nothing changes. Errors: Conflict if it exists at another commit; Invalid if there is
// no commit.
func (r *Repo) CreateBranch(name string) error {
	head, err := r.git.Head()
	if err != nil {
		return api.Errorf(api.Invalid, "there is no commit yet: commit something first")
	}
	ref := plumbing.NewBranchReferenceName(name)
	if old, err := r.git.Reference(ref, true); err == nil && old.Hash() != head.Hash() {
		return api.Errorf(api.Conflict, "there is a branch %s already", name)
	}
	return r.git.Storer.SetReference(plumbing.NewHashReference(ref, head.Hash()))
}

// Checkout switches to a branch. Errors: NotFound; Conflict if changes would be lost.
func (r *Repo) Checkout(name string) error {
	ref := plumbing.NewBranchReferenceName(name)
	if _, err := r.git.Reference(ref, true); err != nil {
		return api.Errorf(api.NotFound, "there is no branch %s", name)
	}
	lost := &api.Error{Code: api.Conflict, Message: "there are changes that are not committed", Next: "commit them first"}
	_, changes, err := r.Status()
	if err != nil {
		return err
	}
	to, err := r.git.ResolveRevision(plumbing.Revision(ref))
	if err != nil {
		return err
	}
	c, err := r.git.CommitObject(*to)
	if err != nil {
		return err
	}
	for _, change := range changes { // go-git checks for changes only after it has moved HEAD
		if _, err := c.File(change.Path); err == nil || change.Worktree != '?' {
			return lost
		}
	}
	return r.tree.Checkout(&git.CheckoutOptions{Branch: ref})
}

// DeleteBranch deletes a branch. A missing branch is not an error. Errors: Conflict for
// the current branch.
func (r *Repo) DeleteBranch(name string) error {
	if current, err := r.Branch(); err != nil || current == name {
		return api.Errorf(api.Conflict, "%s is the current branch", name)
	}
	return r.git.Storer.RemoveReference(plumbing.NewBranchReferenceName(name))
}

// Push pushes a branch to a remote; "" is the current branch. It uses the HTTP proxy if
// its URL is not empty. sent reports whether there was anything to push. Errors: NotFound
// if the branch or the remote is missing; Invalid if the remote's URL is not http or
// https; Conflict if the remote has commits that are missing here.
func (r *Repo) Push(remote, branch, proxy string, progress func([]byte)) (sent bool, err error) {
	if branch == "" {
		if branch, err = r.Branch(); err != nil {
			return false, err
		}
	}
	ref := plumbing.NewBranchReferenceName(branch)
	if _, err := r.git.Reference(ref, true); err != nil {
		return false, api.Errorf(api.NotFound, "there is no branch %s", branch)
	}
	known, err := r.git.Remote(remote)
	if err != nil {
		return false, &api.Error{Code: api.NotFound, Message: "there is no remote " + remote, Next: "clone the repository from where it should go to"}
	}
	// The agent may have written the settings, so other protocols are refused.
	urls := known.Config().URLs
	if len(urls) == 0 {
		return false, api.Errorf(api.Invalid, "the remote %s has no address", remote)
	}
	if err := checkURL(urls[0]); err != nil {
		return false, err
	}
	to := git.NewRemote(r.git.Storer, &config.RemoteConfig{Name: remote, URLs: urls[:1]})
	err = to.PushContext(r.fs.ctx, &git.PushOptions{
		RemoteName: remote, RefSpecs: []config.RefSpec{config.RefSpec(ref + ":" + ref)}, Progress: writer(progress),
		ProxyOptions: transport.ProxyOptions{URL: proxy},
	})
	switch {
	case errors.Is(err, git.NoErrAlreadyUpToDate):
		return false, nil
	case err != nil && strings.Contains(err.Error(), "non-fast-forward"):
		return false, &api.Error{Code: api.Conflict, Message: "the remote has commits that are not here", Next: "clone it anew and put your changes on top"}
	}
	return err == nil, err
}

// checkURL accepts http and https URLs without a user or password. Errors: Invalid.
func checkURL(url string) error {
	rest, ok := strings.CutPrefix(url, "https://")
	if !ok {
		rest, ok = strings.CutPrefix(url, "http://")
	}
	host, _, _ := strings.Cut(rest, "/")
	if !ok || host == "" || strings.Contains(host, "@") {
		return api.Errorf(api.Invalid, "only web addresses without a user name or password are spoken to")
	}
	return nil
}

// Clone clones a repository into a new folder of a workspace, through the HTTP proxy if
// its URL is not empty. A depth of 0 means the complete history. On failure it removes
// what it has written. Errors: Invalid for the path or the URL; Conflict if the folder
// exists.
func Clone(ctx context.Context, workspace, name, url, proxy string, depth int, progress func([]byte)) (err error) {
	at, err := Within(workspace, name)
	if err != nil {
		return err
	}
	if err := checkURL(url); err != nil {
		return err
	}
	free, err := take(ctx, workspace)
	if err != nil {
		return err
	}
	defer free()
	d := &disk{ctx: ctx}
	defer func() { err = errors.Join(err, d.close()) }()
	top, err := d.open(os.OpenRoot(workspace))
	if err != nil {
		return fmt.Errorf("open the workspace: %w", err)
	}
	if _, err := top.Lstat(at); err == nil {
		return &api.Error{Code: api.Conflict, Message: at + " is there already", Next: "clone into a folder of another name"}
	}
	if err := top.parents(at); err != nil {
		return err
	}
	// A temporary name in the same folder, so that the final folder is always a complete
	// repository.
	half := path.Join(path.Dir(at), ".clone-"+path.Base(at))
	if err := top.root.RemoveAll(half); err != nil { // left by an interrupted clone
		return err
	}
	if err := top.root.Mkdir(half, 0o755); err != nil {
		return err
	}
	folder, err := d.open(top.root.OpenRoot(half))
	if err == nil {
		var dot *fsys
		if err = folder.root.Mkdir(".git", 0o755); err == nil {
			dot, err = d.open(folder.root.OpenRoot(".git"))
		}
		if err == nil {
			_, err = git.CloneContext(ctx, filesystem.NewStorage(dot, cache.NewObjectLRU(16*cache.MiByte)), folder, &git.CloneOptions{
				URL: url, Depth: depth, Progress: writer(progress), ProxyOptions: transport.ProxyOptions{URL: proxy},
			})
		}
	}
	if err == nil {
		err = top.root.Rename(half, at)
	}
	if err != nil {
		return errors.Join(err, top.root.RemoveAll(half))
	}
	return nil
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	if w != nil {
		w(p)
	}
	return len(p), nil
}

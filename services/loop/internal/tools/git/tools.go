package git

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/tools"
)

// Tools returns the tools for the repository of the agent's folder and for repositories
// within it, and those that record the agent's edits of its own files. Each call is
// executed in a process of its own.
func Tools(cfg tools.Config) []engine.Tool {
	all := inProcess(route{})
	for i, t := range all {
		all[i].Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
			if err := t.Check(c.Args); err != nil {
				return engine.Output{}, err
			}
			return run(ctx, cfg, t.Name, c, memoryOf(debug.SetMemoryLimit(-1)))
		}
	}
	return all
}

// inProcess returns the tools that are executed in this process.
func inProcess(by route) []engine.Tool {
	return []engine.Tool{
		onRepo("git_status", nil, (*repo).status),
		onRepo("git_diff", nil, func(r *repo, _ engine.Call, a catalog.Args) (string, error) { return r.diff(a.Bool("staged", false)) }),
		onRepo("git_commit", ownMessage, func(r *repo, c engine.Call, a catalog.Args) (string, error) {
			hash, err := r.commit(a.String("message"), a.Bool("add_all", true), author(c))
			if err != nil || hash != "" {
				return "committed as " + hash, err
			}
			return "nothing to commit", nil
		}),
		onRepo("git_log", nil, (*repo).log),
		onRepo("git_branch", namedBranch, (*repo).branch),
		remote(by, "git_push", push),
		remote(by, "git_clone", clone),
		engine.Builtin("edit_own_file", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
			return inRepo(ctx, c, "", func(r *repo) (string, error) { return r.edit(c, a) }) // its path is a file
		}),
		onRepo("revert_last_edit", nil, (*repo).revert),
	}
}

// onRepo returns a tool that opens the repository of its argument path.
func onRepo(name string, check func(catalog.Args) error, do func(*repo, engine.Call, catalog.Args) (string, error)) engine.Tool {
	return engine.Builtin(name, check, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		return inRepo(ctx, c, a.String("path"), func(r *repo) (string, error) { return do(r, c, a) })
	})
}

// inRepo opens the repository of a folder for do, which returns the result of the call.
func inRepo(ctx context.Context, c engine.Call, folder string, do func(*repo) (string, error)) (out engine.Output, err error) {
	r, err := open(ctx, c.Agent.Workspace, folder)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	text, err := do(r)
	if err == nil {
		out.Text = text
	}
	return out, err
}

// author returns the author of an agent's commits. The time is that of the completion, so
// a repeated commit has the same hash.
func author(c engine.Call) *object.Signature {
	return &object.Signature{Name: c.Agent.Name, Email: c.Agent.ID + "@anima.invalid", When: time.UnixMicro(c.At).UTC()}
}

func (r *repo) status(engine.Call, catalog.Args) (string, error) {
	changes, err := r.changes()
	if err != nil {
		return "", err
	}
	current, err := r.current()
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n", current)
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		fmt.Fprintf(&b, "%c%c %s\n", changes[name].Staging, changes[name].Worktree, name)
	}
	if len(changes) == 0 {
		b.WriteString("no changes\n")
	}
	return b.String(), err
}

// changes returns the status of the changed files.
func (r *repo) changes() (git.Status, error) {
	s, err := r.tree.Status()
	maps.DeleteFunc(s, func(_ string, f *git.FileStatus) bool {
		return f.Staging == git.Unmodified && f.Worktree == git.Unmodified
	})
	return s, err
}

// ownMessage refuses messages that contain a trailer of recorded edits.
func ownMessage(a catalog.Args) error {
	for line := range strings.Lines(a.String("message")) {
		if strings.HasPrefix(strings.TrimSpace(line), "Anima-") {
			return errors.New("lines that begin with Anima- are reserved for recorded edits")
		}
	}
	return nil
}

// commit commits the staged changes; with all, it stages all changes before. It returns
// the hash, or "" if there is nothing to commit.
func (r *repo) commit(message string, all bool, by *object.Signature) (string, error) {
	if all {
		if err := r.tree.AddWithOptions(&git.AddOptions{All: true}); err != nil {
			return "", err
		}
	}
	h, err := r.tree.Commit(message, &git.CommitOptions{Author: by})
	if errors.Is(err, git.ErrEmptyCommit) {
		return "", nil
	}
	return h.String(), err
}

func (r *repo) log(_ engine.Call, a catalog.Args) (string, error) {
	var b strings.Builder
	err := r.walk(int(a.Int("limit", 10)), func(c *object.Commit) bool {
		subject, _, _ := strings.Cut(c.Message, "\n")
		fmt.Fprintf(&b, "%s %s %s: %s\n", c.Hash.String()[:10], c.Author.When.UTC().Format(time.RFC3339), c.Author.Name, subject)
		return true
	})
	if b.Len() == 0 {
		b.WriteString("no commits yet")
	}
	return b.String(), err
}

func namedBranch(a catalog.Args) error {
	if a.String("action") != "list" && a.String("branch_name") == "" {
		return errors.New("argument branch_name is missing")
	}
	return nil
}

func (r *repo) branch(_ engine.Call, a catalog.Args) (string, error) {
	name := a.String("branch_name")
	current, err := r.current()
	if err != nil {
		return "", err
	}
	switch ref := plumbing.NewBranchReferenceName(name); a.String("action") {
	case "create":
		return "created " + name, r.createBranch(ref)
	case "checkout":
		return "now on " + name, r.checkout(ref)
	case "delete": // a missing branch is not an error
		if current == name {
			return "", api.Errorf(api.Conflict, "%s is the current branch", name)
		}
		return "deleted " + name, r.git.Storer.RemoveReference(ref)
	}
	refs, err := r.git.Branches()
	if err != nil {
		return "", err
	}
	var all []string
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		all = append(all, ref.Name().Short()+"\n")
		return nil
	})
	slices.Sort(all)
	return "current: " + current + "\n" + strings.Join(all, ""), err
}

// createBranch creates a branch at the current commit. If it exists at the same commit,
// nothing changes. Errors: Conflict if it exists at another commit; Invalid if there is
// no commit.
func (r *repo) createBranch(ref plumbing.ReferenceName) error {
	head, err := r.git.Head()
	if err != nil {
		return api.Errorf(api.Invalid, "there is no commit yet: commit something first")
	}
	if old, err := r.git.Reference(ref, true); err == nil && old.Hash() != head.Hash() {
		return api.Errorf(api.Conflict, "there is a branch %s already", ref.Short())
	}
	return r.git.Storer.SetReference(plumbing.NewHashReference(ref, head.Hash()))
}

// checkout switches to a branch. Errors: NotFound; Conflict if changes would be lost.
func (r *repo) checkout(ref plumbing.ReferenceName) error {
	to, err := r.git.Reference(ref, true)
	if err != nil {
		return api.Errorf(api.NotFound, "there is no branch %s", ref.Short())
	}
	c, err := r.git.CommitObject(to.Hash())
	if err != nil {
		return err
	}
	changes, err := r.changes()
	if err != nil {
		return err
	}
	for name, f := range changes { // go-git checks for changes only after it has moved HEAD
		if _, err := c.File(name); err == nil || f.Worktree != git.Untracked {
			return &api.Error{Code: api.Conflict, Message: "there are changes that are not committed", Next: "commit them first"}
		}
	}
	return r.tree.Checkout(&git.CheckoutOptions{Branch: ref})
}

package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
)

// remoteTime is the time limit of a call that contacts a remote repository.
const remoteTime = 5 * time.Minute

// gitTools returns the tools for the repository of the agent's folder, and for
// repositories within it.
func gitTools(cfg Config) []engine.Tool {
	push := onRepo("git_push", nil, cfg.gitPush)
	push.Timeout, push.Offered = remoteTime, hasNetwork
	clone := engine.Builtin("git_clone", nil, cfg.gitClone)
	clone.Timeout, clone.Offered = remoteTime, hasNetwork
	return []engine.Tool{
		onRepo("git_status", nil, gitStatus),
		onRepo("git_diff", nil, gitDiff),
		onRepo("git_commit", ownMessage, gitCommit),
		onRepo("git_log", nil, gitLog),
		push,
		onRepo("git_branch", namedBranch, gitBranch),
		clone,
	}
}

func hasNetwork(a engine.Agent) bool { return a.Network }

// who returns the author of an agent's commits. The time is that of the completion, so a
// repeated commit has the same hash.
func who(c engine.Call) git.Who {
	return git.Who{Name: c.Agent.Name, Email: c.Agent.ID + "@anima.invalid", At: time.UnixMicro(c.At)}
}

// onRepo returns a tool that opens the repository of its argument path.
func onRepo(name string, check func(catalog.Args) error, do func(*git.Repo, engine.Call, catalog.Args) (string, error)) engine.Tool {
	return engine.Builtin(name, check, func(ctx context.Context, c engine.Call, a catalog.Args) (out engine.Output, err error) {
		r, err := git.Open(ctx, c.Agent.Workspace, a.String("path"))
		if err != nil {
			return engine.Output{}, err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		out.Text, err = do(r, c, a)
		return out, err
	})
}

func gitStatus(r *git.Repo, _ engine.Call, _ catalog.Args) (string, error) {
	branch, changes, err := r.Status()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n", branch)
	for _, c := range changes {
		fmt.Fprintf(&b, "%c%c %s\n", c.Staging, c.Worktree, c.Path)
	}
	if len(changes) == 0 {
		b.WriteString("nothing has changed\n")
	}
	return b.String(), nil
}

func gitDiff(r *git.Repo, _ engine.Call, a catalog.Args) (string, error) {
	text, err := r.Diff(a.Bool("staged", false))
	if text == "" && err == nil {
		text = "no differences in files that git knows"
	}
	return text, err
}

// ownMessage refuses messages that contain a trailer of recorded edits.
func ownMessage(a catalog.Args) error {
	for line := range strings.Lines(a.String("message")) {
		if strings.HasPrefix(strings.TrimSpace(line), "Anima-") {
			return errors.New("lines that begin with Anima- are not yours to write")
		}
	}
	return nil
}

func gitCommit(r *git.Repo, c engine.Call, a catalog.Args) (string, error) {
	hash, err := r.Commit(a.String("message"), a.Bool("add_all", true), who(c))
	if err != nil {
		return "", err
	}
	if hash == "" {
		return "nothing to commit", nil
	}
	return "committed as " + hash, nil
}

func gitLog(r *git.Repo, _ engine.Call, a catalog.Args) (string, error) {
	entries, err := r.Log(int(a.Int("limit", 10)))
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "no commits yet", nil
	}
	var b strings.Builder
	for _, e := range entries {
		subject, _, _ := strings.Cut(e.Message, "\n")
		fmt.Fprintf(&b, "%s %s %s: %s\n", e.Hash[:10], e.At.Format(time.RFC3339), e.Author, subject)
	}
	return b.String(), nil
}

func (cfg Config) gitPush(r *git.Repo, c engine.Call, a catalog.Args) (string, error) {
	if err := needsNetwork(c.Agent); err != nil {
		return "", err
	}
	remote := a.String("remote")
	if remote == "" {
		remote = "origin"
	}
	tail := tail{say: c.Report}
	proxy, revoke := cfg.Egress.Grant(c.Agent.ID, true)
	defer revoke()
	sent, err := r.Push(remote, a.String("branch"), proxy, tail.add)
	if err != nil {
		return "", err
	}
	if !sent {
		return remote + " has everything already", nil
	}
	return "pushed to " + remote, nil
}

// needsNetwork returns an error if the agent's sandbox has no network. Policy checks
// this, too; these tools run in the process of loop, which has a network.
func needsNetwork(a engine.Agent) error {
	if a.Network {
		return nil
	}
	return &api.Error{Code: api.Denied, Message: "this agent's sandbox has no network", Next: "ask the creator to grant it"}
}

func namedBranch(a catalog.Args) error {
	if a.String("action") != "list" && a.String("branch_name") == "" {
		return errors.New("argument branch_name is missing")
	}
	return nil
}

func gitBranch(r *git.Repo, _ engine.Call, a catalog.Args) (string, error) {
	name := a.String("branch_name")
	switch a.String("action") {
	case "create":
		return "created " + name, r.CreateBranch(name)
	case "checkout":
		return "now on " + name, r.Checkout(name)
	case "delete":
		return "deleted " + name, r.DeleteBranch(name)
	}
	all, err := r.Branches()
	if err != nil {
		return "", err
	}
	current, err := r.Branch()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "current: %s\n", current)
	for _, name := range all {
		fmt.Fprintln(&b, name)
	}
	return b.String(), nil
}

func (cfg Config) gitClone(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	if err := needsNetwork(c.Agent); err != nil {
		return engine.Output{}, err
	}
	tail := tail{say: c.Report}
	proxy, revoke := cfg.Egress.Grant(c.Agent.ID, true)
	defer revoke()
	if err := git.Clone(ctx, c.Agent.Workspace, a.String("path"), a.String("url"), proxy, int(a.Int("depth", 0)), tail.add); err != nil {
		return engine.Output{}, err
	}
	return engine.Output{Text: "cloned into " + a.String("path")}, nil
}

package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/tools"
)

// remoteTime is the time limit of a call that contacts a remote repository.
const remoteTime = 5 * time.Minute

// route is how a call reaches a remote repository.
type route struct {
	proxy    string // URL; "" means a direct connection
	progress progress
}

// progress passes on what the remote reports; nil discards it.
type progress func([]byte)

func (p progress) Write(text []byte) (int, error) {
	if p != nil {
		p(text)
	}
	return len(text), nil
}

// remote returns a tool that contacts a remote repository.
func remote(by route, name string, do func(context.Context, engine.Call, catalog.Args, route) (engine.Output, error)) engine.Tool {
	t := engine.Builtin(name, nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		if err := tools.NeedNetwork(c.Agent, "", "ask the creator to grant it"); err != nil {
			return engine.Output{}, err
		}
		return do(ctx, c, a, by)
	})
	t.Timeout, t.Offered = remoteTime, func(a engine.Agent) bool { return a.Network }
	return t
}

func push(ctx context.Context, c engine.Call, a catalog.Args, by route) (engine.Output, error) {
	name := a.String("remote")
	if name == "" {
		name = "origin"
	}
	return inRepo(ctx, c, a.String("path"), func(r *repo) (string, error) {
		err := r.push(name, a.String("branch"), by)
		if errors.Is(err, git.NoErrAlreadyUpToDate) {
			return name + " is up to date", nil
		}
		return "pushed to " + name, err
	})
}

// push pushes a branch to a remote; "" is the current branch. Errors: NotFound if the
// branch or the remote is missing; Invalid if the remote's URL is not http or https;
// Conflict if the remote has commits that are missing here.
func (r *repo) push(name, branch string, by route) (err error) {
	if branch == "" {
		if branch, err = r.current(); err != nil {
			return err
		}
	}
	ref := plumbing.NewBranchReferenceName(branch)
	if _, err := r.git.Reference(ref, true); err != nil {
		return api.Errorf(api.NotFound, "there is no branch %s", branch)
	}
	known, err := r.git.Remote(name)
	if err != nil {
		return &api.Error{Code: api.NotFound, Message: "there is no remote " + name, Next: "clone the repository from its remote"}
	}
	// The agent may have written the settings, so other protocols are refused.
	urls := known.Config().URLs
	if len(urls) == 0 {
		return api.Errorf(api.Invalid, "the remote %s has no address", name)
	}
	if err := checkURL(urls[0]); err != nil {
		return err
	}
	to := git.NewRemote(r.git.Storer, &config.RemoteConfig{Name: name, URLs: urls[:1]})
	err = to.PushContext(r.fs.ctx, &git.PushOptions{
		RemoteName: name, RefSpecs: []config.RefSpec{config.RefSpec(ref + ":" + ref)}, Progress: by.progress, ProxyOptions: transport.ProxyOptions{URL: by.proxy},
	})
	if err != nil && strings.Contains(err.Error(), "non-fast-forward") {
		return &api.Error{Code: api.Conflict, Message: "the remote has commits that this repository lacks", Next: "clone it again and apply your changes there"}
	}
	return err
}

// checkURL accepts http and https URLs without a user or password. Errors: Invalid.
func checkURL(url string) error {
	scheme, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	if scheme != "https" && scheme != "http" || host == "" || strings.Contains(host, "@") {
		return api.Errorf(api.Invalid, "the URL must be http or https, without a user name or password")
	}
	return nil
}

// clone clones a repository into a new folder of a workspace. It clones into the folder
// halfOf next to it, so that the new folder is always a complete repository, and removes
// that folder on failure; see clearHalf for a process that was ended. Errors: Invalid for the path or the URL; Conflict if the folder
// exists.
func clone(ctx context.Context, c engine.Call, a catalog.Args, by route) (out engine.Output, err error) {
	at, err := within(c.Agent.Workspace, a.String("path"))
	if err != nil {
		return out, err
	}
	if err := checkURL(a.String("url")); err != nil {
		return out, err
	}
	d := &disk{ctx: ctx}
	defer func() { err = errors.Join(err, d.close()) }()
	top, err := d.open(os.OpenRoot(c.Agent.Workspace))
	if err != nil {
		return out, fmt.Errorf("open the workspace: %w", err)
	}
	if _, err := top.Lstat(at); err == nil {
		return out, &api.Error{Code: api.Conflict, Message: at + " is there already", Next: "clone into a folder of another name"}
	}
	if err := top.parents(at); err != nil {
		return out, err
	}
	half := halfOf(at)
	if err := top.root.RemoveAll(half); err != nil { // left by an interrupted clone
		return out, err
	}
	if err := top.root.Mkdir(half, 0o755); err != nil {
		return out, err
	}
	err = download(top, half, git.CloneOptions{URL: a.String("url"), Depth: int(a.Int("depth", 0)), Progress: by.progress, ProxyOptions: transport.ProxyOptions{URL: by.proxy}})
	if err == nil {
		err = top.root.Rename(half, at)
	}
	if err != nil {
		return out, errors.Join(err, top.root.RemoveAll(half))
	}
	return engine.Output{Text: "cloned into " + a.String("path")}, nil
}

// halfOf returns the folder of a clone that is not complete.
func halfOf(at string) string { return path.Join(path.Dir(at), ".clone-"+path.Base(at)) }

// clearHalf removes what a clone has left whose process was ended: it counts towards the
// quota, and beyond that the agent could not remove it by a command.
func clearHalf(c engine.Call) error {
	spec, _ := catalog.Named("git_clone")
	a, err := spec.Parse(c.Args)
	if err != nil {
		return err
	}
	at, err := within(c.Agent.Workspace, a.String("path"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	release, err := lock(ctx, c.Agent.Workspace)
	if err != nil {
		return nil //nolint:nilerr // another replica uses the workspace: its clone may have the same folder
	}
	defer release()
	return sandbox.RemoveAll(c.Agent.Workspace, halfOf(at))
}

// download clones a repository into an empty folder of top.
func download(top *fsys, folder string, o git.CloneOptions) error {
	tree, err := top.open(top.root.OpenRoot(folder))
	if err != nil {
		return err
	}
	dot, err := tree.Chroot(".git")
	if err != nil {
		return err
	}
	_, err = git.CloneContext(top.ctx, filesystem.NewStorage(dot, cache.NewObjectLRU(16*cache.MiByte)), tree, &o)
	return err
}

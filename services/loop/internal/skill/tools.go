package skill

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/frontmatter"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
	"github.com/anima-run/anima/services/loop/internal/tools"
)

// Time limits of an installation (docs/reference/loop.md, Skills).
const (
	fetchTimeout = 30 * time.Second
	cloneTimeout = 60 * time.Second
)

// Tools returns install_skill, list_skills, create_skill and remove_skill. They write
// only the agent's workspace, and replace whole files or folders. After a crash a skill
// is unchanged, or it is missing until the call is repeated.
func Tools(cfg tools.Config) []engine.Tool {
	named := func(a catalog.Args) error { return checkName(a.String("name")) }
	install := engine.Builtin("install_skill", checkInstall, installer{cfg}.install)
	install.Timeout = sandbox.StartTimeout + cloneTimeout + 5*time.Second // after the tool's own limits, whose errors have more detail
	return []engine.Tool{
		install,
		engine.Builtin("list_skills", nil, list),
		engine.Builtin("create_skill", named, func(_ context.Context, c engine.Call, a catalog.Args) (engine.Output, error) { return create(c, a) }),
		engine.Builtin("remove_skill", named, remove),
	}
}

func checkInstall(a catalog.Args) error {
	if err := checkName(a.String("name")); err != nil {
		return err
	}
	switch source := a.String("source"); {
	case source == "self" && (a.String("description") == "" || a.String("instructions") == ""):
		return errors.New("a skill of your own needs description and instructions")
	case source != "self" && a.String("url") == "":
		return fmt.Errorf("source %s needs url", source)
	}
	return nil
}

// installer installs skills from URLs and git repositories.
type installer struct{ tools.Config }

func (x installer) install(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	source, name := a.String("source"), a.String("name")
	if source == "self" {
		return create(c, a)
	}
	err := tools.NeedNetwork(c.Agent, ", so nothing can be fetched", "write the skill with create_skill, or ask the creator for sandbox.network in AGENT.md")
	if err != nil {
		return engine.Output{}, err
	}
	u, err := x.Outbound.Parse(a.String("url"))
	if err != nil {
		return engine.Output{}, fmt.Errorf("url: %w", err)
	}
	origin := source + " " + u.Scheme + "://" + u.Host + u.Path // without the query, which may contain a secret
	if source == "git" {
		return installed(c, name, origin, func(into string) error {
			return x.clone(ctx, c.Agent, u.String(), u.Scheme, name, into)
		})
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	src, err := x.fetch(ctx, u.String())
	if err != nil {
		return engine.Output{}, err
	}
	return installed(c, name, origin, func(into string) error { return sandbox.WriteFile(c.Agent.Workspace, path.Join(into, file), src) })
}

// create installs a skill that the agent has written.
func create(c engine.Call, a catalog.Args) (engine.Output, error) {
	src, err := render(a.String("name"), a.String("description"), a.String("instructions"))
	if err != nil {
		return engine.Output{}, err
	}
	return installed(c, a.String("name"), "the agent itself", func(into string) error {
		return sandbox.WriteFile(c.Agent.Workspace, path.Join(into, file), src)
	})
}

// installed makes a skill's folder at a temporary place with fill, and moves it to its
// place if the skill has no faults.
func installed(c engine.Call, name, origin string, fill func(into string) error) (engine.Output, error) {
	workspace := c.Agent.Workspace
	parent := path.Join(".tmp", "skill-"+rand.Text()) // .tmp is the TMPDIR of the sandbox
	defer func() { _ = sandbox.RemoveAll(workspace, parent) }()
	into := path.Join(parent, name)
	if err := fill(into); err != nil {
		return engine.Output{}, err
	}
	src, err := sandbox.ReadFile(workspace, path.Join(into, file), MaxFile)
	if err != nil {
		return engine.Output{}, err
	}
	s, faults := Parse(src, name)
	if len(faults) > 0 {
		return engine.Output{}, fmt.Errorf("the skill is not installed, its %s has faults:\n%s", file, lines(faults))
	}
	st, err := json.Marshal(state{Origin: origin})
	if err != nil {
		return engine.Output{}, err
	}
	if err := sandbox.WriteFile(workspace, path.Join(into, stateFile), st); err != nil {
		return engine.Output{}, err
	}
	if err := sandbox.Replace(workspace, into, path.Join(folder, name)); err != nil {
		return engine.Output{}, err
	}
	f := Found{Skill: s, Missing: missing(workspace, s)}
	return engine.Output{Text: fmt.Sprintf("installed the skill %s: %s", name, sanitize.Instructions(f.Status()))}, nil
}

// fetch downloads a SKILL.md.
func (x installer) fetch(ctx context.Context, address string) (_ []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, safehttp.Explain(err)
	}
	client := x.Outbound.Client()
	client.Transport = telemetry.NewTransport(client.Transport)
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the skill cannot be fetched: %w", safehttp.Explain(err))
	}
	defer func() { _ = res.Body.Close() }() // the body is only read
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the skill cannot be fetched: the server answered %d", res.StatusCode)
	}
	src, err := io.ReadAll(io.LimitReader(res.Body, MaxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the skill cannot be fetched: %w", err)
	case len(src) > MaxFile:
		return nil, fmt.Errorf("the skill has more than %d bytes", MaxFile)
	}
	return src, nil
}

// clone clones a repository in the sandbox and moves the skill's folder to into: the
// repository itself, or skills/<name> or <name> in it.
func (x installer) clone(ctx context.Context, agent engine.Agent, address, protocol, name, into string) error {
	workspace := agent.Workspace
	at := path.Join(path.Dir(into), ".clone") // not a valid name of a skill
	spec, revoke := x.Confine(agent, sandbox.Spec{
		Timeout: cloneTimeout, Limits: sandbox.Limits{FileSize: 64 << 20},
		// git must use no other protocol by a redirect or a submodule, ask no question,
		// and execute no program of the repository.
		Command: "GIT_ALLOW_PROTOCOL=" + protocol + " GIT_TERMINAL_PROMPT=0 exec git -c core.hooksPath=/dev/null" +
			" clone --quiet --depth 1 --single-branch --no-tags -- " + quoted(address) + " " + quoted(at),
	})
	defer revoke()
	res, err := sandbox.Run(ctx, spec)
	switch {
	case err != nil:
		return err
	case res.Stopped != nil:
		return fmt.Errorf("the repository was not fetched: %v", res.Stopped) //nolint:errorlint // Unavailable would make the run wait
	case res.TimedOut:
		return fmt.Errorf("the repository took longer than %s: %w", cloneTimeout, context.DeadlineExceeded)
	case res.ExitCode != 0:
		return fmt.Errorf("git cannot fetch the repository: %s", sanitize.Text(sanitize.First(strings.TrimSpace(res.Stderr), 500)))
	}
	if err := sandbox.RemoveAll(workspace, path.Join(at, ".git")); err != nil {
		return err
	}
	for _, dir := range []string{path.Join(at, "skills", name), path.Join(at, name), at} {
		if _, err := sandbox.ReadFile(workspace, path.Join(dir, file), MaxFile); err == nil {
			return sandbox.Replace(workspace, dir, into)
		}
	}
	return fmt.Errorf("the repository has no %s of at most %d bytes, neither at its top nor in skills/%s or %s", file, MaxFile, name, name)
}

// quoted returns a word quoted for a shell command.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func list(_ context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
	all, err := List(c.Agent.Workspace)
	if err != nil {
		return engine.Output{}, err
	}
	if len(all) == 0 {
		return engine.Output{Text: "you have no skills"}, nil
	}
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintf(&b, "%s: %s; from %s", f.Name, f.Status(), f.Origin)
		if f.Description != "" {
			fmt.Fprintf(&b, "; %s", f.Description)
		}
		if len(f.Faults) > 0 {
			b.WriteString("\n" + lines(f.Faults))
		}
		b.WriteString("\n")
	}
	return engine.Output{Text: strings.TrimSpace(sanitize.Instructions(b.String()))}, nil
}

// remove disables a skill, or deletes its folder.
func remove(_ context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	name, workspace := a.String("name"), c.Agent.Workspace
	at := path.Join(folder, name)
	if a.Bool("delete_files", false) {
		if err := sandbox.RemoveAll(workspace, at); err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: "removed the skill " + name}, nil
	}
	f := read(workspace, name, &sandbox.Made[struct{}]{})
	if len(f.Faults) > 0 {
		if _, _, err := sandbox.ReadDir(workspace, at, 1); err != nil {
			return engine.Output{}, fmt.Errorf("there is no skill %s; list_skills shows yours", name)
		}
	}
	st, err := json.Marshal(state{Origin: f.Origin, Disabled: true})
	if err != nil {
		return engine.Output{}, err
	}
	if err := sandbox.WriteFile(workspace, path.Join(at, stateFile), st); err != nil {
		return engine.Output{}, err
	}
	return engine.Output{Text: fmt.Sprintf("disabled the skill %s; its files are kept in %s, and delete_files removes them", name, at)}, nil
}

func lines(faults []frontmatter.Fault) string {
	all := make([]string, len(faults))
	for i, f := range faults {
		all[i] = f.String()
	}
	return strings.Join(all, "\n")
}

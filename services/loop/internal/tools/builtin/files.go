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
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/tools"
)

func readFile() engine.Tool {
	return engine.Builtin("read_file", nil, func(_ context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		data, err := sandbox.ReadFile(c.Agent.Workspace, a.String("path"), sandbox.MaxFile)
		return engine.Output{Text: string(data)}, err
	})
}

func writeFile() engine.Tool {
	return engine.Builtin("write_file", nil, func(_ context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		path, content := a.String("path"), a.String("content")
		if err := sandbox.WriteFile(c.Agent.Workspace, path, []byte(content)); err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: fmt.Sprintf("wrote %d bytes to %s", len(content), path)}, nil
	})
}

// Limits of commands.
const (
	maxOutput   = 4 << 20 // bytes that are kept of stdout and of stderr
	npmTime     = 5 * time.Minute
	margin      = sandbox.StartTimeout + 5*time.Second // of the executor's time limit over that of a command
	maxExecTime = 600*time.Second + margin             // exceeds the longest timeout of a command
)

func execTool(cfg tools.Config) engine.Tool {
	t := engine.Builtin("exec", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		limit := min(c.Agent.ExecTimeoutS, int(a.Int("timeout", int64(c.Agent.ExecTimeoutS))))
		// Without MayRemove an agent could never delete what has used up its quota.
		return run(ctx, cfg, c, sandbox.Spec{Command: a.String("command"), MayRemove: true}, limit)
	})
	t.Timeout = maxExecTime
	return t
}

func installNPM(cfg tools.Config) engine.Tool {
	t := engine.Builtin("install_npm_package", onePackage, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		if err := tools.NeedNetwork(c.Agent, "", "ask the creator to grant it"); err != nil {
			return engine.Output{}, err
		}
		// Install scripts are disabled, because the package has not been reviewed yet.
		return run(ctx, cfg, c, sandbox.Spec{Command: "npm install --ignore-scripts --no-audit --no-fund -- '" + a.String("package") + "'"}, int(npmTime.Seconds()))
	})
	t.Timeout = npmTime + margin
	t.Offered = func(a engine.Agent) bool { return cfg.NPM && a.Network }
	return t
}

// onePackage accepts names that are one shell word in single quotes and not an option.
func onePackage(a catalog.Args) error {
	name := a.String("package")
	if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@._/-") != "" || strings.HasPrefix(name, "-") || strings.Contains(name, "..") {
		return errors.New("package must be a name like express or @scope/name")
	}
	return nil
}

// run runs the command of spec for an agent, for at most limit seconds.
func run(ctx context.Context, cfg tools.Config, c engine.Call, spec sandbox.Spec, limit int) (engine.Output, error) {
	spec.Timeout, spec.MaxOutput, spec.Wrote = time.Duration(limit)*time.Second, maxOutput, tools.Tail(c.Report)
	spec, revoke := cfg.Confine(c.Agent, spec)
	defer revoke()
	r, err := sandbox.Run(ctx, spec)
	switch {
	case errors.Is(err, sandbox.ErrQuota), api.ReasonOf(err) == api.ReasonNoSpace:
		return engine.Output{}, fmt.Errorf("not run: %s", stopped(err)) // not Unavailable, which would suspend the run until the operator acts
	case err != nil:
		return engine.Output{}, err
	}
	text := r.Stdout
	if r.Stderr != "" {
		text += "\n[stderr]\n" + r.Stderr
	}
	if r.OverQuota != nil {
		text = fmt.Sprintf("[%s; until then commands can only read and delete files]\n%s", r.OverQuota, text)
	}
	switch {
	case r.Stopped != nil:
		return engine.Output{Text: text}, fmt.Errorf("the command was ended: %s", stopped(r.Stopped))
	case r.TimedOut:
		return engine.Output{Text: text}, fmt.Errorf("the command took longer than %d s and was ended: %w", limit, context.DeadlineExceeded)
	case r.ExitCode != 0:
		text = fmt.Sprintf("[exit code %d]\n%s", r.ExitCode, text)
	}
	return engine.Output{Text: text}, nil
}

// stopped returns, as text for the model, why the sandbox ended a command or did not
// start it.
func stopped(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

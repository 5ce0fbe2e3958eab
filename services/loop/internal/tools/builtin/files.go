package builtin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// maxRead is the maximum size of a file that read_file reads, in bytes.
const maxRead = 1 << 20

func readFile() engine.Tool {
	return engine.Builtin("read_file", nil, func(_ context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		data, err := sandbox.ReadFile(c.Agent.Workspace, a.String("path"), maxRead)
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

// Limits of commands: the bytes that are kept of stdout and of stderr, and the time limit
// of the executor, which exceeds the longest timeout of a command.
const (
	maxOutput   = 4 << 20
	maxExecTime = 600*time.Second + 5*time.Second
)

func execTool(cfg Config) engine.Tool {
	t := engine.Builtin("exec", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		limit := min(c.Agent.ExecTimeoutS, int(a.Int("timeout", int64(c.Agent.ExecTimeoutS))))
		return run(ctx, cfg, c, a.String("command"), limit)
	})
	t.Timeout = maxExecTime
	return t
}

// run runs a command of an agent for at most limit seconds.
func run(ctx context.Context, cfg Config, c engine.Call, command string, limit int) (engine.Output, error) {
	tail := tail{say: c.Report}
	proxy, revoke := cfg.Egress.Grant(c.Agent.ID, c.Agent.Network)
	defer revoke()
	r, err := sandbox.Run(ctx, sandbox.Spec{
		Dir: c.Agent.Workspace, Command: command, Timeout: time.Duration(limit) * time.Second, MaxOutput: maxOutput,
		Proxy: proxy, AllowUnsandboxed: cfg.AllowUnsandboxed, Now: cfg.Now, Wrote: tail.add,
		Quota: cfg.Quota, Room: cfg.Room,
	})
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

// tail passes on the last bytes of a program's output. It is safe for concurrent use,
// because stdout and stderr are written concurrently.
type tail struct {
	say func(string) // receives the text; may be nil
	mu  sync.Mutex
	end []byte
}

// maxTail is the number of bytes of output that is reported while a call runs.
const maxTail = 400

func (t *tail) add(p []byte) {
	if t.say == nil {
		return
	}
	t.mu.Lock()
	t.end = append(t.end, p[max(0, len(p)-maxTail):]...)
	t.end = t.end[max(0, len(t.end)-maxTail):]
	text := strings.ToValidUTF8(string(t.end), "\uFFFD")
	t.mu.Unlock()
	t.say(text)
}

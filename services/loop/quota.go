package loop

import (
	"context"
	"errors"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// writers returns the tools that write to the agent's folder in this process. The
// sandbox applies the quota to commands and servers.
func writers() []string {
	return []string{
		"write_file", "edit_own_file", "revert_last_edit", "git_commit", "git_branch", "git_clone",
		"create_skill", "install_skill", "install_mcp_server",
	}
}

// quota returns the limits of each agent's folder.
func (c *Config) quota() sandbox.Quota {
	return sandbox.Quota{Bytes: c.WorkspaceMiB * disk.MiB, Files: c.WorkspaceFiles}
}

// limited makes t fail while the agent's folder exceeds its quota or the disk has only
// its reserve. The error is reported to the model, and the run continues.
func limited(t engine.Tool, q sandbox.Quota, room func() error) engine.Tool {
	run := t.Run
	t.Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
		err := room()
		if err == nil {
			err = q.Check(c.Agent.Workspace, int64(len(c.Args)))
		}
		if err != nil {
			// Not Unavailable, because the run would be retried until an operator frees
			// space.
			return engine.Output{}, errors.New("nothing was written: " + causeOf(err))
		}
		return run(ctx, c)
	}
	return t
}

// watched cancels t soon after the agent's folder has exceeded its quota, or the disk
// has only its reserve. It is for a tool that writes for minutes; limited only checks
// before the call.
func watched(t engine.Tool, q sandbox.Quota, room func() error) engine.Tool {
	run := t.Run
	t.Run = func(ctx context.Context, c engine.Call) (engine.Output, error) {
		held, end := context.WithCancel(ctx)
		var why error
		var watching sync.WaitGroup
		watching.Go(func() { q.Watch(held, c.Agent.Workspace, room, func(err error) { why = err; end() }) })
		out, err := run(held, c)
		end()
		watching.Wait()
		if err != nil && why != nil {
			err = errors.New("it was ended: " + causeOf(why)) // not Unavailable, as in limited
		}
		return out, err
	}
	return t
}

// causeOf returns the text of an error for the model.
func causeOf(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

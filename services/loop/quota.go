package loop

import (
	"context"
	"errors"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// writers are the tools that write the agent's folder in this process. Commands and
// servers are held to the quota by the sandbox.
func writers() []string {
	return []string{
		"write_file", "edit_own_file", "revert_last_edit", "git_commit", "git_branch", "git_clone",
		"create_skill", "install_skill", "install_mcp_server",
	}
}

// quota is what each agent's folder may hold.
func (c *Config) quota() sandbox.Quota {
	return sandbox.Quota{Bytes: c.WorkspaceMiB * disk.MiB, Files: c.WorkspaceFiles}
}

// limited refuses t while the agent's folder is over its quota or the disk has
// only its reserve. The model reads why; the run goes on.
func limited(t turn.Tool, q sandbox.Quota, room func() error) turn.Tool {
	run := t.Run
	t.Run = func(ctx context.Context, c turn.Call) (turn.Output, error) {
		err := room()
		if err == nil {
			err = q.Check(c.Agent.Workspace, int64(len(c.Args)))
		}
		if err != nil {
			// Not as Unavailable: the run would wait for the operator.
			return turn.Output{}, errors.New("nothing was written: " + causeOf(err))
		}
		return run(ctx, c)
	}
	return t
}

// watched ends t soon after the agent's folder has passed its quota, or the disk has only
// its reserve. It is for a tool that writes for minutes: limited checks at its begin only.
func watched(t turn.Tool, q sandbox.Quota, room func() error) turn.Tool {
	run := t.Run
	t.Run = func(ctx context.Context, c turn.Call) (turn.Output, error) {
		held, end := context.WithCancel(ctx)
		var why error
		var watching sync.WaitGroup
		watching.Go(func() { q.Watch(held, c.Agent.Workspace, room, func(err error) { why = err; end() }) })
		out, err := run(held, c)
		end()
		watching.Wait()
		if err != nil && why != nil {
			err = errors.New("it was ended: " + causeOf(why)) // not as Unavailable, as in limited
		}
		return out, err
	}
	return t
}

// causeOf is an error's text for a model.
func causeOf(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

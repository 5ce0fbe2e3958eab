package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// deleteAgent deletes an agent. One transaction of the store makes the agent dead:
// after it, the agent accepts no messages and starts no turn. The steps after the
// transaction notify other components or remove data, and are idempotent: the next call
// repeats them. A crash in between leaves a deleted agent with at most a queued run that
// is dropped unless the agent is applied again first, a schedule that does not fire, a
// goal whose tasks fail, or files.
func (h *handlers) deleteAgent(ctx context.Context, m api.DeleteAgent) (api.Deleted, error) {
	id := strings.ToLower(m.Agent)
	left, err := h.leaves(ctx, id, m.Force)
	if err != nil {
		return api.Deleted{}, err
	}
	reason := cmp.Or(m.Reason, "its creator does not need it any more")
	if err := h.begins.Flush(ctx, id); err != nil { // runs that have begun are cancelled
		return api.Deleted{}, err
	}
	gone, err := h.store.Delete(ctx, id, reason, m.Forget, h.now().UnixMicro())
	if err != nil {
		return api.Deleted{}, err
	}
	h.relay.Wake()
	for _, cmd := range gone.Runs {
		if err := h.bus.PublishLive(ctx, api.SessionNotice{Session: cmd.Session, Cancelled: cmd.Run}); err != nil {
			h.log.WarnContext(ctx, "run of a deleted agent not notified, it ends with its turn", "run", cmd.Run, "err", err)
		}
	}
	// A queued run, or one that has just begun, is in the queue only. In the other sessions,
	// which remain terminated, it is dropped or cancelled for that reason.
	for _, session := range gone.Sessions {
		if err := h.cancelQueue(ctx, session, 0, sqlstore.Deleted(reason)); err != nil {
			return api.Deleted{}, err
		}
	}
	if err := h.goals.cancelOf(ctx, id, "the agent was deleted"); err != nil {
		return api.Deleted{}, err
	}
	if err := h.repeatSchedule(ctx, id); err != nil { // none, unless the agent was applied again since
		return api.Deleted{}, err
	}
	if m.Forget {
		if err := removeFolder(ctx, h.store.Workspace(id)); err != nil {
			return api.Deleted{}, fmt.Errorf("remove folder of %s: %w", id, err)
		}
		if err := h.servers.Remove(id); err != nil {
			return api.Deleted{}, err
		}
	}
	h.log.InfoContext(ctx, "agent deleted", "agent", id, "forgotten", m.Forget)
	return api.Deleted{Agent: id, Address: gone.Address, At: gone.At, Left: left, Forgotten: m.Forget}, nil
}

// removeFolder removes a folder with its content, also if its folders are read-only, as
// those of Go's module cache are. It repeats that while the tool of a run that was just
// cancelled writes there, for at most 5 s.
func removeFolder(ctx context.Context, path string) error {
	for pause := 5 * time.Millisecond; ; pause *= 2 {
		err := os.RemoveAll(path)
		if errors.Is(err, fs.ErrPermission) {
			if err = makeWritable(path); err == nil {
				err = os.RemoveAll(path)
			}
		}
		if !errors.Is(err, syscall.ENOTEMPTY) || pause > 2*time.Second || wait.For(ctx, pause) != nil {
			return err
		}
	}
}

// makeWritable makes a folder and the folders in it writable, without following a link out
// of it.
func makeWritable(path string) (err error) {
	if err := os.Chmod(path, 0o700); err != nil {
		return present(err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return present(err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return eachFolder(root, ".", func(name string) error { return root.Chmod(name, 0o700) })
}

// eachFolder calls f with the name of a folder and then with those of the folders in it.
// It ignores what is removed in the meantime. Names need not be UTF-8, as [fs.WalkDir]
// requires.
func eachFolder(root *os.Root, name string, f func(string) error) error {
	err := f(name)
	if err != nil {
		return present(err)
	}
	folder, err := root.Open(name)
	if err != nil {
		return present(err)
	}
	entries, err := folder.ReadDir(-1)
	if err = errors.Join(err, folder.Close()); err != nil {
		return present(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := eachFolder(root, filepath.Join(name, e.Name()), f); err != nil {
			return err
		}
	}
	return nil
}

// present drops the error about a file that does not exist.
func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// leaves returns the balance of an agent's account. Errors: Conflict if the balance is
// positive and force is not set. A balance that is unknown is an error
// (docs/reference/loop.md, unknown balance), unless force is set or the agent is already
// deleted.
func (h *handlers) leaves(ctx context.Context, id string, force bool) (api.Micros, error) {
	_, err := h.store.Agent(ctx, id)
	gone := api.CodeOf(err) == api.NotFound // or the agent never existed; the store decides
	if err != nil && !gone {
		return 0, err
	}
	b, err := h.clients.Balance(ctx, id)
	left := b.Available + b.Held
	switch {
	case api.CodeOf(err) == api.NotFound, err != nil && (gone || force):
		return 0, nil
	case err != nil:
		return 0, err
	case left > 0 && !gone && !force:
		return 0, &api.Error{
			Code: api.Conflict, Message: fmt.Sprintf("the account of %s holds %s", id, left),
			Next: "move it with anima ledger transfer " + id + " OTHER " + strings.TrimPrefix(b.Available.String(), "$") +
				", or leave it on the account with anima agent delete " + id + " --force",
		}
	}
	return left, nil
}

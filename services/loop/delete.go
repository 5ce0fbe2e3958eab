package loop

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// deleteAgent takes an agent out of service. What counts is one transaction of the
// store: from then on the agent is dead, takes nothing and starts no turn, whatever
// happens next. The rest tells others sooner, or tidies up, and is repeated by the
// next call: a crash between any two lines leaves a deleted agent with, at most, a
// schedule that does not fire, a goal whose tasks fail, or files.
func (h *handlers) deleteAgent(ctx context.Context, m api.DeleteAgent) (api.Deleted, error) {
	id := strings.ToLower(m.Agent)
	left, err := h.leaves(ctx, id, m.Force)
	if err != nil {
		return api.Deleted{}, err
	}
	reason := m.Reason
	if reason == "" {
		reason = "its creator does not need it any more"
	}
	if err := h.begins.flush(ctx, id); err != nil { // what has begun is cancelled
		return api.Deleted{}, err
	}
	gone, err := h.store.Delete(ctx, id, reason, m.Forget, h.now().UnixMicro())
	if err != nil {
		return api.Deleted{}, err
	}
	h.relay.Kick()
	for _, cmd := range gone.Runs {
		if err := h.bus.Tell(ctx, api.SessionNotice{Session: cmd.Session, Cancelled: cmd.Run}); err != nil {
			h.log.WarnContext(ctx, "a run of a deleted agent was not told, it ends with its turn", "run", cmd.Run, "err", err)
		}
	}
	if err := h.goals.cancelOf(ctx, id, "the agent was deleted"); err != nil {
		return api.Deleted{}, err
	}
	if _, err := bus.Call[api.Schedule](ctx, h.bus, api.SetSchedule{Agent: id, Beats: []api.Beat{}}); err != nil {
		return api.Deleted{}, err
	}
	if m.Forget {
		if err := os.RemoveAll(h.store.Workspace(id)); err != nil {
			return api.Deleted{}, fmt.Errorf("folder of %s: %w", id, err)
		}
		if err := h.servers.Remove(id); err != nil {
			return api.Deleted{}, err
		}
	}
	h.log.InfoContext(ctx, "agent deleted", "agent", id, "forgotten", m.Forget)
	return api.Deleted{Agent: id, Address: gone.Address, At: gone.At, Left: left, Forgotten: m.Forget}, nil
}

// leaves is what an agent's account holds. Money is refused unless force is set; a
// balance that is not known decides nothing (W-12).
func (h *handlers) leaves(ctx context.Context, id string, force bool) (api.Micros, error) {
	_, err := h.store.Agent(ctx, id)
	gone := api.CodeOf(err) == api.NotFound // or it never was, which the store says
	if err != nil && !gone {
		return 0, err
	}
	b, err := h.peers.Balance(ctx, id)
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

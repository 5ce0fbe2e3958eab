package loop

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// tooOld reports whether a message had waited too long for its session at the time at.
// It reads the agent's limit only after a second, which is the shortest limit that an
// AGENT.md can set.
func (h *handlers) tooOld(ctx context.Context, cmd api.Run, at int64) (bool, error) {
	waited := time.Duration(at-cmd.AcceptedAt) * time.Microsecond
	if cmd.Kind != api.RunMessage || waited <= min(time.Second, h.cfg.QueueTimeout) {
		return false, nil
	}
	limit, err := h.store.QueueTimeout(ctx, cmd.Agent)
	return waited > min(limit, h.cfg.QueueTimeout), err
}

// wasBehind reports whether a message at the head of its queue had waited too long when
// the previous run ended, which was the last to update the session.
func (h *handlers) wasBehind(ctx context.Context, cmd api.Run) (bool, error) {
	late, err := h.tooOld(ctx, cmd, h.now().UnixMicro())
	if err != nil || !late {
		return false, err
	}
	before, err := h.store.Session(ctx, cmd.Session)
	if err != nil || before.Turns == 0 {
		return false, err
	}
	return h.tooOld(ctx, cmd, before.UpdatedAt)
}

// expire ends a queued message and announces the end. A later delivery of the message
// finds the end in the store. Errors: Conflict if the run has begun.
func (h *handlers) expire(ctx context.Context, cmd api.Run) error {
	return h.engine.Drop(ctx, h.late(cmd), events{bus: h.bus, posts: h.bus.Async()})
}

func (h *handlers) late(cmd api.Run) engine.End {
	return engine.End{
		Run: cmd, Input: engine.Input{By: cmd.By}, Code: api.Denied, Reason: api.ReasonExpired, Outcome: api.OutcomeExpired, At: h.now().UnixMicro(),
		Error: "the message waited too long for its session, behind other messages",
	}
}

// expireWaiting ends messages that have waited too long behind the runs of this
// process. Otherwise they would be checked only after those runs, because a session
// keeps its order.
func (h *handlers) expireWaiting(ctx context.Context) error {
	for _, session := range h.queue.sessions() {
		waiting, err := h.queue.all(ctx, session)
		if err != nil {
			return err
		}
		for _, cmd := range waiting {
			if h.queue.running(cmd.Run) {
				continue
			}
			late, err := h.tooOld(ctx, cmd, h.now().UnixMicro())
			if err != nil {
				return err
			}
			if !late {
				continue
			}
			if err := h.expire(ctx, cmd); err != nil && api.CodeOf(err) != api.Conflict {
				return err
			}
		}
	}
	return nil
}

package loop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"
)

// watchWakes publishes a run on the agent's main session, or a run for mail, for each
// wake in the bucket, and then deletes the wake. Every replica reads every wake: the id
// of the run derives from the wake, so each wake has one run. After a crash in between,
// the publish is repeated under the same id.
func (h *handlers) watchWakes(ctx context.Context) error {
	for {
		if !h.waitRoom(ctx) {
			return nil
		}
		err := h.wakes.Watch(ctx, api.WakeKeys, nil, func(e bus.Entry[api.Wake]) error {
			if e.Deleted {
				return nil
			}
			if err := h.room(); err != nil {
				return err // the wake remains in the bucket
			}
			if err := h.wake(ctx, e); err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "wake not handled, retrying", "key", e.Key, "err", err)
				return err
			}
			return nil
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the service is stopping
		}
		h.log.WarnContext(ctx, "watch of wakes ended, retrying", "err", err)
		if wait.For(ctx, 500*time.Millisecond) != nil {
			return nil
		}
	}
}

// waitRoom waits until runs may be accepted. It returns false if ctx has ended.
func (h *handlers) waitRoom(ctx context.Context) bool {
	for h.room() != nil && wait.For(ctx, time.Second) == nil {
	}
	return ctx.Err() == nil
}

func (h *handlers) wake(ctx context.Context, e bus.Entry[api.Wake]) error {
	w := e.Value
	agent, err := h.store.Agent(ctx, w.Agent)
	if api.CodeOf(err) == api.NotFound {
		h.log.WarnContext(ctx, "wake for an unknown agent, deleting it", "agent", w.Agent, "cause", w.Cause)
		return h.forget(ctx, e)
	}
	if err != nil {
		return err
	}
	id := fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "wake/%s/%d", e.Key, w.At)))
	cmd := api.Run{
		Run: uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:"+id)).String(), Agent: agent.ID, Session: agent.Session,
		Kind: api.RunWake, Content: w.Reason, Cause: w.Cause, By: w.By, AcceptedAt: h.now().UnixMicro(),
	}
	over, err := h.store.Over(ctx, cmd.Run)
	switch {
	case err != nil:
		return err
	case over:
		return h.forget(ctx, e) // a server that crashed has restored the wake
	}
	if isMail(w) {
		if agent.State == api.StateDead {
			err = h.store.HoldMail(ctx, agent.ID, w.By.Address, h.now().UnixMicro())
		} else {
			err = h.startMail(bus.WithTraceParent(ctx, w.Trace), agent, w.By.Address, fmt.Sprintf("wake/%s/%d", e.Key, w.At))
		}
		if err != nil {
			return err
		}
		return h.forget(ctx, e)
	}
	if agent.State != api.StateDead {
		err = failpoint.Do(bus.WithTraceParent(ctx, w.Trace), failpoint.LoopWakePublish, func(ctx context.Context) error {
			return h.bus.Publish(ctx, "run/"+cmd.Run, cmd)
		})
		if err != nil && api.ReasonOf(err) != api.ReasonLimit {
			return err
		}
		// If the queue is full, the agent will run without this wake.
	}
	return h.forget(ctx, e)
}

func (h *handlers) forget(ctx context.Context, e bus.Entry[api.Wake]) error {
	err := failpoint.Do(ctx, failpoint.LoopWakeDelete, func(ctx context.Context) error { return h.wakes.Delete(ctx, e.Key, e.Revision) })
	if api.CodeOf(err) == api.Conflict {
		return nil // another replica has deleted it
	}
	return err
}

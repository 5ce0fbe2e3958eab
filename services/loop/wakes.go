package loop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"
)

// wakesAtOnce is the number of wakes that a replica handles concurrently. Handling one
// waits for NATS and the store about five times.
const wakesAtOnce = 8

// watchWakes publishes a run on the agent's main session, or a run for mail, for each
// wake in the bucket, and then deletes the wake. Every replica reads every wake: the id
// of the run derives from the wake, so each wake has one run. After a crash in between,
// the publish is repeated under the same id.
func (h *handlers) watchWakes(ctx context.Context) error {
	q := newWakeQueue(func(e bus.Entry[api.Wake]) error {
		if !h.waitRoom(ctx) {
			return ctx.Err() // the wake remains in the bucket
		}
		err := h.wake(ctx, e)
		if err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "wake not handled, retrying", "key", e.Key, "err", err)
		}
		return err
	})
	defer q.workers.Wait()
	for {
		err := h.wakes.Watch(ctx, api.WakeKeys, nil, func(e bus.Entry[api.Wake]) error {
			q.changed(ctx, e)
			return nil
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the service is stopping
		}
		h.log.WarnContext(ctx, "watch of wakes ended, retrying", "err", err)
		if wait.For(ctx, wakeRetry) != nil {
			return nil
		}
	}
}

// wakeRetry is the time after which a wake that was not handled is handled again.
const wakeRetry = 500 * time.Millisecond

// wakeQueue holds the wakes that wait to be handled by one replica. It handles those of
// one agent in their order, and those of up to [wakesAtOnce] agents concurrently. The
// agents have no order: if many wait, the replicas handle different ones, and a wake that
// another replica has deleted is not handled again.
type wakeQueue struct {
	handle  func(bus.Entry[api.Wake]) error // the wake is handled again after an error
	workers sync.WaitGroup

	mu      sync.Mutex
	waiting map[string][]bus.Entry[api.Wake] // by agent, without empty lists; includes those in progress
	busy    map[string]bool                  // agents whose first wake is in progress
	running int                              // number of workers
}

func newWakeQueue(handle func(bus.Entry[api.Wake]) error) *wakeQueue {
	return &wakeQueue{handle: handle, waiting: map[string][]bus.Entry[api.Wake]{}, busy: map[string]bool{}}
}

// changed adds the wake of a key, replaces it, or removes it if the key was deleted.
// Workers handle it until ctx ends.
func (q *wakeQueue) changed(ctx context.Context, e bus.Entry[api.Wake]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	agent := api.WakeAgent(e.Key)
	q.remove(agent, func(w bus.Entry[api.Wake]) bool { return w.Key == e.Key })
	if e.Deleted {
		return
	}
	q.waiting[agent] = append(q.waiting[agent], e)
	if q.running < wakesAtOnce {
		q.running++
		q.workers.Go(func() { q.work(ctx) })
	}
}

func (q *wakeQueue) remove(agent string, which func(bus.Entry[api.Wake]) bool) {
	if q.waiting[agent] = slices.DeleteFunc(q.waiting[agent], which); len(q.waiting[agent]) == 0 {
		delete(q.waiting, agent)
	}
}

// work handles wakes until none waits whose agent is not busy.
func (q *wakeQueue) work(ctx context.Context) {
	for {
		agent, e, ok := q.next(ctx)
		if !ok {
			return
		}
		err := q.handle(e)
		if err != nil {
			_ = wait.For(ctx, wakeRetry) // next returns false after the end of ctx
		}
		q.mu.Lock()
		if err == nil { // the key may have a new wake since
			q.remove(agent, func(w bus.Entry[api.Wake]) bool { return w.Key == e.Key && w.Revision == e.Revision })
		}
		delete(q.busy, agent)
		q.mu.Unlock()
	}
}

// next returns the first wake of an agent that is not busy, and marks the agent as busy.
// If there is none, the worker ends.
func (q *wakeQueue) next(ctx context.Context) (agent string, e bus.Entry[api.Wake], ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ctx.Err() == nil {
		for agent, wakes := range q.waiting { // in random order
			if !q.busy[agent] {
				q.busy[agent] = true
				return agent, wakes[0], true
			}
		}
	}
	q.running--
	return "", e, false
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
	id := runOfEvent(fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "wake/%s/%d", e.Key, w.At))), w.At)
	cmd := api.Run{
		Run: id.run, Agent: agent.ID, Session: agent.Session,
		Kind: api.RunWake, Content: w.Reason, Cause: w.Cause, By: w.By, AcceptedAt: h.now().UnixMicro(),
	}
	over, err := h.over(ctx, id)
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
			err = h.arrived(ctx, agent, e)
		}
		if err != nil {
			return err
		}
		return h.forget(ctx, e)
	}
	if agent.State != api.StateDead {
		err = failpoint.Do(bus.WithTraceParent(ctx, w.Trace), failpoint.LoopWakePublish, func(ctx context.Context) error {
			return h.bus.Publish(ctx, id.messageID(), cmd)
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

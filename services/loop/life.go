package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/life"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// What people may ask of an agent's life and of its runs, and what money does to it.

// deathAfter is how long an agent without any credits lives (seed 001).
const deathAfter = time.Hour

// lookEvery is how often poor and dead agents are looked at, and what was
// cancelled is asked for again.
const lookEvery = 5 * time.Second

func (h *handlers) getRun(ctx context.Context, m api.GetRun) (api.RunState, error) {
	st, err := h.store.RunState(ctx, m.Run)
	if api.CodeOf(err) != api.NotFound || m.Session == "" {
		return st, err
	}
	return h.waitingRun(ctx, m.Run, m.Session)
}

// waitingRun finds a run that no store knows yet in its session's queue.
func (h *handlers) waitingRun(ctx context.Context, run, session string) (api.RunState, error) {
	var none api.RunState
	if _, err := h.store.Session(ctx, session); err != nil {
		return none, err
	}
	all, err := h.queue.all(ctx, session)
	if err != nil {
		return none, err
	}
	i := slices.IndexFunc(all, func(cmd api.Run) bool { return cmd.Run == run })
	if i < 0 { // it may have begun, or ended, between the two looks
		return h.store.RunState(ctx, run)
	}
	cmd := all[i]
	why, err := h.store.IsCancelled(ctx, run)
	if err != nil {
		return api.RunState{}, err
	}
	status, err := h.begunStatus(ctx, run, session)
	return api.RunState{
		Run: run, Session: session, Agent: cmd.Agent, Kind: cmd.Kind, Status: status, Cancelled: why != "", AcceptedAt: cmd.AcceptedAt,
	}, err
}

// begunStatus is that of a run in the queue which the store does not know: it may have
// begun a moment ago. The journal tells, whose last entry is then one of the run.
func (h *handlers) begunStatus(ctx context.Context, run, session string) (api.RunStatus, error) {
	m, err := h.bus.Last(ctx, api.Journal{Session: session}.Subject())
	if api.CodeOf(err) == api.NotFound {
		return api.RunQueued, nil
	}
	if err != nil {
		return "", err
	}
	var e api.Journal
	if err := api.Decode(m.Data, &e); err != nil {
		return "", err
	}
	if e.Run == run && e.Kind != api.EntryRelease {
		return api.RunRunning, nil
	}
	return api.RunQueued, nil
}

// cancelRun records the fact first: from then on no replica goes on with the run.
// The notice after it is only the faster way.
func (h *handlers) cancelRun(ctx context.Context, m api.CancelRun) (api.RunState, error) {
	st, err := h.getRun(ctx, api.GetRun{Run: m.Run, Session: m.Session})
	if err != nil || st.Status == api.RunEnded {
		return st, err
	}
	why := "cancelled"
	if m.Reason != "" {
		why = "cancelled: " + m.Reason
	}
	if err := h.cancel(ctx, st.Run, st.Session, why); err != nil {
		return st, err
	}
	st.Cancelled = true
	return st, nil
}

func (h *handlers) cancel(ctx context.Context, run, session, why string) error {
	err := failpoint.Do(ctx, failpoint.LoopCancel, func(ctx context.Context) error {
		return h.store.Cancel(ctx, run, session, why, h.now().UnixMicro())
	})
	if err != nil {
		return err
	}
	return h.bus.Tell(ctx, api.SessionNotice{Session: session, Cancelled: run})
}

// cancelQueue cancels what runs and waits on a session before a run, all of it
// for "".
func (h *handlers) cancelQueue(ctx context.Context, session, before, why string) error {
	all, err := h.queue.all(ctx, session)
	if err != nil {
		return err
	}
	for _, cmd := range all {
		if cmd.Run == before {
			return nil
		}
		if err := h.cancel(ctx, cmd.Run, session, why); err != nil {
			return err
		}
	}
	return nil
}

// terminateSession closes the door first, then empties the room.
func (h *handlers) terminateSession(ctx context.Context, m api.TerminateSession) (api.Session, error) {
	why := m.Reason
	if why == "" {
		why = "terminated"
	}
	s, err := h.store.Terminate(ctx, m.Session, why, h.now().UnixMicro())
	if err != nil {
		return s, err
	}
	return s, h.cancelQueue(ctx, s.ID, "", "the session is terminated: "+s.Reason)
}

// resetSession has nothing under way beside it that could bring an old summary back. The
// queue shows runs that wait to be taken up again; where it shows none, the session's
// journal decides.
func (h *handlers) resetSession(ctx context.Context, m api.ResetSession) (api.Session, error) {
	s, err := h.store.Session(ctx, m.Session)
	if err != nil {
		return s, err
	}
	var queued bool
	for wait := 10 * time.Millisecond; ; wait *= 2 {
		if queued, err = h.busy(ctx, s.ID, ""); err == nil && !queued {
			s, err = h.resetFree(ctx, s)
		}
		// The end of a run is announced a moment before its message is acknowledged.
		if !queued && api.ReasonOf(err) != api.ReasonBusy || wait > 200*time.Millisecond {
			break
		}
		if err := pause(ctx, wait); err != nil {
			return s, err
		}
	}
	if queued || api.ReasonOf(err) == api.ReasonBusy {
		err = &api.Error{
			Code: api.Conflict, Reason: api.ReasonBusy, Message: "session " + s.ID + " is busy",
			Next: "reset it when its run is over, or cancel that: anima session get " + s.ID + " shows it",
		}
	}
	return s, err
}

// resetFree resets a session that no run has. Errors: Conflict with ReasonBusy.
func (h *handlers) resetFree(ctx context.Context, s api.Session) (api.Session, error) {
	cmd := api.Run{Run: "reset", Session: s.ID, Agent: s.Agent}
	err := h.locks.with(ctx, cmd, func(ctx context.Context) (err error) {
		if err = h.locks.journal.own(ctx, cmd, h.now().UnixMicro()); err == nil {
			s, err = h.store.Reset(ctx, s.ID)
		}
		return err
	})
	return s, err
}

// sleepAgent cancels what runs on the main session; the run's end puts the agent
// to sleep, and then this does, so that the reason is the caller's.
func (h *handlers) sleepAgent(ctx context.Context, m api.SleepAgent) (api.Agent, error) {
	now := h.now().UnixMicro()
	id := strings.ToLower(m.Agent)
	a, err := h.store.Agent(ctx, id)
	if err != nil {
		return a, err
	}
	switch {
	case a.State == api.StateDead:
		return a, &api.Error{Code: api.Conflict, Message: a.Name + " is dead", Next: "fund it: anima agent fund " + id + " 5"}
	case m.Until != 0 && (m.Until <= now || m.Until > now+(24*time.Hour).Microseconds()):
		return a, &api.Error{Code: api.Invalid, Message: "an agent sleeps from now on for at most 24 hours", Next: "leave the time out: it then sleeps until something happens"}
	}
	why := m.Reason
	if why == "" {
		why = "told to sleep"
	}
	for _, session := range []string{a.Session, a.Mail} {
		err := h.cancelQueue(ctx, session, "", "the agent was told to sleep: "+why)
		if err != nil {
			return a, err
		}
	}
	if m.Until != 0 {
		if _, err := h.peers.SetAlarm(ctx, api.SetAlarm{ID: fmt.Sprintf("%s/sleep/%d", id, m.Until), Agent: id, At: m.Until, Reason: why}); err != nil {
			return a, err
		}
	}
	if err := h.begins.flush(ctx, id); err != nil {
		return a, err
	}
	if _, err := h.store.SetState(ctx, id, api.StateSleeping, why, false, m.Until, now); err != nil {
		return a, err
	}
	h.relay.Kick()
	return h.store.Agent(ctx, id)
}

func (h *handlers) explainAgent(ctx context.Context, m api.ExplainAgent) (api.Explanation, error) {
	limit, err := api.PageLimit(m.Limit, 20)
	if err != nil {
		return api.Explanation{}, err
	}
	x, err := h.store.Explain(ctx, strings.ToLower(m.Agent), limit)
	if err != nil {
		return x, err
	}
	x.Next = next(x.Agent)
	return x, nil
}

// next says what happens to an agent next, in words.
func next(a api.Agent) string {
	switch a.State {
	case api.StateSetup:
		return "runs for the first time when a message or a wake comes"
	case api.StateWaking, api.StateRunning, api.StateLow:
		return "goes on with its run; then it sleeps"
	case api.StateSleeping:
		if a.SleepUntil > 0 {
			return "wakes at " + time.UnixMicro(a.SleepUntil).UTC().Format(time.RFC3339) + ", or earlier when a message or a wake comes"
		}
		return "sleeps until a message or a wake comes"
	case api.StateCritical:
		return "can hardly pay: fund it with anima agent fund " + a.ID + " 5; an hour without any credits, and it dies"
	case api.StateDead:
		return "does nothing until it is funded: anima agent fund " + a.ID + " 5"
	}
	return ""
}

// tierChanged lets money decide over life and death: every other state follows
// from a run. An event that comes late or twice finds the balance as it is now.
func (h *handlers) tierChanged(ctx context.Context, m api.TierChanged) error {
	if m.To != api.TierDead && m.To != api.TierCritical && m.From != api.TierDead && m.From != api.TierCritical {
		return nil
	}
	err := h.weigh(ctx, m.Agent)
	if api.CodeOf(err) == api.NotFound {
		return nil // an account without an agent
	}
	return err
}

// weigh asks for an agent's balance and says what follows from it for its life:
// after an hour at nothing it is dead, money wakes it again. Unknown decides nothing (W-12).
func (h *handlers) weigh(ctx context.Context, agent string) error {
	b, err := h.peers.Balance(ctx, agent)
	if err != nil {
		return err
	}
	c, err := h.store.Weigh(ctx, agent, b.Available+b.Held, deathAfter, h.now().UnixMicro())
	if err != nil || c == nil {
		return err
	}
	h.relay.Kick()
	h.log.InfoContext(ctx, "agent changed", "agent", agent, "state", c.State, "why", c.Reason)
	return nil
}

// watchLives looks after what no event tells of: time at nothing, deposits too
// small to change a tier, and notices that were lost.
func (h *handlers) watchLives(ctx context.Context) error {
	tick := time.NewTicker(max(min(lookEvery, h.cfg.QueueTimeout/4), 50*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		h.queue.cancelled(ctx, h.store.IsCancelled)
		if err := h.freeMail(ctx); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "cannot look after mail that waits, trying again", "err", err)
		}
		if err := h.expireWaiting(ctx); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "cannot look after what waits, trying again", "err", err)
		}
		poor, err := h.store.Poor(ctx)
		if err != nil {
			if ctx.Err() == nil {
				h.log.WarnContext(ctx, "cannot look after the poor, trying again", "err", err)
			}
			continue
		}
		for _, agent := range poor {
			if err := h.weigh(ctx, agent); err != nil && ctx.Err() == nil {
				h.log.DebugContext(ctx, "balance unknown, nothing is decided", "agent", agent, "err", err)
			}
		}
	}
}

// tooOld says whether a message had waited too long for its session at a time. The
// shortest that an AGENT.md can say is a second: until then nothing is asked.
func (h *handlers) tooOld(ctx context.Context, cmd api.Run, at int64) (bool, error) {
	waited := time.Duration(at-cmd.AcceptedAt) * time.Microsecond
	if cmd.Kind != api.RunMessage || waited <= min(time.Second, h.cfg.QueueTimeout) {
		return false, nil
	}
	limit, err := h.store.QueueTimeout(ctx, cmd.Agent)
	return waited > min(limit, h.cfg.QueueTimeout), err
}

// wasBehind says whether a message whose turn has come had waited too long when
// the run before it ended; that one wrote the session last.
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

// expire ends a message that waits behind another run, and says so. Its delivery, which
// may still be on its way, finds it done. Errors: Conflict when it has begun.
func (h *handlers) expire(ctx context.Context, cmd api.Run) error {
	return h.engine.Drop(ctx, h.late(cmd), events{bus: h.bus, posts: h.bus.Posts()})
}

func (h *handlers) late(cmd api.Run) turn.End {
	return turn.End{
		Run: cmd, Input: turn.Input{By: cmd.By}, Code: api.Denied, Reason: api.ReasonExpired, Fate: api.FateExpired, At: h.now().UnixMicro(),
		Error: "it waited too long for its session, behind other messages",
	}
}

// expireWaiting ends what has waited too long behind the runs of this process: in
// the order that a session keeps, it would be looked at only after them.
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

// pausing says how long a run must still wait, because its agent has just gone to
// sleep and was not asked to wake (W-8).
func pausing(cmd api.Run, since, now int64) time.Duration {
	if cmd.Kind != api.RunWake || cmd.By.Kind != api.Self && cmd.By.Kind != api.HeartbeatKind {
		return 0
	}
	return max(0, life.Pause-time.Duration(now-since)*time.Microsecond)
}

package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/lifecycle"
)

// Requests about the states of agents and about runs, and changes of state by the
// balance.

// deathAfter is the time after which an agent without credits becomes dead
// (docs/reference/loop.md, Death).
const deathAfter = time.Hour

// lookEvery is the longest interval between two checks of balances, cancels, held mail
// and queued messages in [handlers.watchLives].
const lookEvery = 5 * time.Second

func (h *handlers) getRun(ctx context.Context, m api.GetRun) (api.RunState, error) {
	st, err := h.store.RunState(ctx, m.Run)
	if api.CodeOf(err) != api.NotFound || m.Session == "" {
		return st, err
	}
	return h.waitingRun(ctx, m.Run, m.Session)
}

// waitingRun returns the state of a run that has no row in the store, from its
// session's queue.
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
	if i < 0 { // it may have begun or ended between the two reads
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

// begunStatus returns the status of a queued run that the store has no row for. The run
// may have begun since the queue was read; then the last entry of the session's journal
// belongs to it.
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

// cancelRun records the cancel first: after that no replica continues the run. The
// notice that follows only makes the cancel take effect sooner.
func (h *handlers) cancelRun(ctx context.Context, m api.CancelRun) (api.RunState, error) {
	get := api.GetRun{Run: m.Run, Session: m.Session}
	st, err := h.getRun(ctx, get)
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
	// The run may have ended before the cancel was stored, which then has no effect.
	return h.getRun(ctx, get)
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

// cancelQueue cancels the current run and the queued runs of a session that precede the
// run before, all of them if before is "".
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

// terminateSession marks the session terminated, then cancels its runs.
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

// resetSession resets a session that has no run in progress, because a run could store
// an old summary again. The queue shows runs that will be resumed; if it shows none,
// the session's journal decides.
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
		// The end of a run is announced shortly before its message is acknowledged.
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

// resetFree resets a session that no run owns. Errors: Conflict with ReasonBusy.
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

// sleepAgent cancels the runs on the agent's main session and mail session, and then
// sets the agent to sleeping with the caller's reason.
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
		return a, &api.Error{Code: api.Invalid, Message: "the time is not within the next 24 hours", Next: "use a time from now on and within 24 hours, or leave it out: the agent then sleeps until a message or a wake comes"}
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
		if _, err := h.clients.SetAlarm(ctx, api.SetAlarm{ID: fmt.Sprintf("%s/sleep/%d", id, m.Until), Agent: id, At: m.Until, Reason: why}); err != nil {
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

// next describes the next change of an agent's state.
func next(a api.Agent) string {
	switch a.State {
	case api.StateSetup:
		return "runs for the first time when a message or a wake comes"
	case api.StateWaking, api.StateRunning, api.StateLow:
		return "continues its run, then sleeps"
	case api.StateSleeping:
		if a.SleepUntil > 0 {
			return "wakes at " + time.UnixMicro(a.SleepUntil).UTC().Format(time.RFC3339) + ", or earlier when a message or a wake comes"
		}
		return "sleeps until a message or a wake comes"
	case api.StateCritical:
		return "has almost no credits: fund it with anima agent fund " + a.ID + " 5; after an hour without any credits its state becomes dead"
	case api.StateDead:
		return "does nothing until it is funded: anima agent fund " + a.ID + " 5"
	}
	return ""
}

// tierChanged weighs the agent if its tier changes to or from dead or critical; all
// other changes of its state follow from runs. It reads the current balance, so a late
// or repeated event is harmless.
func (h *handlers) tierChanged(ctx context.Context, m api.TierChanged) error {
	if m.To != api.TierDead && m.To != api.TierCritical && m.From != api.TierDead && m.From != api.TierCritical {
		return nil
	}
	err := h.checkBalance(ctx, m.Agent)
	if api.CodeOf(err) == api.NotFound {
		return nil // an account without an agent
	}
	return err
}

// checkBalance reads an agent's balance and changes its state accordingly: an agent without
// credits for an hour becomes dead, and a deposit changes a dead agent to sleeping. If
// the balance is unknown, the state does not change (docs/reference/loop.md, unknown
// balance).
func (h *handlers) checkBalance(ctx context.Context, agent string) error {
	b, err := h.clients.Balance(ctx, agent)
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

// watchLives periodically checks the conditions that no event announces: the time
// without credits, deposits that do not change the tier, lost notices, held mail, and
// messages that have expired.
func (h *handlers) sweep(ctx context.Context) error {
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
			h.log.WarnContext(ctx, "check of held mail failed, retrying", "err", err)
		}
		if err := h.expireWaiting(ctx); err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "check of queued messages failed, retrying", "err", err)
		}
		poor, err := h.store.Poor(ctx)
		if err != nil {
			if ctx.Err() == nil {
				h.log.WarnContext(ctx, "low-balance check failed, retrying", "err", err)
			}
			continue
		}
		for _, agent := range poor {
			if err := h.checkBalance(ctx, agent); err != nil && ctx.Err() == nil {
				h.log.DebugContext(ctx, "balance unknown, state not changed", "agent", agent, "err", err)
			}
		}
	}
}

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
	return h.engine.Drop(ctx, h.late(cmd), events{bus: h.bus, posts: h.bus.Posts()})
}

func (h *handlers) late(cmd api.Run) engine.End {
	return engine.End{
		Run: cmd, Input: engine.Input{By: cmd.By}, Code: api.Denied, Reason: api.ReasonExpired, Fate: api.FateExpired, At: h.now().UnixMicro(),
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

// pausing returns the remaining pause of a run by a wake of the agent itself or of
// heartbeat, whose agent has just gone to sleep (docs/reference/loop.md, continuous
// wake).
func pausing(cmd api.Run, since, now int64) time.Duration {
	if cmd.Kind != api.RunWake || cmd.By.Kind != api.Self && cmd.By.Kind != api.HeartbeatKind {
		return 0
	}
	return max(0, lifecycle.Pause-time.Duration(now-since)*time.Microsecond)
}

package loop

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/lifecycle"
	"github.com/anima-run/anima/services/loop/internal/session"
)

// runRoutes returns the routes about runs. If a replica does not acknowledge a message
// within silent, the message is redelivered to another replica.
func (h *handlers) runRoutes(silent time.Duration) []bus.Route {
	return []bus.Route{
		bus.Reply(h.sendMessage), bus.Reply(h.getRun), bus.Reply(h.cancelRun),
		// A run that was delivered to a replica that had already crashed has no owner,
		// and need not wait for a lease to expire; other runs are returned until their
		// lease has expired. A run may therefore be delivered often before it fails for
		// the first time, and its pause must not grow with the number of deliveries.
		bus.On(h.run, bus.ConsumerOptions{
			Workers: h.cfg.Slots, AckWait: silent, MaxDeliver: -1, InOrder: true, NoSpan: true, MaxPause: maxPause, StallTimeout: patience,
		}),
		// For runs without a turn, and for runs of older releases. Deliveries are not
		// limited: a goal that waits for the end would otherwise never continue.
		bus.On(h.runEnded, bus.ConsumerOptions{Workers: 32, AckWait: silent, InOrder: true, MaxDeliver: -1}),
	}
}

// run executes a run. Any replica may receive it. The replica for which the message is
// the oldest of its session, and which may append to the journal, executes the run;
// others return the message for redelivery until it is too old.
func (h *handlers) run(ctx context.Context, cmd api.Run) error {
	err := h.execute(ctx, cmd)
	if api.ReasonOf(err) != api.ReasonBusy {
		return err
	}
	if expired, xerr := h.expiry.Expire(ctx, cmd); expired {
		return xerr
	}
	return err
}

// execute executes a run. Its error has ReasonBusy if other runs of the session come
// first.
func (h *handlers) execute(ctx context.Context, cmd api.Run) error {
	meta := bus.MetaOf(ctx)
	return h.locks.With(ctx, cmd, func(ctx context.Context) error {
		head, err := h.queue.Head(ctx, cmd.Session, meta.Sequence, h.done)
		switch {
		case api.CodeOf(err) == api.NotFound, err == nil && head > meta.Sequence:
			return h.absent(ctx, cmd)
		case err != nil:
			return err
		case head != meta.Sequence:
			return &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "an older message of the session waits", RetryAfter: 50}
		}
		late, err := h.expiry.WasDue(ctx, cmd)
		if err != nil {
			return err
		}
		if late {
			err := h.engine.Refuse(ctx, h.expiry.End(cmd), session.NewEvents(h.bus))
			if api.CodeOf(err) != api.Conflict {
				return err
			}
		}
		if err := h.rested(ctx, cmd); err != nil {
			return err
		}
		// Without its folder only the agent's tools fail. The run must still be able to end.
		if err := os.MkdirAll(h.store.Workspace(cmd.Agent), 0o700); err != nil {
			h.log.WarnContext(ctx, "folder of the agent not created", "agent", cmd.Agent, "err", err)
		}
		h.running.Add(ctx, 1)
		defer h.running.Add(ctx, -1)
		return h.live(ctx, cmd)
	})
}

// live executes a run. Before and after a run of kind mail it applies the mail budgets
// and starts the next run. None follows a run that was held because the budgets of all
// senders are exhausted: it would be held too, and finding its message may take a look at
// all of the inbox. The run at the end of the hold is followed by the others.
func (h *handlers) live(ctx context.Context, cmd api.Run) error {
	if cmd.Kind != api.RunMail {
		return h.engine.Run(ctx, cmd, session.NewEvents(h.bus))
	}
	over, all, err := h.admitMail(ctx, &cmd)
	if err == nil && !over {
		err = h.engine.Run(ctx, cmd, session.NewEvents(h.bus))
	}
	if err != nil || all {
		return err
	}
	return h.moreMail(ctx, cmd)
}

// absent handles a run whose message was delivered but is not in the stream. Usually
// another replica has executed the run and acknowledged the message; but the stream's
// leader may also be behind (ADR 11). The store decides: the end of a run that is over
// is announced again, because its owner may have crashed before that, and any other run
// is redelivered. The error does not have ReasonBusy, because the message has not
// waited behind others and must not expire for that.
func (h *handlers) absent(ctx context.Context, cmd api.Run) error {
	over, err := h.store.Over(ctx, cmd.Run)
	if err != nil {
		return err
	}
	if !over {
		return &api.Error{Code: api.Unavailable, Message: "the stream does not show the message of the run, which has not ended", Next: "no action is needed: the message is redelivered", RetryAfter: 100}
	}
	return h.live(ctx, cmd)
}

// done reports whether the run of a queued message is over. If so, it announces the end
// again, because the owner may have crashed before that.
func (h *handlers) done(ctx context.Context, cmd api.Run) (bool, error) {
	over, err := h.store.Over(ctx, cmd.Run)
	if err != nil || !over {
		return false, err
	}
	return true, h.engine.Run(ctx, cmd, session.NewEvents(h.bus))
}

// rested returns an error that redelivers a wake of the agent itself or of heartbeat if
// the agent has slept for less than [lifecycle.Pause], so that no error can make an agent
// run continuously (docs/reference/loop.md, continuous wake). If
// the agent went to sleep more than Pause ahead of the present time, because a clock was set
// back, the wake does not wait: the messages behind it would expire.
func (h *handlers) rested(ctx context.Context, cmd api.Run) error {
	if cmd.Kind != api.RunWake {
		return nil
	}
	state, since, err := h.store.Since(ctx, cmd.Agent)
	if err != nil || state != api.StateSleeping {
		return err
	}
	slept := time.Duration(h.now().UnixMicro()-since) * time.Microsecond
	if wait := lifecycle.Pause - slept; wait > 0 && wait <= 2*lifecycle.Pause && (cmd.By.Kind == api.Self || cmd.By.Kind == api.HeartbeatKind) {
		return &api.Error{Code: api.Unavailable, Message: "the agent has just gone to sleep", RetryAfter: wait.Milliseconds() + 1}
	}
	return nil
}

func (h *handlers) getRun(ctx context.Context, m api.GetRun) (api.RunState, error) {
	st, err := h.store.RunState(ctx, m.Run)
	if api.CodeOf(err) != api.NotFound || m.Session == "" {
		return st, err
	}
	return h.waitingRun(ctx, m.Run, m.Session)
}

// waitingRun returns the state of a run that has no row in the store, from its
// session's queue.
func (h *handlers) waitingRun(ctx context.Context, run, in string) (api.RunState, error) {
	if _, err := h.store.Session(ctx, in); err != nil {
		return api.RunState{}, err
	}
	all, err := h.queue.All(ctx, in)
	if err != nil {
		return api.RunState{}, err
	}
	i := slices.IndexFunc(all, func(cmd api.Run) bool { return cmd.Run == run })
	if i < 0 { // it may have begun or ended between the two reads
		return h.store.RunState(ctx, run)
	}
	cmd := all[i]
	why, err := h.store.IsCancelled(ctx, run, in)
	if err != nil {
		return api.RunState{}, err
	}
	// The run may have begun since the queue was read.
	status, begun := api.RunQueued, false
	if begun, err = h.locks.Journal.InProgress(ctx, in, run); begun {
		status = api.RunRunning
	}
	return api.RunState{
		Run: run, Session: in, Agent: cmd.Agent, Kind: cmd.Kind, Status: status, Cancelled: why != "", AcceptedAt: cmd.AcceptedAt,
	}, err
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
	return h.bus.PublishLive(ctx, api.SessionNotice{Session: session, Cancelled: run})
}

// cancelQueue cancels the current run and the queued runs of a session that precede the
// sequence before, all of them if before is 0.
func (h *handlers) cancelQueue(ctx context.Context, session string, before uint64, why string) error {
	all, err := h.queue.Before(ctx, session, before)
	if err != nil {
		return err
	}
	return h.cancelAll(ctx, session, all, why)
}

// interrupt cancels the current run and the queued runs of a session that precede a run,
// whose message is in the queue at a sequence. The message may be there once before, if its
// caller has sent it again after the queue had forgotten its id; the first copy counts.
func (h *handlers) interrupt(ctx context.Context, session string, sequence uint64, run string) error {
	all, err := h.queue.Before(ctx, session, sequence)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(cmd api.Run) bool { return cmd.Run == run }); i >= 0 {
		all = all[:i]
	}
	return h.cancelAll(ctx, session, all, "interrupted by "+run)
}

func (h *handlers) cancelAll(ctx context.Context, session string, all []api.Run, why string) error {
	for _, cmd := range all {
		if err := h.cancel(ctx, cmd.Run, session, why); err != nil {
			return err
		}
	}
	return nil
}

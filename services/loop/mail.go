package loop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/lifecycle"
	"github.com/anima-run/anima/services/loop/internal/session"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// Messages of peers start runs of their own: a run for a message has the principal of
// its sender and no input of others (docs/reference/loop.md, Principals).
//
//	message_received ─▶ wake inbox-… ─▶ run of kind mail, on the agent's mail session
//	                                     │ (none while the sender's mail is held)
//	                                     ├ the agent is dead: dropped, the mail remains and is held
//	                                     ├ no unread message: merged
//	                                     ├ over a budget: dropped, the mail remains and is held
//	                                     ├ claims the sender's messages, calls the model, settles them
//	                                     └ ends before the model answers: releases them, the mail is held
//	    its end, or the end of a hold ─▶ the next run, while there is mail that is not held;
//	                                     none after a run that was cancelled

// inboxCause is the prefix of the causes of wakes for mail.
const inboxCause = "inbox-"

// isMail reports whether a wake is for a message in the inbox.
func isMail(w api.Wake) bool {
	return w.By.Kind == api.Peer && w.By.Address != "" && strings.HasPrefix(w.Cause, inboxCause)
}

// startMail publishes a run for a sender's mail. It is idempotent by the name of the event
// that starts it; at is the time of that event in Unix microseconds. A crash between the
// creation of the session and the publish leaves an empty session. A full queue is not an
// error, because each run in it starts the next one at its end.
func (h *handlers) startMail(ctx context.Context, agent api.Agent, sender, name string, at int64) error {
	id, now := runOfEvent(name, at), h.now().UnixMicro()
	if over, err := h.over(ctx, id); err != nil || over { // a server that crashed has restored the wake
		return err
	}
	if err := h.store.NewSession(ctx, agent.Mail, agent.ID, now); err != nil {
		return err
	}
	cmd := api.Run{
		Run: id.run, Agent: agent.ID, Session: agent.Mail, Kind: api.RunMail,
		Content: "mail from " + sender, By: api.Principal{Kind: api.Peer, Address: sender}, AcceptedAt: now,
	}
	err := failpoint.Do(ctx, failpoint.LoopWakePublish, func(ctx context.Context) error { return h.bus.Publish(ctx, id.messageID(), cmd) })
	if api.ReasonOf(err) == api.ReasonLimit {
		return nil
	}
	return err
}

// arrived handles a wake for mail of an agent that is not dead. While the mail of the
// sender is held, a message starts no run: the run at the end of the hold reads it. Such
// messages, whose number only the sender limits, cost no more than this.
func (h *handlers) arrived(ctx context.Context, agent api.Agent, e bus.Entry[api.Wake]) error {
	w := e.Value
	held, err := h.store.IsMailHeld(ctx, agent.ID, w.By.Address, h.cfg.mail(), h.now().UnixMicro())
	if err != nil || held {
		return err
	}
	return h.startMail(bus.WithTraceParent(ctx, w.Trace), agent, w.By.Address, fmt.Sprintf("wake/%s/%d", e.Key, w.At), w.At)
}

// admitMail admits a run of mail within the budgets, or ends it, and returns whether
// the run is over, and whether the mail of all senders is over its budgets. A run that was
// admitted before continues even if the inbox shows no message, because it may have claimed
// the messages itself.
func (h *handlers) admitMail(ctx context.Context, cmd *api.Run) (over, all bool, err error) {
	if over, err := h.store.Over(ctx, cmd.Run); err != nil || over {
		return false, false, err // the engine announces the end again
	}
	admitted, err := h.store.MailAdmitted(ctx, cmd.Run)
	if err != nil {
		return false, false, err
	}
	if !admitted {
		agent, err := h.store.Agent(ctx, cmd.Agent)
		switch {
		case api.CodeOf(err) == api.NotFound:
			return false, false, nil // the engine drops the run, because its session is terminated
		case err != nil:
			return false, false, err
		case agent.State == api.StateDead:
			return true, false, h.endMail(ctx, *cmd, engine.End{
				Code: api.Denied, Outcome: api.OutcomeDropped, Error: "the agent is dead; the mail stays in the inbox until it is funded",
				Next: "fund it: anima agent fund " + agent.ID + " 5",
			})
		}
		unread, err := h.clients.unread(ctx, cmd.Agent, cmd.By.Address, "", 1)
		if err != nil {
			return false, false, err
		}
		if len(unread.Messages) == 0 { // an earlier run has read them
			into, err := h.store.LastMailRun(ctx, cmd.Agent, cmd.By.Address)
			if err != nil {
				return false, false, err
			}
			return true, false, h.endMail(ctx, *cmd, engine.End{Success: true, Outcome: api.OutcomeMerged, Into: into})
		}
	}
	got, err := h.store.AdmitMail(ctx, *cmd, h.cfg.mail(), h.now().UnixMicro())
	if err != nil {
		return false, false, err
	}
	if got.Until > 0 {
		until := time.UnixMicro(got.Until).UTC().Format(time.RFC3339)
		return true, got.All, h.endMail(ctx, *cmd, engine.End{
			Code: api.Denied, Reason: api.ReasonLimit, Outcome: api.OutcomeDropped, Error: got.Why + "; the mail stays in the inbox until " + until,
		})
	}
	cmd.CostCap = got.Cost
	return false, false, nil
}

// endMail ends a run of mail without a turn.
func (h *handlers) endMail(ctx context.Context, cmd api.Run, end engine.End) error {
	end.Run, end.Input, end.At = cmd, engine.Input{By: cmd.By}, h.now().UnixMicro()
	return h.engine.Drop(ctx, end, session.NewEvents(h.bus))
}

// moreMail starts a run for the oldest message whose sender's mail is not held. It is
// called at the end of a run of mail, before the run's message is acknowledged. The
// mail of a dead agent is held until the agent is funded, and mail that the run has not
// answered for a time. No run follows a cancelled one:
// otherwise an agent that was told to sleep would continue at once. Its unread messages
// wait for the next message.
func (h *handlers) moreMail(ctx context.Context, cmd api.Run) error {
	agent, err := h.store.Agent(ctx, cmd.Agent)
	switch {
	case api.CodeOf(err) == api.NotFound:
		return nil // the agent was deleted
	case err != nil:
		return err
	case agent.State == api.StateDead:
		return h.store.HoldMail(ctx, agent.ID, cmd.By.Address, h.now().UnixMicro())
	}
	end, err := h.store.Ending(ctx, cmd.Run)
	if err != nil {
		return err
	}
	if end != nil && end.Unanswered {
		if err := h.store.HoldMail(ctx, agent.ID, cmd.By.Address, end.At+pauseOf(*end).Microseconds()); err != nil {
			return err
		}
	}
	held, err := h.store.HeldMail(ctx, agent.ID)
	if err != nil {
		return err
	}
	now := h.now().UnixMicro()
	waits := map[string]bool{}
	for _, w := range held {
		waits[w.Sender] = w.Until > now
	}
	for page := (api.Page{More: true}); page.More; {
		bus.InProgress(ctx)
		unread, err := h.clients.unread(ctx, agent.ID, "", page.Next, 200)
		if err != nil {
			return err
		}
		for _, m := range slices.Backward(unread.Messages) { // the latest come first
			if !waits[strings.ToLower(m.From)] {
				if stopped, err := h.stoppedMail(ctx, agent, cmd); err != nil || stopped {
					return err
				}
				return h.startMail(ctx, agent, m.From, "mail-after/"+cmd.Run, cmd.AcceptedAt)
			}
		}
		page = unread.Page
	}
	return nil
}

// pauseOf returns the time from the end of a run that has not answered its mail to the next
// run for it. An agent that cannot pay is dead after an hour, and its mail is then held
// until it is funded; if it is funded before, [handlers.tierChanged] ends the pause. The
// limits of an agent count an hour or more.
func pauseOf(end engine.End) time.Duration {
	switch reason := end.Reason; {
	case reason == api.ReasonInsufficient, reason == api.ReasonLimit, api.OverLimit(reason):
		return deathAfter
	case reason == api.ReasonNoModel, reason == api.ReasonAuth, reason == api.ReasonQuota, reason == api.ReasonEndpoint:
		return lifecycle.AfterNoModel
	}
	return lifecycle.AfterNothing
}

// stoppedMail reports whether a run of mail was cancelled, so that no run follows it. After
// the termination of its session, the next run has the new mail session.
func (h *handlers) stoppedMail(ctx context.Context, agent api.Agent, cmd api.Run) (bool, error) {
	if cmd.Session != agent.Mail {
		return false, nil
	}
	why, err := h.store.IsCancelled(ctx, cmd.Run, cmd.Session)
	return why != "", err
}

// freeMail starts runs for mail whose hold has ended. After a crash between its two
// steps it publishes the same run again.
func (h *handlers) freeMail(ctx context.Context) error {
	due, err := h.store.DueMail(ctx, h.now().UnixMicro())
	if err != nil {
		return err
	}
	for _, w := range due {
		agent, err := h.store.Agent(ctx, w.Agent)
		if api.CodeOf(err) == api.NotFound {
			continue // deleted since then
		}
		if err != nil {
			return err
		}
		if err := h.startMail(ctx, agent, w.Sender, fmt.Sprintf("mail-freed/%s/%s/%d", w.Agent, w.Sender, w.Until), w.Until); err != nil {
			return err
		}
		if err := h.store.FreeMail(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

// unread returns a page of the unclaimed messages of a sender, or of all senders if
// from is "", the latest first.
func (s clients) unread(ctx context.Context, agent, from, after string, limit int) (api.Inbox, error) {
	return bus.Call[api.Inbox](ctx, s.bus, api.ListInbox{Agent: agent, Status: "received", From: from, After: after, Limit: limit})
}

// mail returns the daily limits for runs that mail of peers starts.
func (c Config) mail() sqlstore.MailBudget {
	return sqlstore.MailBudget{
		SenderRuns: c.MailSenderRuns, AgentRuns: c.MailAgentRuns, SenderCost: api.Micros(c.MailSenderCost), AgentCost: api.Micros(c.MailAgentCost),
	}
}

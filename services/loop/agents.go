package loop

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
)

// deathAfter is the time after which an agent without credits becomes dead
// (docs/reference/loop.md, Death).
const deathAfter = time.Hour

// checkEvery is the longest interval between two checks of cancels, held mail and queued
// messages in [handlers.sweep], and of balances in [handlers.sweepBalances].
const checkEvery = 5 * time.Second

func (h *handlers) agentRoutes() []bus.Route {
	return []bus.Route{
		bus.Reply(h.applyAgent), bus.Reply(h.getAgent), bus.Reply(h.listAgents), bus.Reply(h.listSchedules), bus.Reply(h.deleteAgent),
		bus.Reply(h.sleepAgent), bus.Reply(h.chooseModel), bus.Reply(h.explainAgent),
		bus.On(h.tierChanged, bus.ConsumerOptions{MaxDeliver: -1}), bus.On(h.walletChanged, bus.ConsumerOptions{MaxDeliver: -1}),
	}
}

// applyAgent creates or updates an agent from an AGENT.md. It opens the account and sets
// the schedule first and announces the agent last: a crash in between leaves an account
// without an agent, or another schedule, which the next apply uses or sets. The answer has
// a warning for each tool that the agent cannot use.
func (h *handlers) applyAgent(ctx context.Context, m api.ApplyAgent) (api.Agent, error) {
	return h.applyNamed(ctx, m, "")
}

// applyNamed is applyAgent with the expected name of the agent; "" accepts any.
func (h *handlers) applyNamed(ctx context.Context, m api.ApplyAgent, want string) (api.Agent, error) {
	if err := h.room(); err != nil {
		return api.Agent{}, err
	}
	def, faults := agent.Parse([]byte(m.Source), knownTools())
	if len(faults) > 0 {
		e := &api.Error{Code: api.Invalid, Message: fmt.Sprintf("the AGENT.md has %d faults", len(faults)), Next: "fix them and apply it again; nothing was changed"}
		if len(faults) == 1 {
			e.Message = "the AGENT.md has a fault"
		}
		for _, f := range faults {
			e.Details = append(e.Details, f.String())
		}
		return api.Agent{}, e
	}
	id := strings.ToLower(def.Name)
	if want != "" && id != strings.ToLower(want) {
		return api.Agent{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("the AGENT.md names %s, but the path names %s", def.Name, want), Next: "use the same name in both"}
	}
	account, err := bus.Call[api.Account](ctx, h.bus, api.OpenAccount{Agent: id})
	if err != nil {
		return api.Agent{}, err
	}
	same, err := h.store.IsApplied(ctx, id, m.Source)
	if err != nil {
		return api.Agent{}, err
	}
	if !same { // otherwise the agent may have changed its schedule since
		if err := h.setSchedule(ctx, id, def.Beats()); err != nil {
			return api.Agent{}, err
		}
	}
	applied, err := h.store.Apply(ctx, def, id, account.Address, m.Source, h.now().UnixMicro())
	if err != nil {
		return api.Agent{}, err
	}
	h.relay.Wake()
	if applied.Changed {
		if err := h.repeatSchedule(ctx, id); err != nil {
			return api.Agent{}, err
		}
	}
	if applied.Changed {
		h.log.InfoContext(ctx, "agent applied", "agent", id, "version", applied.Agent.Version)
	}
	a, err := h.store.Definition(ctx, id)
	if err != nil {
		return api.Agent{}, err
	}
	applied.Agent.Warnings = h.tools.warnings(a)
	return applied.Agent, nil
}

// setSchedule sets the schedule of an agent.
func (h *handlers) setSchedule(ctx context.Context, id string, beats []api.Beat) error {
	_, err := bus.Call[api.Schedule](ctx, h.bus, api.SetSchedule{Agent: id, Beats: beats})
	return err
}

// repeatSchedule sets the schedule of an agent to that of its stored definition, until the
// definition is still the same afterwards. Concurrent requests that apply or delete the
// agent may set their schedules in another order than they store their definitions; the
// last one that stores a definition or a deletion corrects the schedule.
func (h *handlers) repeatSchedule(ctx context.Context, id string) error {
	for {
		beats, version, err := h.store.Scheduled(ctx, id)
		if err != nil {
			return err
		}
		if err := h.setSchedule(ctx, id, beats); err != nil {
			return err
		}
		if _, now, err := h.store.Scheduled(ctx, id); err != nil || now == version {
			return err
		}
	}
}

func (h *handlers) getAgent(ctx context.Context, m api.GetAgent) (api.Agent, error) {
	return h.store.Agent(ctx, strings.ToLower(m.Agent))
}

func (h *handlers) listAgents(ctx context.Context, m api.ListAgents) (api.Agents, error) {
	all, page, err := pageOf(m.Limit, api.MaxPage, func(a api.Agent) string { return a.ID }, func(n int) ([]api.Agent, error) {
		return h.store.Agents(ctx, m.After, n)
	})
	return api.Agents{Agents: all, Page: page}, err
}

// schedulesOfPage is the number of agents of one answer: each may have 32 entries of more than
// a kilobyte.
const schedulesOfPage = 20

func (h *handlers) listSchedules(ctx context.Context, m api.ListSchedules) (api.Schedules, error) {
	all, page, err := pageOf(m.Limit, schedulesOfPage, func(a api.AgentSchedule) string { return a.State.Agent }, func(n int) ([]api.AgentSchedule, error) {
		return h.store.Schedules(ctx, m.After, n)
	})
	return api.Schedules{Agents: all, Page: page}, err
}

// chooseModel stores how an agent thinks. A run in progress uses it for its next model call.
func (h *handlers) chooseModel(ctx context.Context, m api.ChooseModel) (api.Agent, error) {
	id := strings.ToLower(m.Agent)
	if m.Model != "" && !api.ValidModelID(m.Model) {
		return api.Agent{}, api.Errorf(api.Invalid, "%.40q is not the id of a model", m.Model)
	}
	if err := h.store.Choose(ctx, id, engine.Choice{Model: m.Model, LowCompute: m.LowCompute}, h.now().UnixMicro()); err != nil {
		return api.Agent{}, err
	}
	return h.store.Agent(ctx, id)
}

// mayRest reports whether an agent may be told to sleep until a time: within 24 hours, and a
// minute more, because the caller's clock may be ahead of this one. Times are Unix
// microseconds.
func mayRest(until, now int64) bool {
	return until > now && until <= now+(24*time.Hour+time.Minute).Microseconds()
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
	case m.Until != 0 && !mayRest(m.Until, now):
		return a, &api.Error{Code: api.Invalid, Message: "the time is not within the next 24 hours", Next: "use a time from now on and within 24 hours, or leave it out: the agent then sleeps until a message or a wake comes"}
	}
	why := cmp.Or(m.Reason, "told to sleep")
	for _, session := range []string{a.Session, a.Mail} {
		err := h.cancelQueue(ctx, session, 0, "the agent was told to sleep: "+why)
		if err != nil {
			return a, err
		}
	}
	if m.Until != 0 {
		if _, err := h.clients.SetAlarm(ctx, api.SetAlarm{ID: fmt.Sprintf("%s/sleep/%d", id, m.Until), Agent: id, At: m.Until, Reason: why}); err != nil {
			return a, err
		}
	}
	if err := h.begins.Flush(ctx, id); err != nil {
		return a, err
	}
	if _, err := h.store.SetState(ctx, id, api.StateSleeping, why, false, m.Until, now); err != nil {
		return a, err
	}
	h.relay.Wake()
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

// tierChanged checks the balance of the agent if its tier rises, or becomes dead or
// critical; all other changes of its state follow from runs. It reads the current balance,
// so a late or repeated event is harmless. Mail that is held for a budget is held again.
func (h *handlers) tierChanged(ctx context.Context, m api.TierChanged) error {
	rises := slices.Index(api.Tiers(), m.To) < slices.Index(api.Tiers(), m.From)
	poor := m.To == api.TierDead || m.To == api.TierCritical
	if !rises && !poor {
		return nil
	}
	if now := h.now(); rises && !poor { // the agent can pay for mail that it has not answered
		if err := h.store.ShortenHolds(ctx, m.Agent, now.UnixMicro(), now.Add(deathAfter).UnixMicro()); err != nil {
			return err
		}
	}
	err := h.checkBalance(ctx, m.Agent)
	if err == nil && rises {
		err = h.funded(ctx, m.Agent)
	}
	if api.CodeOf(err) == api.NotFound {
		return nil // an account without an agent
	}
	return err
}

// funded ends the state critical of an agent that could not pay for its last run.
func (h *handlers) funded(ctx context.Context, agent string) error {
	c, err := h.store.Fund(ctx, agent, h.now().UnixMicro())
	if err != nil {
		return err
	}
	if c != nil {
		h.relay.Wake()
	}
	return h.wakeFunded(ctx, agent)
}

// wakeFunded sets an alarm that wakes an autonomous agent now, which has no other alarm: it
// could not pay, or was dead, and was funded. It does nothing for an agent in any other
// state. It is idempotent, because the id of the alarm has the time of that state.
func (h *handlers) wakeFunded(ctx context.Context, agent string) error {
	since, err := h.store.FundedSince(ctx, agent)
	if err != nil || since == 0 {
		return err
	}
	_, err = h.clients.SetAlarm(ctx, api.SetAlarm{
		ID: fmt.Sprintf("%s/funded/%d", agent, since), Agent: agent, At: h.now().UnixMicro(), Reason: "you were funded",
	})
	return err
}

// walletChanged stores the present address of an agent and announces it. It asks treasury
// for the address, because events may arrive late; a replica of treasury that answers with
// the address before the rotation is asked again.
func (h *handlers) walletChanged(ctx context.Context, m api.WalletChanged) error {
	account, err := bus.Call[api.Account](ctx, h.bus, api.OpenAccount{Agent: m.Agent})
	if err != nil {
		return err
	}
	if account.Address == m.Earlier {
		return &api.Error{Code: api.Unavailable, Message: "treasury answers with the earlier address", Next: "no action is needed: the message is redelivered", RetryAfter: 2000}
	}
	changed, err := h.store.SetAddress(ctx, m.Agent, account.Address, h.now().UnixMicro())
	if api.CodeOf(err) == api.NotFound {
		return nil // an account without an agent
	}
	if changed {
		h.relay.Wake()
		h.log.InfoContext(ctx, "agent has another wallet", "agent", m.Agent, "address", account.Address)
	}
	return err
}

// checkBalance reads an agent's balance and changes its state accordingly: an agent without
// credits for an hour becomes dead, and a deposit changes a dead agent to sleeping and
// wakes it if it is autonomous. If the balance is unknown, the state does not change
// (docs/reference/loop.md, unknown balance).
func (h *handlers) checkBalance(ctx context.Context, agent string) error {
	b, err := h.clients.Balance(ctx, agent)
	if err != nil {
		return err
	}
	c, err := h.store.ApplyBalance(ctx, agent, b.Available+b.Held, deathAfter, h.now().UnixMicro())
	if err != nil || c == nil {
		return err
	}
	h.relay.Wake()
	h.log.InfoContext(ctx, "agent changed", "agent", agent, "state", c.State, "why", c.Reason)
	return h.wakeFunded(ctx, agent)
}

// sweep periodically checks the conditions that no event announces: lost notices, held
// mail, and messages that have expired.
func (h *handlers) sweep(ctx context.Context) error {
	wait.Every(ctx, h.sweepEvery(), func() {
		h.queue.CheckCancels(ctx, h.store.IsCancelled)
		h.warn(ctx, "held mail", h.freeMail(ctx))
		h.warn(ctx, "queued messages", h.expiry.Sweep(ctx))
	})
	return nil
}

// sweepBalances periodically checks the time without credits, and deposits that do not
// change the tier. It is separate from sweep, because treasury may be slow or unavailable.
func (h *handlers) sweepBalances(ctx context.Context) error {
	after := ""
	wait.Every(ctx, h.sweepEvery(), func() { after = h.checkBalances(ctx, after) })
	return nil
}

// checkBalances checks the balances of agents with ids greater than after, and returns the
// id to continue after, "" after the last agent. It ends at an agent whose balance is
// unavailable: those of the others are probably unavailable, too, and each request takes
// seconds then.
func (h *handlers) checkBalances(ctx context.Context, after string) string {
	ids, more, err := h.store.LowOnFunds(ctx, after)
	if err != nil {
		h.warn(ctx, "low balances", err)
		return after
	}
	for _, agent := range ids {
		err := h.checkBalance(ctx, agent)
		if err != nil && ctx.Err() == nil {
			h.log.DebugContext(ctx, "balance unknown, state not changed", "agent", agent, "err", err)
		}
		if api.CodeOf(err) == api.Unavailable {
			return agent
		}
	}
	if more {
		return ids[len(ids)-1]
	}
	return ""
}

func (h *handlers) sweepEvery() time.Duration {
	return max(min(checkEvery, h.cfg.QueueTimeout/4), 50*time.Millisecond)
}

func (h *handlers) warn(ctx context.Context, check string, err error) {
	if err != nil && ctx.Err() == nil {
		h.log.WarnContext(ctx, "check failed, retrying", "check", check, "err", err)
	}
}

package heartbeat

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

// maxEntries limits the entries of a response, so that it fits into a NATS message.
const maxEntries = 2000

type handlers struct {
	store schedule.Store
	wakes *bus.Bucket[api.Wake]
	bus   *bus.Bus
	now   func() time.Time
	tel   instruments
	trace trace.Tracer
	kick  func(context.Context, time.Time) // notifies the clock of something due at a time
}

// agents stores the states of agents in a transaction of the caller.
type agents interface {
	SeeAgents(ctx context.Context, tx *sqldb.Tx, all []schedule.Agent) (stirred bool, err error)
}

// agentsChanged applies changes of agents in the transaction that stores the cursor. An
// agent that is new or not dead any more may have due entries, and one that sleeps again a
// postponed alarm, so the returned function kicks the clock after the commit. A crash
// before that delays them by at most [schedule.Safety].
func (h *handlers) agentsChanged(ctx context.Context, store agents, tx *sqldb.Tx, all []api.AgentChanged) (committed func(context.Context), err error) {
	seen := make([]schedule.Agent, len(all))
	for i, m := range all {
		seen[i] = agentOf(m)
	}
	stirred, err := store.SeeAgents(ctx, tx, seen)
	if err != nil || !stirred {
		return nil, err
	}
	return func(ctx context.Context) { h.kick(ctx, h.now()) }, nil
}

func agentOf(m api.AgentChanged) schedule.Agent {
	return schedule.Agent{ID: m.Agent, Address: m.Address, State: m.State, Seq: m.Seq, Changed: time.UnixMicro(m.At).UTC()}
}

func (h *handlers) messageReceived(ctx context.Context, m api.MessageReceived) error {
	id := m.ID[:min(12, len(m.ID))]
	if !api.ValidKey(m.Agent) || !api.ValidKey(id) {
		return api.Errorf(api.Invalid, "message %q for agent %q: one of the ids is not a valid key", m.ID, m.Agent)
	}
	h.tel.wake(ctx, "inbox")
	_, err := h.wake(ctx, api.Wake{
		Agent: m.Agent, Cause: "inbox-" + id, Reason: "a message from " + m.From + " arrived",
		By: api.Principal{Kind: api.Peer, Address: m.From}, At: m.At, // of the message, so that a redelivery makes the same wake
	})
	return err
}

// goalChanged wakes an agent when its goal is complete or has failed: the tasks may have
// run while the agent was sleeping, and there is no other notification. A cancelled goal
// wakes no agent.
func (h *handlers) goalChanged(ctx context.Context, m api.GoalChanged) error {
	if m.Phase == m.Previous {
		return nil
	}
	reason := fmt.Sprintf("your goal %q is complete", m.Title)
	switch m.Phase {
	case api.PhaseComplete:
	case api.PhaseFailed:
		reason = fmt.Sprintf("your goal %q has failed: %s", m.Title, m.Reason)
	case api.PhaseClassifying, api.PhasePlanning, api.PhaseReview, api.PhaseExecuting, api.PhaseReplanning, api.PhaseCancelled:
		return nil
	}
	if !api.ValidKey(m.Agent) || !api.ValidKey(m.Goal) {
		return api.Errorf(api.Invalid, "goal %q of agent %q: one of the ids is not a valid key", m.Goal, m.Agent)
	}
	h.tel.wake(ctx, "goal")
	_, err := h.wake(ctx, api.Wake{
		Agent: m.Agent, Cause: "goal-" + m.Goal, Reason: schedule.Clip(reason),
		By: api.Principal{Kind: api.HeartbeatKind}, At: m.At, // time of the change, so that a redelivery makes the same wake
	})
	return err
}

func (h *handlers) setSchedule(ctx context.Context, m api.SetSchedule) (api.Schedule, error) {
	now := h.now().UTC()
	entries, faults := schedule.Check(m.Agent, entriesOf(m.Beats), now)
	if len(faults) > 0 {
		return api.Schedule{}, &api.Error{
			Code: api.Invalid, Message: "the schedule has faults", Next: "correct them and set it again", Details: faults,
		}
	}
	if err := h.store.SetSchedule(ctx, m.Agent, entries); err != nil {
		return api.Schedule{}, err
	}
	if len(entries) > 0 {
		next := slices.MinFunc(entries, func(a, b schedule.Entry) int { return a.Next.Compare(b.Next) }).Next
		h.kick(ctx, next)
	}
	return h.schedule(ctx, m.Agent)
}

func entriesOf(beats []api.Beat) (entries []schedule.Entry) {
	for _, b := range beats {
		entries = append(entries, schedule.Entry{Name: b.Name, Cron: b.Cron, Reason: b.Reason})
	}
	return entries
}

func (h *handlers) getSchedule(ctx context.Context, m api.GetSchedule) (api.Schedule, error) {
	return h.schedule(ctx, m.Agent)
}

func (h *handlers) schedule(ctx context.Context, agent string) (api.Schedule, error) {
	entries, err := h.store.Schedule(ctx, agent)
	if err != nil {
		return api.Schedule{}, err
	}
	if len(entries) > maxEntries {
		return api.Schedule{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%d entries are too many for one answer", len(entries)), Next: "ask for one agent",
		}
	}
	out := api.Schedule{Entries: []api.ScheduleEntry{}}
	for _, b := range entries {
		out.Entries = append(out.Entries, api.ScheduleEntry{Agent: b.Agent, Beat: api.Beat{
			Name: b.Name, Cron: b.Cron, Reason: b.Reason, Next: schedule.Micros(b.Next), Last: schedule.Micros(b.Last), Runs: b.Runs,
		}})
	}
	return out, nil
}

func (h *handlers) setAlarm(ctx context.Context, m api.SetAlarm) (api.Alarm, error) {
	now := h.now().UTC()
	a := schedule.Alarm{ID: m.ID, Agent: m.Agent, At: time.UnixMicro(m.At).UTC(), Reason: schedule.Clip(m.Reason), Set: now}
	if err := a.Check(now); err != nil {
		return api.Alarm{}, api.Errorf(api.Invalid, "%v", err)
	}
	set, err := failpoint.Value(ctx, failpoint.HeartbeatAlarm, func(ctx context.Context) (schedule.Alarm, error) { return h.store.SetAlarm(ctx, a) })
	if err != nil {
		return api.Alarm{}, err
	}
	h.kick(ctx, set.At)
	return api.Alarm{Agent: set.Agent, At: set.At.UnixMicro()}, nil
}

// requestWake puts a wake for the creator. The wake has the time of the request, so that
// a request that [bus.Call] repeats after loop has consumed the wake starts no other run.
func (h *handlers) requestWake(ctx context.Context, m api.RequestWake) (api.Wake, error) {
	if !api.ValidKey(m.Agent) || !api.ValidKey(m.Cause) {
		return api.Wake{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("agent %.130q or cause %.130q is not a key", m.Agent, m.Cause),
			Next: "use 1 to 128 of letters, digits, - and _",
		}
	}
	known, err := h.announced(ctx, m.Agent)
	if err != nil {
		return api.Wake{}, err
	}
	if !known {
		return api.Wake{}, &api.Error{
			Code: api.NotFound, Message: "heartbeat has no agent " + m.Agent, Next: "anima agent list shows the agents; anima agent apply creates one",
		}
	}
	h.tel.wake(ctx, "creator")
	return h.wake(ctx, api.Wake{
		Agent: m.Agent, Cause: m.Cause, Reason: schedule.Clip(m.Reason),
		By: api.Principal{Kind: api.Creator}, At: cmp.Or(bus.RequestedAt(ctx), h.now().UnixMicro()),
	})
}

// announceWithin is how long heartbeat waits for the first event of an agent that was
// just applied.
const announceWithin = time.Second

// announced reports whether an agent is known. It waits for the first event of an agent,
// because the absence of an agent that was just applied proves nothing (ADR 11).
func (h *handlers) announced(ctx context.Context, agent string) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, announceWithin)
	defer cancel()
	for {
		known, err := h.store.HasAgent(ctx, agent)
		if known || err != nil {
			return known, err
		}
		if wait.For(limited, 20*time.Millisecond) != nil {
			return false, ctx.Err() // no error if only the limit has passed
		}
	}
}

// wake puts a wake into the bucket, announces it, and returns the wake in the bucket. It
// is idempotent: a repeated call results in one wake and one announcement.
func (h *handlers) wake(ctx context.Context, w api.Wake) (api.Wake, error) {
	w, err := h.putWake(ctx, w)
	if err != nil {
		return w, err
	}
	return w, h.bus.Publish(ctx, wakeID(w), api.WakeRequested{Wake: w})
}

// wakeDue puts the wake of something due; the outbox announces it.
func (h *handlers) wakeDue(ctx context.Context, d schedule.Due) error {
	_, err := h.putWake(ctx, wakeOf(d))
	return err
}

// putWake creates the key of a wake and returns its value: if the key exists, the wake in
// it. After a crash a consumed wake may be put again; loop recognises it by cause and
// time.
func (h *handlers) putWake(ctx context.Context, w api.Wake) (api.Wake, error) {
	ctx, span := h.trace.Start(ctx, "publish wake", trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(telemetry.AgentID.String(w.Agent)))
	defer span.End()
	w.Trace = bus.TraceParent(ctx)
	key := api.WakeKey(w.Agent, w.Cause)
	for {
		_, err := failpoint.Value(ctx, failpoint.HeartbeatWake, func(ctx context.Context) (uint64, error) { return h.wakes.Create(ctx, key, w, 0) })
		if api.CodeOf(err) != api.Conflict {
			return w, err
		}
		// The wake that was read may have been consumed since. So it is written again
		// unchanged, which has no effect in loop; a conflict shows that it was consumed.
		e, err := h.wakes.Get(ctx, key)
		if err == nil {
			_, err = h.wakes.Update(ctx, key, e.Value, e.Revision, 0)
		}
		if code := api.CodeOf(err); code != api.NotFound && code != api.Conflict {
			return e.Value, err
		}
	}
}

// wakeOf returns the wake of something due. Its time is the due time, so that it does not
// depend on when the clock fires.
func wakeOf(d schedule.Due) api.Wake {
	reason := d.Reason
	switch {
	case reason == "" && d.Alarm != "":
		reason = "the time you set has come"
	case reason == "":
		reason = "it is time for " + d.Name
	}
	return api.Wake{
		Agent: d.Agent, Cause: d.Cause(), Reason: reason, By: api.Principal{Kind: api.HeartbeatKind}, At: d.At.UnixMicro(),
	}
}

// announce adds the events of fired to the outbox.
func announce(ctx context.Context, tx *sqldb.Tx, fired []schedule.Fired) error {
	for _, f := range fired {
		tick := api.Ticked{Agent: f.Agent, Name: f.Name, Due: f.At.UnixMicro(), At: f.When.UnixMicro()}
		if err := outbox.Add(ctx, tx, strings.Join([]string{"ticked", f.Agent, f.Cause()}, "/"), tick); err != nil {
			return err
		}
		w := wakeOf(f.Due)
		if err := outbox.Add(ctx, tx, wakeID(w), api.WakeRequested{Wake: w}); err != nil {
			return err
		}
	}
	return nil
}

// wakeID returns a message id that differs between two wakes of one cause: the second is
// put after the first was consumed and has another time.
func wakeID(w api.Wake) string {
	return "wake_requested/" + w.Agent + "/" + w.Cause + "/" + strconv.FormatInt(w.At, 10)
}

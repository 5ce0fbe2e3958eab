package heartbeat

import (
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
	"github.com/anima-run/anima/services/heartbeat/internal/beat"
)

// maxEntries keeps an answer below what NATS carries.
const maxEntries = 2000

type handlers struct {
	store beat.Store
	wakes *bus.Bucket[api.Wake]
	bus   *bus.Bus
	now   func() time.Time
	tel   instruments
	trace trace.Tracer
	kick  func(context.Context, time.Time) // says that something is due at a time
}

// agents keeps the states of agents, in a transaction of its caller's.
type agents interface {
	SeeAgents(ctx context.Context, tx *sqldb.Tx, all []beat.Agent) (stirred bool, err error)
}

// agentsChanged applies changes of agents, in the transaction that notes how far they
// were read. An agent that is new or alive again may have entries that are due: the
// clock is told after the commit. Dying before that costs at most [beat.Safety].
func (h *handlers) agentsChanged(ctx context.Context, store agents, tx *sqldb.Tx, all []api.AgentChanged) (committed func(context.Context), err error) {
	seen := make([]beat.Agent, len(all))
	for i, m := range all {
		seen[i] = beat.Agent{ID: m.Agent, Address: m.Address, State: m.State, Seq: m.Seq, Changed: time.UnixMicro(m.At).UTC()}
	}
	stirred, err := store.SeeAgents(ctx, tx, seen)
	if err != nil || !stirred {
		return nil, err
	}
	return func(ctx context.Context) { h.kick(ctx, h.now()) }, nil
}

func (h *handlers) messageReceived(ctx context.Context, m api.MessageReceived) error {
	id := m.ID[:min(12, len(m.ID))]
	if !api.ValidKey(m.Agent) || !api.ValidKey(id) {
		return api.Errorf(api.Invalid, "message %q for agent %q: no key of the bucket", m.ID, m.Agent)
	}
	h.tel.wake(ctx, "inbox")
	_, err := h.wake(ctx, api.Wake{
		Agent: m.Agent, Cause: "inbox-" + id, Reason: "a message from " + m.From + " arrived",
		By: api.Principal{Kind: api.Peer, Address: m.From}, At: m.At, // of the message: told of it again, it is the same wake
	})
	return err
}

// goalChanged wakes an agent whose goal is over, one way or the other: its tasks went
// on while it slept, and nothing else tells it. A goal that was cancelled wakes no agent.
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
		return api.Errorf(api.Invalid, "goal %q of agent %q: no key of the bucket", m.Goal, m.Agent)
	}
	h.tel.wake(ctx, "goal")
	_, err := h.wake(ctx, api.Wake{
		Agent: m.Agent, Cause: "goal-" + m.Goal, Reason: beat.Clip(reason),
		By: api.Principal{Kind: api.HeartbeatKind}, At: m.At, // of the end: told of it again, it is the same wake
	})
	return err
}

func (h *handlers) setSchedule(ctx context.Context, m api.SetSchedule) (api.Schedule, error) {
	now := h.now().UTC()
	var beats []beat.Beat
	for _, b := range m.Beats {
		beats = append(beats, beat.Beat{Name: b.Name, Cron: b.Cron, Reason: b.Reason})
	}
	beats, faults := beat.Check(m.Agent, beats, now)
	if len(faults) > 0 {
		return api.Schedule{}, &api.Error{
			Code: api.Invalid, Message: "the schedule has faults", Next: "correct them and set it again", Details: faults,
		}
	}
	if err := h.store.SetSchedule(ctx, m.Agent, beats); err != nil {
		return api.Schedule{}, err
	}
	if len(beats) > 0 {
		next := slices.MinFunc(beats, func(a, b beat.Beat) int { return a.Next.Compare(b.Next) }).Next
		h.kick(ctx, next)
	}
	return h.schedule(ctx, m.Agent)
}

func (h *handlers) getSchedule(ctx context.Context, m api.GetSchedule) (api.Schedule, error) {
	return h.schedule(ctx, m.Agent)
}

func (h *handlers) schedule(ctx context.Context, agent string) (api.Schedule, error) {
	beats, err := h.store.Schedule(ctx, agent)
	if err != nil {
		return api.Schedule{}, err
	}
	if len(beats) > maxEntries {
		return api.Schedule{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%d entries are too many for one answer", len(beats)), Next: "ask for one agent",
		}
	}
	out := api.Schedule{Entries: []api.ScheduleEntry{}}
	for _, b := range beats {
		out.Entries = append(out.Entries, api.ScheduleEntry{Agent: b.Agent, Beat: api.Beat{
			Name: b.Name, Cron: b.Cron, Reason: b.Reason, Next: micros(b.Next), Last: micros(b.Last), Runs: b.Runs,
		}})
	}
	return out, nil
}

func (h *handlers) setAlarm(ctx context.Context, m api.SetAlarm) (api.Alarm, error) {
	now := h.now().UTC()
	a := beat.Alarm{ID: m.ID, Agent: m.Agent, At: time.UnixMicro(m.At).UTC(), Reason: beat.Clip(m.Reason), Set: now}
	if err := a.Check(now); err != nil {
		return api.Alarm{}, api.Errorf(api.Invalid, "%v", err)
	}
	set, err := failpoint.Value(ctx, failpoint.HeartbeatAlarm, func(ctx context.Context) (beat.Alarm, error) { return h.store.SetAlarm(ctx, a) })
	if err != nil {
		return api.Alarm{}, err
	}
	h.kick(ctx, set.At)
	return api.Alarm{Agent: set.Agent, At: set.At.UnixMicro()}, nil
}

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
			Code: api.NotFound, Message: "heartbeat knows no agent " + m.Agent, Next: "anima agent list shows the ones there are; anima agent apply makes one",
		}
	}
	h.tel.wake(ctx, "creator")
	return h.wake(ctx, api.Wake{
		Agent: m.Agent, Cause: m.Cause, Reason: beat.Clip(m.Reason),
		By: api.Principal{Kind: api.Creator}, At: h.now().UnixMicro(),
	})
}

// announceWithin is how long an agent that was just applied may take to be announced.
const announceWithin = time.Second

// announced says whether an agent is known. An agent that was applied a moment ago is
// known when its first event has come: that it is not there yet says nothing (ADR 11).
func (h *handlers) announced(ctx context.Context, agent string) (bool, error) {
	late := time.NewTimer(announceWithin)
	defer late.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		known, err := h.store.HasAgent(ctx, agent)
		if known || err != nil {
			return known, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-late.C:
			return false, nil
		case <-again.C:
		}
	}
}

// wake puts a wake into the bucket, announces it, and returns the one that
// waits. Done twice it is one wake and one announcement.
func (h *handlers) wake(ctx context.Context, w api.Wake) (api.Wake, error) {
	w, err := h.putWake(ctx, w)
	if err != nil {
		return w, err
	}
	return w, h.bus.Publish(ctx, wakeID(w), api.WakeRequested{Wake: w})
}

// wakeDue puts the wake of something due; the outbox announces it.
func (h *handlers) wakeDue(ctx context.Context, d beat.Due) error {
	_, err := h.putWake(ctx, wakeOf(d))
	return err
}

// putWake makes the key of a wake and returns what it holds: if a wake of this
// cause waits already, that one. A wake that was consumed may be put again, after a
// crash: by cause and time loop knows it for the same.
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
		// What a look shows may be consumed already, so the wake that waits is written
		// again as it is: for loop it is the same, and a refusal says that it has gone.
		e, err := h.wakes.Get(ctx, key)
		if err == nil {
			_, err = h.wakes.Update(ctx, key, e.Value, e.Revision, 0)
		}
		if code := api.CodeOf(err); code != api.NotFound && code != api.Conflict {
			return e.Value, err
		}
	}
}

// wakeOf is the wake of something due. Its time is when that was due, whenever the
// clock came to it.
func wakeOf(d beat.Due) api.Wake {
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

// announce writes what was fired into the outbox.
func announce(ctx context.Context, tx *sqldb.Tx, fired []beat.Fired) error {
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

// wakeID tells two wakes of one cause apart: the second comes after the first
// was consumed and is of another time.
func wakeID(w api.Wake) string {
	return "wake_requested/" + w.Agent + "/" + w.Cause + "/" + strconv.FormatInt(w.At, 10)
}

// micros is t on the wire; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

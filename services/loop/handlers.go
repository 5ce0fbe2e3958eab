package loop

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/outbox"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/mcp"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

type handlers struct {
	cfg     Config
	bus     *bus.Bus
	log     *slog.Logger
	now     func() time.Time
	store   *sqlstore.Store
	relay   *outbox.Relay
	clients clients
	wakes   *bus.Bucket[api.Wake]
	locks   locker
	queue   *queue
	begins  *beginRecorder
	outputs outputs
	room    func() error // error while the disk has only its reserve and no message may be accepted
	engine  *engine.Engine
	goals   *goalHandlers
	servers *mcp.Manager
	can     abilities
	running metric.Int64UpDownCounter
}

// applyAgent creates or updates an agent from an AGENT.md. It opens the account first
// and announces the agent last: a crash in between leaves an account without an agent,
// which the next apply uses. The answer has a warning for each tool that the agent
// cannot use.
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
	beats := api.SetSchedule{Agent: id, Beats: []api.Beat{}}
	for _, s := range def.Schedule {
		beats.Beats = append(beats.Beats, api.Beat{Name: s.Name, Cron: s.Cron, Reason: s.Reason})
	}
	if _, err := bus.Call[api.Schedule](ctx, h.bus, beats); err != nil {
		return api.Agent{}, err
	}
	applied, err := h.store.Apply(ctx, def, id, account.Address, m.Source, h.now().UnixMicro())
	if err != nil {
		return api.Agent{}, err
	}
	h.relay.Kick()
	if applied.Changed {
		h.log.InfoContext(ctx, "agent applied", "agent", id, "version", applied.Agent.Version)
	}
	a, err := h.store.Definition(ctx, id)
	if err != nil {
		return api.Agent{}, err
	}
	applied.Agent.Warnings = h.can.warnings(a)
	return applied.Agent, nil
}

func (h *handlers) getAgent(ctx context.Context, m api.GetAgent) (api.Agent, error) {
	return h.store.Agent(ctx, strings.ToLower(m.Agent))
}

func (h *handlers) listAgents(ctx context.Context, m api.ListAgents) (api.Agents, error) {
	limit, err := api.PageLimit(m.Limit, api.MaxPage)
	if err != nil {
		return api.Agents{}, err
	}
	all, err := h.store.Agents(ctx, m.After, limit+1)
	all, page := api.CutPage(all, limit, func(a api.Agent) string { return a.ID })
	return api.Agents{Agents: all, Page: page}, err
}

// sendMessage accepts a message. The message is accepted when its run is stored in the
// work queue, whose server refuses the run if the queue is full.
func (h *handlers) sendMessage(ctx context.Context, m api.SendMessage) (api.Accepted, error) {
	if err := h.room(); err != nil {
		return api.Accepted{}, err
	}
	if err := checkMessage(m); err != nil {
		return api.Accepted{}, err
	}
	agent, err := h.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Accepted{}, err
	}
	at := h.now().UnixMicro()
	by := api.Principal{Kind: api.Creator}
	session := agent.Session
	run := runID(m.ID, by, agent.ID, m.Session)
	switch m.Session {
	case "":
	case sessionNew:
		session = agent.ID + "-" + run
	default:
		s, err := h.store.Session(ctx, m.Session)
		if err != nil {
			return api.Accepted{}, err
		}
		if s.Agent != agent.ID {
			return api.Accepted{}, &api.Error{Code: api.Invalid, Message: "session " + s.ID + " belongs to " + s.Agent, Next: "leave the session out, or name one of " + agent.ID}
		}
		if s.Terminated != 0 {
			return api.Accepted{}, &api.Error{
				Code: api.Conflict, Reason: api.ReasonTerminated, Message: "session " + s.ID + " is terminated: " + s.Reason,
				Next: "leave the session out, or begin a new one with session new",
			}
		}
		session = s.ID
		if session == agent.Session { // the main session has the same runs whether it is named or not
			run = runID(m.ID, by, agent.ID, "")
		}
	}
	if m.ID != "" {
		claimed, err := h.store.Claim(ctx, sqlstore.Key{Run: run, Content: m.Content, Mode: m.Mode, At: at})
		if err != nil {
			return api.Accepted{}, err
		}
		if claimed.Begun {
			return api.Accepted{Run: run, Session: session, Agent: agent.ID, At: claimed.At}, nil
		}
	}
	if m.Session == sessionNew {
		if err := h.store.NewSession(ctx, session, agent.ID, at); err != nil {
			return api.Accepted{}, err
		}
	}
	if m.Mode == api.ModeDrop {
		if busy, err := h.busy(ctx, session, run); err != nil || busy {
			if err == nil {
				err = &api.Error{Code: api.Conflict, Message: "session " + session + " is busy", Next: "send it again later, or with mode queue"}
			}
			return api.Accepted{}, err
		}
	}
	cmd := api.Run{
		Run: run, Agent: agent.ID, Session: session, Kind: api.RunMessage, Content: m.Content,
		By: by, Mode: m.Mode, AcceptedAt: at,
	}
	if err := failpoint.Do(ctx, failpoint.LoopAccept, func(ctx context.Context) error { return h.bus.Publish(ctx, "run/"+run, cmd) }); err != nil {
		return api.Accepted{}, err
	}
	// The message is accepted. A crash from here on only loses the effect of its mode,
	// which a repeated request with the same id has again.
	switch m.Mode {
	case api.ModeInterrupt:
		if err := h.cancelQueue(ctx, session, run, "interrupted by "+run); err != nil {
			return api.Accepted{}, err
		}
	case api.ModeSteer:
		if err := h.bus.Tell(ctx, api.SessionNotice{Session: session, Steered: run}); err != nil {
			h.log.WarnContext(ctx, "run in progress not notified, the message runs after it", "run", run, "err", err)
		}
	case api.ModeQueue, api.ModeDrop, api.ModeCollect:
	}
	return api.Accepted{Run: run, Session: session, Agent: agent.ID, At: at}, nil
}

var modes = []api.Mode{api.ModeQueue, api.ModeDrop, api.ModeInterrupt, api.ModeSteer, api.ModeCollect}

func checkMessage(m api.SendMessage) error {
	switch {
	case strings.TrimSpace(m.Content) == "":
		return &api.Error{Code: api.Invalid, Message: "the message is empty", Next: "send a message with text"}
	case len(m.Content) > api.MaxMessageBytes:
		return &api.Error{
			Code: api.Invalid, Reason: api.ReasonTooLarge, Message: fmt.Sprintf("the message has %d bytes, at most %d are taken", len(m.Content), api.MaxMessageBytes),
			Next: "put the long part into a file of the agent's folder and name it",
		}
	case !utf8.ValidString(m.Content):
		return &api.Error{Code: api.Invalid, Message: "the message is not UTF-8"}
	case m.Mode != "" && !slices.Contains(modes, m.Mode):
		return &api.Error{Code: api.Invalid, Message: fmt.Sprintf("there is no mode %q", m.Mode), Next: "use queue, drop, interrupt, steer or collect"}
	case len(m.ID) > 128:
		return &api.Error{Code: api.Invalid, Message: "the id is longer than 128 bytes"}
	}
	return nil
}

// sessionNew is the session name that requests a new session.
const sessionNew = "new"

// runID returns the id of a run. Without an idempotency key it is a new UUID. With a
// key it derives from the key and its scope: different callers, agents or sessions may
// use the same key for different messages. Session "" is the main session.
func runID(key string, by api.Principal, agent, session string) string {
	if key == "" {
		return uuid.Must(uuid.NewV7()).String()
	}
	scope := fmt.Sprintf("anima:message:%q %q %q %q %q", by.Kind, by.Address, agent, session, key)
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(scope)).String()
}

// busy reports whether a session has a run other than the given one. The oldest message
// of its queue is the run in progress, or the next one.
func (h *handlers) busy(ctx context.Context, session, run string) (bool, error) {
	m, err := h.bus.Next(ctx, api.Run{Session: session}.Subject(), 1)
	if api.CodeOf(err) == api.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var cmd api.Run
	err = api.Decode(m.Data, &cmd)
	return cmd.Run != run, err
}

func (h *handlers) getSession(ctx context.Context, m api.GetSession) (api.Session, error) {
	return h.store.Session(ctx, m.Session)
}

func (h *handlers) getTranscript(ctx context.Context, m api.GetTranscript) (api.Transcript, error) {
	if _, err := h.store.Session(ctx, m.Session); err != nil {
		return api.Transcript{}, err
	}
	limit, err := api.PageLimit(m.Limit, 500)
	if err != nil {
		return api.Transcript{}, err
	}
	return h.store.Transcript(ctx, m.Session, m.After, limit)
}

func (h *handlers) getTurn(ctx context.Context, m api.GetTurn) (api.Turn, error) {
	return h.store.Turn(ctx, m.Turn)
}

func (h *handlers) listTurns(ctx context.Context, m api.ListTurns) (api.Turns, error) {
	limit, err := api.PageLimit(m.Limit, 50)
	if err != nil {
		return api.Turns{}, err
	}
	m.Limit, m.Agent = limit+1, strings.ToLower(m.Agent)
	all, err := h.store.Turns(ctx, m)
	all, page := api.CutPage(all, limit, func(t api.Turn) string { return t.ID })
	return api.Turns{Turns: all, Page: page}, err
}

// run executes a run. Any replica may receive it. The replica for which the message is
// the oldest of its session, and which may append to the journal, executes the run;
// others return the message for redelivery until it is too old.
func (h *handlers) run(ctx context.Context, cmd api.Run) error {
	err := h.execute(ctx, cmd)
	if api.ReasonOf(err) != api.ReasonBusy {
		return err
	}
	if late, lerr := h.tooOld(ctx, cmd, h.now().UnixMicro()); lerr != nil || !late {
		return err
	}
	return h.expire(ctx, cmd)
}

// execute executes a run. Its error has ReasonBusy if other runs of the session come
// first.
func (h *handlers) execute(ctx context.Context, cmd api.Run) error {
	meta := bus.MetaOf(ctx)
	return h.locks.with(ctx, cmd, func(ctx context.Context) error {
		head, err := h.head(ctx, cmd, meta.Sequence)
		switch {
		case api.CodeOf(err) == api.NotFound, err == nil && head > meta.Sequence:
			return h.absent(ctx, cmd)
		case err != nil:
			return err
		case head != meta.Sequence:
			return &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "an older message of the session waits", RetryAfter: 50}
		}
		late, err := h.wasBehind(ctx, cmd)
		if err != nil {
			return err
		}
		if late {
			err := h.engine.Refuse(ctx, h.late(cmd), events{bus: h.bus, posts: h.bus.Posts()})
			if api.CodeOf(err) != api.Conflict {
				return err
			}
		}
		if err := h.rested(ctx, cmd); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(h.store.Workspace(cmd.Agent), ".tmp"), 0o700); err != nil {
			return fmt.Errorf("create workspace: %w", err)
		}
		h.running.Add(ctx, 1)
		defer h.running.Add(ctx, -1)
		return h.live(ctx, cmd)
	})
}

// live executes a run. Before and after a run of kind mail it applies the mail budgets
// and starts the next run.
func (h *handlers) live(ctx context.Context, cmd api.Run) error {
	if cmd.Kind != api.RunMail {
		return h.engine.Run(ctx, cmd, events{bus: h.bus, posts: h.bus.Posts()})
	}
	over, err := h.admitMail(ctx, &cmd)
	if err == nil && !over {
		err = h.engine.Run(ctx, cmd, events{bus: h.bus, posts: h.bus.Posts()})
	}
	if err != nil {
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

// head returns the sequence of a session's oldest message that is not done. An older
// message than ours is usually done, and its acknowledgement has not reached the
// stream; therefore head retries for a few milliseconds, which is shorter than a
// redelivery. If the message remains, its acknowledgement may be lost; head then reads
// its run from the store and does not wait for the redelivery.
func (h *handlers) head(ctx context.Context, cmd api.Run, ours uint64) (uint64, error) {
	from := uint64(1)
	for wait := time.Millisecond / 2; ; wait *= 2 {
		m, err := h.bus.Next(ctx, cmd.Subject(), from)
		if err != nil || m.Sequence >= ours {
			return m.Sequence, err
		}
		if wait > 8*time.Millisecond {
			if done, err := h.done(ctx, m); err != nil || !done {
				return m.Sequence, err
			}
			from, wait = m.Sequence+1, time.Millisecond/4
			continue
		}
		if err := pause(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// done reports whether the run of a queued message is over. If so, it announces the end
// again, because the owner may have crashed before that.
func (h *handlers) done(ctx context.Context, m bus.Stored) (bool, error) {
	var cmd api.Run
	if err := api.Decode(m.Data, &cmd); err != nil {
		return false, nil //nolint:nilerr // its own delivery reports the error
	}
	over, err := h.store.Over(ctx, cmd.Run)
	if err != nil || !over {
		return false, err
	}
	return true, h.engine.Run(ctx, cmd, events{bus: h.bus, posts: h.bus.Posts()})
}

// rested returns an error that redelivers a wake if its agent has slept for less than
// [lifecycle.Pause], so that no error can make an agent run continuously
// (docs/reference/loop.md, continuous wake).
func (h *handlers) rested(ctx context.Context, cmd api.Run) error {
	if cmd.Kind != api.RunWake {
		return nil
	}
	state, since, err := h.store.Since(ctx, cmd.Agent)
	if err != nil || state != api.StateSleeping {
		return err
	}
	if wait := pausing(cmd, since, h.now().UnixMicro()); wait > 0 {
		return &api.Error{Code: api.Unavailable, Message: "the agent has just gone to sleep", RetryAfter: wait.Milliseconds() + 1}
	}
	return nil
}

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
		t := time.NewTimer(500 * time.Millisecond)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// waitRoom waits until runs may be accepted. It returns false if ctx has ended.
func (h *handlers) waitRoom(ctx context.Context) bool {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for h.room() != nil {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
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

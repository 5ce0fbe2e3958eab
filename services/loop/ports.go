package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// clients calls the other services over the bus. It implements the ports of packages
// turn and tool.
type clients struct {
	bus  *bus.Bus
	now  func() time.Time
	past *atomic.Int64 // time until which the router is treated as one of an older release, in Unix µs
}

func newClients(b *bus.Bus, now func() time.Time) clients {
	return clients{bus: b, now: now, past: &atomic.Int64{}}
}

// completeTimeout is the router's timeout for a turn, 120 s, plus time for its answer
// (docs/reference/loop.md, Time limits).
const completeTimeout = 125 * time.Second

// settleTimeout limits the wait for a settlement that the router has started.
const settleTimeout = 25 * time.Second

// pastRouter is the time for which questions are sent in the form of an older release,
// after no router of this release has answered. encodedWithin limits the wait for a
// router of this release.
const (
	pastRouter    = 30 * time.Second
	encodedWithin = time.Second
)

// silentWithin limits the wait after a period without any answer. The bus repeats a
// request after 3 s without an answer, and each wait restarts that time.
const silentWithin = 5 * time.Second

type answering = bus.Streaming[api.Delta, api.Completion]

// ask sends a question to the router. It uses the encoded form of the prompt if a
// router accepts it, and the older form otherwise.
func (s clients) ask(ctx context.Context, q engine.Question) (*answering, error) {
	if s.now().UnixMicro() >= s.past.Load() {
		m, err := q.V2()
		if err != nil {
			return nil, err
		}
		stream, err := bus.OpenStream[api.Delta, api.Completion](ctx, s.bus, m)
		if err != nil {
			return nil, err
		}
		// If there is no answer at all, because a router is slow, a router has crashed,
		// or NATS has not reported yet that there is none, ask waits again.
		for within := encodedWithin; api.ReasonOf(err) != api.ReasonNoAnswer; within = silentWithin {
			some, cancel := context.WithTimeout(ctx, within)
			err = stream.Begin(some)
			silent := some.Err() != nil && ctx.Err() == nil
			cancel()
			if err == nil || !silent && api.ReasonOf(err) != api.ReasonNoAnswer {
				return stream, err
			}
		}
		stream.Close()
		s.past.Store(s.now().Add(pastRouter).UnixMicro())
	}
	return bus.OpenStream[api.Delta, api.Completion](ctx, s.bus, q.Complete)
}

// Complete implements engine.Router. [settling.Wait] reads the rest of the stream.
func (s clients) Complete(ctx context.Context, q engine.Question, delta func(api.Delta)) (api.Completion, engine.Settling, error) {
	within, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	defer bus.Within(ctx, completeTimeout)()
	stream, err := s.ask(within, q)
	if err != nil {
		if stream != nil {
			stream.Close()
		}
		return api.Completion{}, nil, err
	}
	free := context.AfterFunc(ctx, stream.Close)
	for {
		d, more, err := stream.Next(within)
		switch {
		case err != nil:
			free()
			stream.Close()
			return api.Completion{}, nil, err
		case !more: // no settlement follows, or the router is of an older release
			free()
			stream.Close()
			return stream.Answer(), engine.Settled{Funds: stream.Answer().Funds}, nil
		}
		if d.Content != "" || d.Discard || d.Note != "" {
			delta(d)
		}
		if d.Answer != nil {
			return *d.Answer, settling{s, stream, q.Agent, q.ID, free}, nil
		}
	}
}

// settling is the settlement of an answer, which the router reports at the end of the
// stream.
type settling struct {
	services clients
	stream   *answering
	agent    string
	call     string
	free     func() bool
}

// Wait implements turn.Settling. If the stream breaks off, it requests the settlement
// with confirm, from any replica of the router.
func (s settling) Wait(ctx context.Context) (*api.Funds, error) {
	defer s.stream.Close()
	defer s.free()
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	defer bus.Within(ctx, settleTimeout)()
	return failpoint.Value(ctx, failpoint.LoopSettled, func(ctx context.Context) (*api.Funds, error) {
		for {
			_, more, err := s.stream.Next(ctx)
			switch {
			case err != nil && ctx.Err() == nil:
				return s.services.confirm(ctx, s.agent, s.call)
			case err != nil:
				return nil, err
			case !more:
				return s.stream.Answer().Funds, nil
			}
		}
	})
}

// Confirm implements engine.Router.
func (s clients) Confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	return failpoint.Value(ctx, failpoint.LoopSettled, func(ctx context.Context) (*api.Funds, error) { return s.confirm(ctx, agent, call) })
}

func (s clients) confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	answer, err := bus.Call[api.Completion](ctx, s.bus, api.Confirm{ID: call, Agent: agent})
	return answer.Funds, err
}

// Balance implements engine.Treasury.
func (s clients) Balance(ctx context.Context, agent string) (api.Balance, error) {
	return bus.Call[api.Balance](ctx, s.bus, api.GetBalance{Agent: agent})
}

// Spent implements engine.Treasury.
func (s clients) Spent(ctx context.Context, agent, turn string) (api.Spent, error) {
	return bus.Call[api.Spent](ctx, s.bus, api.GetSpent{Agent: agent, Turn: turn, Category: api.CategoryInference})
}

// Claim implements engine.Inbox.
func (s clients) Claim(ctx context.Context, agent, run, from string) ([]api.InboxMessage, error) {
	in, err := failpoint.Value(ctx, failpoint.LoopInboxClaim, func(ctx context.Context) (api.Inbox, error) {
		return bus.Call[api.Inbox](ctx, s.bus, api.ClaimInbox{Agent: agent, Run: run, From: from})
	})
	return in.Messages, err
}

// Settle implements engine.Inbox.
func (s clients) Settle(ctx context.Context, agent, run string) error {
	return failpoint.Do(ctx, failpoint.LoopInboxSettle, func(ctx context.Context) error {
		_, err := bus.Call[api.InboxCount](ctx, s.bus, api.SettleInbox{Agent: agent, Run: run})
		return err
	})
}

// SetAlarm implements engine.Alarms.
func (s clients) SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error) {
	return failpoint.Value(ctx, failpoint.LoopAlarm, func(ctx context.Context) (api.Alarm, error) {
		return bus.Call[api.Alarm](ctx, s.bus, a)
	})
}

// SignMessage requests a signature from treasury.
func (s clients) SignMessage(ctx context.Context, m api.SignMessage) (api.Signature, error) {
	return bus.Call[api.Signature](ctx, s.bus, m)
}

// Send sends a message through social.
func (s clients) Send(ctx context.Context, m api.Send) (api.Sent, error) {
	return failpoint.Value(ctx, failpoint.LoopSend, func(ctx context.Context) (api.Sent, error) {
		return bus.Call[api.Sent](ctx, s.bus, m)
	})
}

// policyClient implements engine.Policy. It caches the public keys of policy.
type policyClient struct {
	*executor.Keys

	bus *bus.Bus
}

// Evaluate implements engine.Policy.
func (j policyClient) Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error) {
	return bus.Call[api.Decision](ctx, j.bus, req)
}

// journal implements engine.Journal in the stream LOOP_EVT.
type journal struct{ bus *bus.Bus }

// Append implements engine.Journal. The entry names this process as the owner of the
// session for a lease, which extends the lease of the previous entry.
func (j journal) Append(ctx context.Context, cmd api.Run, step engine.Step, last uint64) (uint64, error) {
	bus.Working(ctx)
	entry, err := api.Encode(step)
	if err != nil {
		return 0, err
	}
	m := api.Journal{
		Session: cmd.Session, Run: cmd.Run, Agent: cmd.Agent, Turn: step.Turn, Epoch: last + 1, Last: last, Kind: step.Kind(), Form: api.JournalForm, Entry: entry,
	}
	t := tenureOf(ctx)
	at := t.sign(&m)
	// The id contains the position in the journal and the owner, so that only a
	// repetition of this append has the same id.
	id := fmt.Sprintf("journal/%s/%d/%d", cmd.Run, m.Epoch, last)
	seq, err := failpoint.Value(ctx, pointOf(step), func(ctx context.Context) (uint64, error) { return j.bus.Append(ctx, id, m, last) })
	if err == nil {
		t.wrote(m, seq, at)
	}
	return seq, err
}

// Tail implements engine.Journal.
func (j journal) Tail(ctx context.Context, cmd api.Run, after uint64) ([]engine.Step, uint64, error) {
	end, e, err := j.last(ctx, cmd, after)
	if err != nil || end.Sequence == 0 || end.Sequence == after {
		return nil, end.Sequence, err
	}
	if end.Sequence < after {
		after = 0 // the stream was restored from a copy older than the store, or is new
	}
	if e.Form != 0 && e.Last == after { // usually the end of the previous run
		step, err := stepOf(end, e)
		return []engine.Step{step}, end.Sequence, err
	}
	var steps []engine.Step
	for last := after; last < end.Sequence; {
		step, at, err := j.next(ctx, api.Journal{Session: cmd.Session}.Subject(), last)
		if err != nil {
			return nil, 0, err
		}
		steps, last = append(steps, step), at
	}
	return steps, end.Sequence, nil
}

// last returns the last entry of a session's journal, with sequence 0 if there is none.
// Errors: Conflict while another owner holds the session.
func (j journal) last(ctx context.Context, cmd api.Run, after uint64) (end bus.Stored, e api.Journal, err error) {
	end, err = j.end(ctx, api.Journal{Session: cmd.Session}.Subject(), after)
	if api.CodeOf(err) == api.NotFound {
		return bus.Stored{}, e, nil
	}
	if err == nil {
		err = api.Decode(end.Data, &e)
	}
	if err == nil {
		err = tenureOf(ctx).free(ctx, e)
	}
	if err != nil {
		return bus.Stored{}, e, err
	}
	return end, e, nil
}

// own appends an entry of this process that belongs to no run, if no other owner holds
// the session. The tenure in ctx releases the session.
func (j journal) own(ctx context.Context, cmd api.Run, at int64) error {
	end, _, err := j.last(ctx, cmd, 0)
	if err == nil {
		_, err = j.Append(ctx, cmd, engine.Step{Run: cmd.Run, Begin: &engine.Begin{At: at}}, end.Sequence)
	}
	return err
}

// end returns the journal's last entry. If the entry is older than after, which the
// store has, end retries for a short time: usually the stream's leader is behind
// (ADR 11), and the whole journal would be read in vain. The result need not be
// correct, because the append that follows is refused if it was wrong.
func (j journal) end(ctx context.Context, s api.Subject, after uint64) (bus.Stored, error) {
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		m, err := j.bus.Last(ctx, s)
		if err != nil && api.CodeOf(err) != api.NotFound || m.Sequence >= after || wait > 200*time.Millisecond {
			return m, err
		}
		if err := pause(ctx, wait); err != nil {
			return m, err
		}
	}
}

// pause waits for d. It returns the cause if ctx ends earlier.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// next returns the first entry after a sequence. Errors: NotFound.
func (j journal) next(ctx context.Context, s api.Subject, after uint64) (engine.Step, uint64, error) {
	m, err := j.bus.Next(ctx, s, after+1)
	if err != nil {
		return engine.Step{}, 0, err
	}
	var e api.Journal
	if err := api.Decode(m.Data, &e); err != nil {
		return engine.Step{}, 0, err
	}
	step, err := stepOf(m, e)
	return step, m.Sequence, err
}

func stepOf(m bus.Stored, e api.Journal) (engine.Step, error) {
	step := engine.Step{Run: e.Run, Turn: e.Turn, Old: e.Form == 0}
	if err := json.Unmarshal(e.Entry, &step); err != nil {
		return step, fmt.Errorf("journal of %s at %d: %w", e.Session, m.Sequence, err)
	}
	return step, nil
}

// of returns the steps of one turn, which begins after an entry. The steps of a turn
// are contiguous.
func (j journal) of(ctx context.Context, session, run string, number int, after uint64) ([]engine.Step, error) {
	s := api.Journal{Session: session}.Subject()
	var steps []engine.Step
	for {
		step, at, err := j.next(ctx, s, after)
		if api.CodeOf(err) == api.NotFound {
			return steps, nil
		}
		if err != nil {
			return nil, err
		}
		switch {
		case step.Run == run && step.Turn == number:
			steps = append(steps, step)
		case len(steps) > 0:
			return steps, nil
		}
		after = at
	}
}

// events publishes the events that are not in a journal. It belongs to one run.
type events struct {
	bus   *bus.Bus
	posts *bus.Posts
}

// Post implements turn.Events.
func (e events) Post(ctx context.Context, id string, m api.Message) error {
	return e.posts.Post(ctx, id, m)
}

// Wait implements turn.Events.
func (e events) Wait(ctx context.Context) error {
	return failpoint.Do(ctx, failpoint.LoopFlush, e.posts.Wait)
}

// Thinking implements turn.Events. It is best effort.
func (e events) Thinking(ctx context.Context, t api.Thinking) { _ = e.bus.Tell(ctx, t) }

// Delta implements turn.Events. It is best effort: the complete answer follows in a
// stored event.
func (e events) Delta(ctx context.Context, d api.StreamDelta) { _ = e.bus.Tell(ctx, d) }

// Progress implements turn.Events. It is best effort.
func (e events) Progress(ctx context.Context, p api.ToolProgress) { _ = e.bus.Tell(ctx, p) }

// seqText formats a stream sequence as the id of an event.
func seqText(seq uint64) string { return strconv.FormatUint(seq, 10) }

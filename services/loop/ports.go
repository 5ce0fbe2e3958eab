package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// services are the other services, over the bus. It implements what package turn
// and package tool need of them.
type services struct {
	bus  *bus.Bus
	now  func() time.Time
	past *atomic.Int64 // until when the router is one of the release before, in Unix µs
}

func newServices(b *bus.Bus, now func() time.Time) services {
	return services{bus: b, now: now, past: &atomic.Int64{}}
}

// completeTimeout is seed 003's for a turn, plus what the router needs to say so.
const completeTimeout = 125 * time.Second

// settleTimeout bounds the wait for a settlement, which the router has begun.
const settleTimeout = 25 * time.Second

// pastRouter is how long questions are asked as a router of the release before takes
// them, after no other was there, and encodedWithin how long another is looked for.
const (
	pastRouter    = 30 * time.Second
	encodedWithin = time.Second
)

type answering = bus.Streaming[api.Delta, api.Completion]

// ask asks a model: with the prompt as the provider gets it if there is a router that
// takes it so.
func (s services) ask(ctx context.Context, q turn.Question) (*answering, error) {
	if s.now().UnixMicro() >= s.past.Load() {
		m, err := q.V2()
		if err != nil {
			return nil, err
		}
		stream, err := bus.OpenStream[api.Delta, api.Completion](ctx, s.bus, m)
		if err != nil {
			return nil, err
		}
		first, cancel := context.WithTimeout(ctx, encodedWithin)
		defer cancel()
		err = stream.Begin(first)
		if err == nil || api.ReasonOf(err) != api.ReasonNoAnswer && (ctx.Err() != nil || first.Err() == nil) {
			return stream, err
		}
		if api.ReasonOf(err) != api.ReasonNoAnswer {
			return stream, stream.Begin(ctx)
		}
		stream.Close()
		s.past.Store(s.now().Add(pastRouter).UnixMicro())
	}
	return bus.OpenStream[api.Delta, api.Completion](ctx, s.bus, q.Complete)
}

// Complete implements turn.Router. The stream of the answer is read to its end by
// [settling.Wait].
func (s services) Complete(ctx context.Context, q turn.Question, delta func(api.Delta)) (api.Completion, turn.Settling, error) {
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
		case !more: // nothing was settled, or by a release before
			free()
			stream.Close()
			return stream.Answer(), turn.Settled{Funds: stream.Answer().Funds}, nil
		}
		if d.Content != "" || d.Discard || d.Note != "" {
			delta(d)
		}
		if d.Answer != nil {
			return *d.Answer, settling{s, stream, q.Agent, q.ID, free}, nil
		}
	}
}

// settling is the settlement of an answer, as the rest of its stream tells it.
type settling struct {
	services services
	stream   *answering
	agent    string
	call     string
	free     func() bool
}

// Wait implements turn.Settling. When the stream breaks off, another replica of the
// router is asked for the settlement.
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

// Confirm implements turn.Router.
func (s services) Confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	return failpoint.Value(ctx, failpoint.LoopSettled, func(ctx context.Context) (*api.Funds, error) { return s.confirm(ctx, agent, call) })
}

func (s services) confirm(ctx context.Context, agent, call string) (*api.Funds, error) {
	answer, err := bus.Call[api.Completion](ctx, s.bus, api.Confirm{ID: call, Agent: agent})
	return answer.Funds, err
}

func (s services) Balance(ctx context.Context, agent string) (api.Balance, error) {
	return bus.Call[api.Balance](ctx, s.bus, api.GetBalance{Agent: agent})
}

func (s services) Spent(ctx context.Context, agent, turn string) (api.Spent, error) {
	return bus.Call[api.Spent](ctx, s.bus, api.GetSpent{Agent: agent, Turn: turn, Category: api.CategoryInference})
}

func (s services) Claim(ctx context.Context, agent, run, from string) ([]api.InboxMessage, error) {
	in, err := failpoint.Value(ctx, failpoint.LoopInboxClaim, func(ctx context.Context) (api.Inbox, error) {
		return bus.Call[api.Inbox](ctx, s.bus, api.ClaimInbox{Agent: agent, Run: run, From: from})
	})
	return in.Messages, err
}

func (s services) Settle(ctx context.Context, agent, run string) error {
	return failpoint.Do(ctx, failpoint.LoopInboxSettle, func(ctx context.Context) error {
		_, err := bus.Call[api.InboxCount](ctx, s.bus, api.SettleInbox{Agent: agent, Run: run})
		return err
	})
}

func (s services) SetAlarm(ctx context.Context, a api.SetAlarm) (api.Alarm, error) {
	return failpoint.Value(ctx, failpoint.LoopAlarm, func(ctx context.Context) (api.Alarm, error) {
		return bus.Call[api.Alarm](ctx, s.bus, a)
	})
}

func (s services) SignMessage(ctx context.Context, m api.SignMessage) (api.Signature, error) {
	return bus.Call[api.Signature](ctx, s.bus, m)
}

func (s services) Send(ctx context.Context, m api.Send) (api.Sent, error) {
	return failpoint.Value(ctx, failpoint.LoopSend, func(ctx context.Context) (api.Sent, error) {
		return bus.Call[api.Sent](ctx, s.bus, m)
	})
}

// judge is policy, with its public keys remembered.
type judge struct {
	*executor.Keys

	bus *bus.Bus
}

func (j judge) Evaluate(ctx context.Context, req api.Evaluate) (api.Decision, error) {
	return bus.Call[api.Decision](ctx, j.bus, req)
}

// journal is the session's journal in LOOP_EVT.
type journal struct{ bus *bus.Bus }

func (j journal) Append(ctx context.Context, cmd api.Run, step turn.Step, last uint64) (uint64, error) {
	bus.Working(ctx)
	entry, err := api.Encode(step)
	if err != nil {
		return 0, err
	}
	m := api.Journal{Session: cmd.Session, Run: cmd.Run, Turn: step.Turn, Epoch: epochOf(ctx), Kind: step.Kind(), Entry: entry}
	// The id names the place in the journal and the owner, so that it repeats only
	// when this very append does.
	id := fmt.Sprintf("journal/%s/%d/%d", cmd.Run, m.Epoch, last)
	return failpoint.Value(ctx, pointOf(step), func(ctx context.Context) (uint64, error) { return j.bus.Append(ctx, id, m, last) })
}

func (j journal) Tail(ctx context.Context, session string, after uint64) ([]turn.Step, uint64, error) {
	s := api.Journal{Session: session}.Subject()
	end, err := j.end(ctx, s, after)
	if api.CodeOf(err) == api.NotFound {
		return nil, 0, nil
	}
	if err != nil || end.Sequence == after {
		return nil, end.Sequence, err
	}
	if end.Sequence < after {
		after = 0 // the stream came from an older copy than the store, or began anew
	}
	var steps []turn.Step
	for last := after; last < end.Sequence; {
		step, at, err := j.next(ctx, s, last)
		if err != nil {
			return nil, 0, err
		}
		steps, last = append(steps, step), at
	}
	return steps, end.Sequence, nil
}

// end is the journal's last entry. One before what the store has is asked for again
// for a moment: as a rule the stream's leader is behind (ADR 11), and all of a long
// journal would be read for nothing. What Tail says is a guess in any case, and the
// append that follows is refused if it was wrong.
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

// pause waits for d. Its error is why ctx ended before.
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

// next reads the first entry after another, or NotFound.
func (j journal) next(ctx context.Context, s api.Subject, after uint64) (turn.Step, uint64, error) {
	m, err := j.bus.Next(ctx, s, after+1)
	if err != nil {
		return turn.Step{}, 0, err
	}
	var e api.Journal
	if err := api.Decode(m.Data, &e); err != nil {
		return turn.Step{}, 0, err
	}
	step := turn.Step{Run: e.Run, Turn: e.Turn}
	if err := json.Unmarshal(e.Entry, &step); err != nil {
		return step, 0, fmt.Errorf("journal of %s at %d: %w", s.Key, m.Sequence, err)
	}
	return step, m.Sequence, nil
}

// of returns the steps of one turn, which begin after an entry. No other turn's follow
// them until the turn is over.
func (j journal) of(ctx context.Context, session, run string, number int, after uint64) ([]turn.Step, error) {
	s := api.Journal{Session: session}.Subject()
	var steps []turn.Step
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

// events announces a run's events; it belongs to one run.
type events struct {
	bus   *bus.Bus
	posts *bus.Posts
}

func (e events) Post(ctx context.Context, id string, m api.Message) error {
	if _, ok := m.(api.AgentChanged); ok {
		return failpoint.Do(ctx, failpoint.LoopAgentState, func(ctx context.Context) error { return e.posts.Post(ctx, id, m) })
	}
	return e.posts.Post(ctx, id, m)
}

func (e events) Wait(ctx context.Context) error {
	return failpoint.Do(ctx, failpoint.LoopFlush, e.posts.Wait)
}

// Delta is best effort: who watches live sees the whole answer at the end.
func (e events) Delta(ctx context.Context, d api.StreamDelta) { _ = e.bus.Tell(ctx, d) }

// Progress is best effort too.
func (e events) Progress(ctx context.Context, p api.ToolProgress) { _ = e.bus.Tell(ctx, p) }

type epochKey struct{}

func epochOf(ctx context.Context) uint64 {
	v, _ := ctx.Value(epochKey{}).(uint64)
	return v
}

// locker takes session locks in the coordination bucket. Where an answer of NATS is
// lost it looks whose the lock is: a key that this process has written and does not
// know of would keep everybody out for a whole lease.
type locker struct {
	locks *bus.Bucket[api.Lock]
	owner string // of this process alone
	lease time.Duration
	now   func() time.Time
	log   *slog.Logger
	mine  *sync.Map // sessions whose locks this process has or is about to take
}

func newLocker(locks *bus.Bucket[api.Lock], owner string, lease time.Duration, now func() time.Time, log *slog.Logger) locker {
	return locker{locks: locks, owner: owner, lease: lease, now: now, log: log, mine: &sync.Map{}}
}

// errLeaseLost ends the work of an owner that could not renew in time.
var errLeaseLost = &api.Error{Code: api.Conflict, Message: "the lease on the session is lost"}

// with runs f while it holds the session's lock. f's context ends when the lease
// is no longer certain: a renewal was refused, or none succeeded for two thirds
// of it. Errors: Conflict when another run holds the session.
func (l locker) with(ctx context.Context, cmd api.Run, f func(context.Context) error) error {
	if _, here := l.mine.LoadOrStore(cmd.Session, true); here {
		return busy(cmd)
	}
	defer l.mine.Delete(cmd.Session)
	taken := l.now()
	epoch, err := l.take(ctx, cmd)
	if err != nil {
		return err
	}
	work, cancel := context.WithCancelCause(context.WithValue(ctx, epochKey{}, epoch))
	var renewals sync.WaitGroup
	revision := epoch
	stop := make(chan struct{})
	renewals.Go(func() {
		keeping{
			length: l.lease, taken: taken, now: l.now,
			renew: func(ctx context.Context) error {
				rev, err := l.renew(ctx, cmd, epoch, revision)
				if err == nil {
					revision = rev
				}
				return err
			},
			failed: func(err error) {
				l.log.Warn("lease not renewed, trying again", "session", cmd.Session, "err", err)
			},
			lost: func(error) {
				if !failpoint.Broken(failpoint.NoExpectedSequence) { // or whether it writes is a race
					cancel(errLeaseLost)
				}
			},
		}.keep(ctx, stop)
	})
	err = f(work)
	close(stop)
	renewals.Wait()
	cancel(nil)
	l.release(ctx, cmd, epoch, revision)
	if err != nil && errors.Is(context.Cause(work), errLeaseLost) {
		return errLeaseLost
	}
	return err
}

// release removes the lock, also when the work was told to stop, or when a renewal was
// stored whose answer was lost. While the answer is lost, as when a server of NATS leaves,
// it tries again for the time of the lease: a lock that stays keeps the session's next
// message waiting in every other replica.
func (l locker) release(ctx context.Context, cmd api.Run, epoch, revision uint64) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), l.lease)
	defer done()
	for {
		err := failpoint.Do(ctx, failpoint.LoopLockDelete, func(ctx context.Context) error { return l.locks.Delete(ctx, api.LockKey(cmd.Session), revision) })
		if err == nil {
			return
		}
		if api.CodeOf(err) == api.Conflict {
			now, renewed := l.renewed(ctx, cmd, epoch)
			if !renewed || now == revision { // an earlier try removed it, or another owner has it
				return
			}
			revision = now
			continue
		}
		if api.CodeOf(err) != api.Unavailable || pause(ctx, 100*time.Millisecond) != nil {
			l.log.Warn("lock not released, it expires by itself", "session", cmd.Session, "lease", l.lease.String(), "err", err)
			return
		}
	}
}

func (l locker) value(cmd api.Run, epoch uint64) api.Lock {
	return api.Lock{Run: cmd.Run, Owner: l.owner, Epoch: epoch, Expires: l.now().Add(l.lease).UnixMicro()}
}

// take makes the lock, whose revision is the owner's epoch. A lock that is there is
// taken over at once if it is free, or if it is this process's own: no run here holds
// it, so it is left from a try whose answer was lost or from a release that failed.
func (l locker) take(ctx context.Context, cmd api.Run) (uint64, error) {
	key := api.LockKey(cmd.Session)
	epoch, err := failpoint.Value(ctx, failpoint.LoopLockCreate, func(ctx context.Context) (uint64, error) {
		return l.locks.Create(ctx, key, l.value(cmd, 0), l.lease)
	})
	if err == nil {
		return epoch, nil
	}
	epoch, held, taken := l.locks.Replace(ctx, key, l.value(cmd, 0), l.lease, l.free)
	switch {
	case taken == nil:
		return epoch, nil
	case api.CodeOf(err) != api.Conflict:
		return 0, err
	}
	wait := busy(cmd)
	if held.Run == cmd.Run {
		// The owner was killed, as a rule, and the lock must expire. Asking more often
		// would load what is left of the cluster.
		wait.RetryAfter = min(1000, max(100, (held.Expires-l.now().UnixMicro())/1000+20))
	}
	return 0, wait
}

// free reports whether this process may take a lock over that no run here holds.
func (l locker) free(held api.Lock) bool {
	return held.Owner == l.owner || held.Free(l.owner, l.now().UnixMicro())
}

// tidy removes the locks that are free. A server that was killed may bring back the
// lock of every session that ever had one, and without a TTL.
func (l locker) tidy(ctx context.Context) error {
	return l.locks.Sweep(ctx, api.LockKey("*"), func(held api.Lock) bool {
		return held.Owner != l.owner && l.free(held)
	})
}

// tidy runs once at the start. What it leaves is free all the same.
func tidy(ctx context.Context, log *slog.Logger, each ...func(context.Context) error) error {
	for _, remove := range each {
		if err := remove(ctx); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "locks that are free are not removed", "err", err)
		}
	}
	return nil
}

// renew prolongs the lock, also when an earlier renewal was stored that its owner
// does not know of.
func (l locker) renew(ctx context.Context, cmd api.Run, epoch, revision uint64) (uint64, error) {
	key := api.LockKey(cmd.Session)
	rev, err := failpoint.Value(ctx, failpoint.LoopLockRenew, func(ctx context.Context) (uint64, error) {
		return l.locks.Update(ctx, key, l.value(cmd, epoch), revision, l.lease)
	})
	if api.CodeOf(err) != api.Conflict {
		return rev, err
	}
	now, renewed := l.renewed(ctx, cmd, epoch)
	if !renewed {
		return 0, err
	}
	return l.locks.Update(ctx, key, l.value(cmd, epoch), now, l.lease)
}

// renewed is the revision of a lock that its owner has renewed at least once.
func (l locker) renewed(ctx context.Context, cmd api.Run, epoch uint64) (revision uint64, ok bool) {
	held, err := l.locks.Get(ctx, api.LockKey(cmd.Session))
	return held.Revision, err == nil && held.Value.Owner == l.owner && held.Value.Epoch == epoch
}

// busy says that another run has the session, which may end at any moment.
func busy(cmd api.Run) *api.Error {
	return &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "session " + cmd.Session + " is busy", RetryAfter: 100}
}

// seqText renders a stream sequence for an event stream's id.
func seqText(seq uint64) string { return strconv.FormatUint(seq, 10) }

package session

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Queue reads the queued runs of sessions and notifies the runs of this process of
// cancels and steering messages. It implements engine.Queue.
type Queue struct {
	bus *bus.Bus
	log *slog.Logger

	mu   sync.Mutex
	runs map[string]*underWay // by run id
}

// underWay is a run in progress in this process.
type underWay struct {
	session string
	cancel  context.CancelCauseFunc
	wanted  map[string]bool // messages in mode steer; false: already read by Waiting
}

// NewQueue returns a queue without runs.
func NewQueue(b *bus.Bus, log *slog.Logger) *Queue {
	return &Queue{bus: b, log: log, runs: map[string]*underWay{}}
}

// Waiting implements engine.Queue.
func (q *Queue) Waiting(ctx context.Context, cmd api.Run) ([]api.Run, error) {
	noticed := q.noticed(cmd.Run)
	out, err := q.between(ctx, cmd.Session, bus.MetaOf(ctx).Sequence, math.MaxUint64)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.runs[cmd.Run]; u != nil {
		for _, w := range out {
			u.wanted[w.Run] = false // later notices of this message are ignored
		}
		for _, run := range noticed { // those that do not wait any more, because they have expired
			u.wanted[run] = false
		}
	}
	return out, nil
}

// noticed returns the messages of which a run of this process has a notice.
func (q *Queue) noticed(run string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.runs[run]; u != nil {
		return slices.Collect(maps.Keys(u.wanted))
	}
	return nil
}

// All returns the current run and the queued runs of a session.
func (q *Queue) All(ctx context.Context, session string) ([]api.Run, error) {
	return q.Before(ctx, session, 0)
}

// Before returns the current run and the queued runs of a session that precede a sequence;
// 0: all of them.
func (q *Queue) Before(ctx context.Context, session string, sequence uint64) ([]api.Run, error) {
	return q.between(ctx, session, 0, cmp.Or(sequence, math.MaxUint64))
}

func (q *Queue) between(ctx context.Context, session string, after, before uint64) ([]api.Run, error) {
	var out []api.Run
	for {
		m, err := q.bus.Next(ctx, api.Run{Session: session}.Subject(), after+1)
		if api.CodeOf(err) == api.NotFound || err == nil && m.Sequence >= before {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		after = m.Sequence
		var w api.Run
		if err := api.Decode(m.Data, &w); err != nil {
			q.log.ErrorContext(ctx, "a waiting message cannot be read", "session", session, "sequence", m.Sequence, "err", err)
			continue // its own delivery reports the error too
		}
		out = append(out, w)
	}
}

// Busy reports whether a session has a run other than the given one. The oldest message
// of its queue is the run in progress, or the next one.
func (q *Queue) Busy(ctx context.Context, session, run string) (bool, error) {
	m, err := q.bus.Next(ctx, api.Run{Session: session}.Subject(), 1)
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

// Head returns the sequence of a session's oldest message that is not done. An older
// message than ours is usually done, and its acknowledgement has not reached the
// stream; therefore Head retries for a few milliseconds, which is shorter than a
// redelivery. If the message remains, its acknowledgement may be lost; Head then calls
// done with its run and does not wait for the redelivery.
func (q *Queue) Head(ctx context.Context, session string, ours uint64, done func(context.Context, api.Run) (bool, error)) (uint64, error) {
	from := uint64(1)
	for delay := time.Millisecond / 2; ; delay *= 2 {
		m, err := q.bus.Next(ctx, api.Run{Session: session}.Subject(), from)
		if err != nil || m.Sequence >= ours {
			return m.Sequence, err
		}
		if delay > 8*time.Millisecond {
			var cmd api.Run
			if err := api.Decode(m.Data, &cmd); err != nil {
				return m.Sequence, nil //nolint:nilerr // its own delivery reports the error
			}
			if over, err := done(ctx, cmd); err != nil || !over {
				return m.Sequence, err
			}
			from, delay = m.Sequence+1, time.Millisecond/4
			continue
		}
		if wait.For(ctx, delay) != nil {
			return 0, context.Cause(ctx)
		}
	}
}

// running returns the runs in progress in this process, each with its session.
func (q *Queue) running() map[string]string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[string]string{}
	for run, u := range q.runs {
		out[run] = u.session
	}
	return out
}

// Watch implements engine.Queue.
func (q *Queue) Watch(cmd api.Run, cancel context.CancelCauseFunc) (steered func() bool, stop func()) {
	u := &underWay{session: cmd.Session, cancel: cancel, wanted: map[string]bool{}}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.runs[cmd.Run] = u
	steered = func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, wants := range u.wanted {
			if wants {
				return true
			}
		}
		return false
	}
	return steered, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.runs[cmd.Run] == u {
			delete(q.runs, cmd.Run)
		}
	}
}

// notice passes a notice to the runs of this process that it concerns.
func (q *Queue) notice(n api.SessionNotice) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if u := q.runs[n.Cancelled]; u != nil {
		u.cancel(engine.Cancelled(""))
	}
	if n.Steered == "" {
		return
	}
	for run, u := range q.runs {
		if _, known := u.wanted[n.Steered]; u.session == n.Session && run != n.Steered && !known {
			u.wanted[n.Steered] = true
		}
	}
}

// Listen receives the notices of all replicas until ctx ends.
func (q *Queue) Listen(ctx context.Context) error {
	return q.bus.Subscribe(ctx, api.SessionNotice{}.Subject().String(), func() {}, func(data []byte) {
		var n api.SessionNotice
		if err := api.Decode(data, &n); err != nil {
			q.log.WarnContext(ctx, "a notice cannot be read", "err", err)
			return
		}
		q.notice(n)
	})
}

// CheckCancels cancels the runs of this process for which why returns the reason of a
// cancel that the store has, because a notice may be lost.
func (q *Queue) CheckCancels(ctx context.Context, why func(ctx context.Context, run, session string) (string, error)) {
	for run, session := range q.running() {
		reason, err := why(ctx, run, session)
		if err != nil {
			q.log.WarnContext(ctx, "cancel of a run not read, retrying", "run", run, "err", err)
			return
		}
		if reason != "" {
			q.notice(api.SessionNotice{Cancelled: run})
		}
	}
}

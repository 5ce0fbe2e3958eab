package loop

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// locker gives sessions to the runs of this process, one at a time.
//
// That no other process writes a session's journal is the work of the journal itself:
// each entry is stored on top of the one that its writer has read. Whose turn it is, so
// that two processes do not do the same work, the journal says, too: its last entry
// names its writer and until when the session is that one's, and the entry that ends a
// run frees the session. Where a run writes nothing for long, because a model thinks, its
// owner renews that in a key of the coordination bucket. A run that has left the journal
// without an entry has held nothing.
type locker struct {
	locks   *bus.Bucket[api.Lock]
	journal journal
	owner   string // of this process alone
	lease   time.Duration
	now     func() time.Time
	log     *slog.Logger
	mine    *sync.Map // runs of this process, by session
}

func newLocker(locks *bus.Bucket[api.Lock], j journal, owner string, lease time.Duration, now func() time.Time, log *slog.Logger) locker {
	return locker{locks: locks, journal: j, owner: owner, lease: lease, now: now, log: log, mine: &sync.Map{}}
}

// tenure is what a run of this process has of its session. A nil tenure is that of
// readers, and has nothing.
type tenure struct {
	locker
	cmd api.Run

	mu    sync.Mutex
	since time.Time // before the latest entry or renewal that was stored was asked for
	epoch uint64    // of the owner's entries; 0: there is none yet
	turn  int       // of the latest entry
	last  uint64    // its sequence
	open  bool      // it leaves the session to its owner
	key   uint64    // revision of the renewals; 0: there was none
}

type tenureKey struct{}

func tenureOf(ctx context.Context) *tenure {
	t, _ := ctx.Value(tenureKey{}).(*tenure)
	return t
}

// sign makes an entry one of this owner, and says when.
func (t *tenure) sign(m *api.Journal) time.Time {
	if t == nil {
		return time.Time{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open { // else it begins an epoch
		m.Epoch = t.epoch
	}
	at := t.now()
	m.Owner, m.Expires = t.owner, at.Add(t.lease).UnixMicro()
	return at
}

// wrote notes an entry that is stored.
func (t *tenure) wrote(m api.Journal, seq uint64, at time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.epoch, t.turn, t.last = at, m.Epoch, m.Turn, seq
	t.open = m.Kind != api.EntryEnd && m.Kind != api.EntryRelease
}

// free is an error while the session is another owner's, by the last entry of its
// journal. Errors: Conflict, with ReasonBusy if another run has it.
func (t *tenure) free(ctx context.Context, e api.Journal) error {
	if t == nil {
		return nil
	}
	now := t.now().UnixMicro()
	held, open := e.Held(t.owner, now)
	expires := e.Expires
	if !held && open { // its owner may have renewed it since
		k, err := t.locks.Get(ctx, api.LockKey(t.cmd.Session))
		if api.CodeOf(err) == api.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		held, expires = !t.locker.free(k.Value), k.Value.Expires
	}
	if !held {
		return nil
	}
	wait := busy(t.cmd, e.Run == t.cmd.Run)
	if e.Run == t.cmd.Run {
		// The owner was killed, as a rule, and its lease must expire. Asking more often
		// would load what is left of the cluster.
		wait.RetryAfter = min(1000, max(100, (expires-now)/1000+20))
	}
	return wait
}

// errLeaseLost ends the work of an owner that could not renew in time.
var errLeaseLost = &api.Error{Code: api.Conflict, Message: "the lease on the session is lost"}

// with runs f while no other run of this process has the session. f's context ends when
// the lease is no longer certain: a renewal was refused, or nothing was written for two
// thirds of it. Errors: Conflict when another run has the session.
func (l locker) with(ctx context.Context, cmd api.Run, f func(context.Context) error) error {
	if other, here := l.mine.LoadOrStore(cmd.Session, cmd.Run); here {
		return busy(cmd, other == cmd.Run)
	}
	defer l.mine.Delete(cmd.Session)
	t := &tenure{locker: l, cmd: cmd}
	work, cancel := context.WithCancelCause(context.WithValue(ctx, tenureKey{}, t))
	var renewals sync.WaitGroup
	stop := make(chan struct{})
	renewals.Go(func() {
		keeping{
			length: l.lease, every: l.lease / 6, taken: l.now(), now: l.now, renew: t.renew,
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
	err := f(work)
	close(stop)
	renewals.Wait()
	lost := errors.Is(context.Cause(work), errLeaseLost)
	cancel(nil)
	t.leave(ctx)
	if err != nil && lost {
		return errLeaseLost
	}
	return err
}

// renew prolongs the lease where no entry has done so for a sixth of it, and says since
// when it is good: it is asked so often that then a third of the lease is left to try
// again. A renewal may have been stored that its owner does not know of.
func (t *tenure) renew(ctx context.Context) (time.Time, error) {
	t.mu.Lock()
	since, held, revision := t.since, t.open, t.key
	value := api.Lock{Run: t.cmd.Run, Owner: t.owner, Epoch: t.epoch, Expires: t.now().Add(t.lease).UnixMicro()}
	t.mu.Unlock()
	at := t.now()
	if !held {
		return at, nil
	}
	if at.Sub(since) < t.lease/6 {
		return since, nil
	}
	key := api.LockKey(t.cmd.Session)
	next, err := failpoint.Value(ctx, failpoint.LoopLockRenew, func(ctx context.Context) (uint64, error) {
		if revision == 0 {
			next, _, err := t.locks.Take(ctx, key, value, t.lease, t.locker.free)
			return next, err
		}
		return t.locks.Update(ctx, key, value, revision, t.lease)
	})
	for try := 0; api.CodeOf(err) == api.Conflict && revision != 0 && try < 3; try++ {
		now, renewed := t.renewed(ctx, value.Epoch)
		if !renewed {
			break
		}
		next, err = t.locks.Update(ctx, key, value, now, t.lease)
	}
	if err != nil {
		return since, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.key = next
	if at.After(t.since) {
		t.since = at
	}
	return at, nil
}

// renewed is the revision of a key that the owner has renewed.
func (t *tenure) renewed(ctx context.Context, epoch uint64) (revision uint64, ok bool) {
	held, err := t.locks.Get(ctx, api.LockKey(t.cmd.Session))
	return held.Revision, err == nil && held.Value.Owner == t.owner && held.Value.Epoch == epoch
}

// leave gives the session back: it removes the renewals, and where the run is not over
// it says so in the journal. It does so also when the work was told to stop. While the
// answer is lost, as when a server of NATS leaves, it tries again for the time of the
// lease: what stays keeps the session's next message waiting in every other replica.
func (t *tenure) leave(ctx context.Context) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), t.lease)
	defer done()
	if t.key != 0 {
		t.release(ctx)
	}
	if !t.open {
		return
	}
	for {
		_, err := t.journal.Append(context.WithValue(ctx, tenureKey{}, t), t.cmd, turn.Step{Run: t.cmd.Run, Turn: t.turn, Release: true}, t.last)
		switch {
		case err == nil, api.CodeOf(err) == api.Conflict: // another owner has it
			return
		case api.CodeOf(err) != api.Unavailable || pause(ctx, 100*time.Millisecond) != nil:
			t.log.Warn("session not handed back, its lease expires by itself", "session", t.cmd.Session, "lease", t.lease.String(), "err", err)
			return
		}
	}
}

// release removes the renewals, also when one was stored whose answer was lost.
func (t *tenure) release(ctx context.Context) {
	for revision := t.key; ; {
		err := failpoint.Do(ctx, failpoint.LoopLockDelete, func(ctx context.Context) error { return t.locks.Delete(ctx, api.LockKey(t.cmd.Session), revision) })
		if err == nil {
			return
		}
		if api.CodeOf(err) == api.Conflict {
			now, renewed := t.renewed(ctx, t.epoch)
			if !renewed || now == revision { // an earlier try removed it, or another owner has it
				return
			}
			revision = now
			continue
		}
		if api.CodeOf(err) != api.Unavailable || pause(ctx, 100*time.Millisecond) != nil {
			t.log.Warn("lock not released, it expires by itself", "session", t.cmd.Session, "lease", t.lease.String(), "err", err)
			return
		}
	}
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

// tidyEvery is how often locks and leases are looked at that no run touches.
const tidyEvery = time.Hour

// tidy removes what is free, at the start and again when what was held then has expired.
// What it leaves is free all the same.
func tidy(ctx context.Context, log *slog.Logger, lease time.Duration, each ...func(context.Context) error) error {
	for wait := lease + time.Second; ; wait = tidyEvery {
		for _, remove := range each {
			if err := remove(ctx); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "locks that are free are not removed", "err", err)
			}
		}
		if pause(ctx, wait) != nil {
			return nil
		}
	}
}

// busy says that another owner has the session, and may end at any moment. One that has
// it for this very run is no reason for its message to expire.
func busy(cmd api.Run, same bool) *api.Error {
	e := &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "session " + cmd.Session + " is busy", RetryAfter: 100}
	if same {
		e.Reason, e.Message = "", "the run is under way elsewhere"
	}
	return e
}

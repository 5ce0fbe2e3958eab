package session

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/lease"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Locks gives a session to one run of this process at a time.
//
// The journal itself ensures that no other process writes to it: each entry is appended
// on top of the entry that its writer has read. The journal also prevents that two
// processes do the same work: its last entry names its owner and the time at which the
// owner's lease expires, and the entry that ends a run releases the session. If a run
// appends no entry for long, because it waits for a model, its owner renews the lease
// in a key of the coordination bucket. A run that appends no entry does not own the
// session.
type Locks struct {
	bucket  *bus.Bucket[api.Lock]
	Journal Journal
	owner   string        // unique to this process
	ttl     time.Duration // time after which the session of a crashed owner is free
	now     func() time.Time
	log     *slog.Logger
	mine    *sync.Map // runs of this process by session

	// KeepStale lets a run continue after its lease is lost. It is set in builds with the
	// tag failpoint only.
	KeepStale bool
}

// NewLocks returns the locks of the process owner. A session of a crashed owner is free
// after ttl.
func NewLocks(bucket *bus.Bucket[api.Lock], j Journal, owner string, ttl time.Duration, now func() time.Time, log *slog.Logger) Locks {
	return Locks{bucket: bucket, Journal: j, owner: owner, ttl: ttl, now: now, log: log, mine: &sync.Map{}}
}

// ownership is that of a session by a run of this process. A nil ownership is that
// of a reader, which owns nothing.
type ownership struct {
	Locks
	cmd  api.Run
	lock *lease.Lease[api.Lock] // the renewals

	mu    sync.Mutex
	since time.Time // time before the latest stored entry or renewal was requested
	epoch uint64    // of the owner's entries; 0: none yet
	turn  int       // of the latest entry
	last  uint64    // sequence of the latest entry
	open  bool      // the latest entry keeps the session owned
}

func (l Locks) newOwnership(cmd api.Run) *ownership {
	t := &ownership{Locks: l, cmd: cmd}
	t.lock = &lease.Lease[api.Lock]{
		Bucket: l.bucket, Key: api.LockKey(cmd.Session), TTL: l.ttl, Now: l.now, Log: l.log,
		Value: func(expires int64) api.Lock {
			t.mu.Lock()
			defer t.mu.Unlock()
			return api.Lock{Run: cmd.Run, Owner: l.owner, Epoch: t.epoch, Expires: expires}
		},
	}
	return t
}

type ownershipKey struct{}

func ownershipOf(ctx context.Context) *ownership {
	t, _ := ctx.Value(ownershipKey{}).(*ownership)
	return t
}

// sign sets the owner, the epoch and the expiry of an entry, and returns the time of
// the request.
func (t *ownership) sign(m *api.Journal) time.Time {
	if t == nil {
		return time.Time{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open { // otherwise the entry begins an epoch
		m.Epoch = t.epoch
	}
	at := t.now()
	m.Owner, m.Expires = t.owner, at.Add(t.ttl).UnixMicro()
	return at
}

// wrote records an entry that is stored.
func (t *ownership) wrote(m api.Journal, seq uint64, at time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.epoch, t.turn, t.last = at, m.Epoch, m.Turn, seq
	t.open = m.Kind != api.EntryEnd && m.Kind != api.EntryRelease
}

// free returns an error while another owner holds the session, by the last entry of its
// journal. Errors: Conflict, with ReasonBusy if another run holds the session.
func (t *ownership) free(ctx context.Context, e api.Journal) error {
	if t == nil {
		return nil
	}
	now := t.now().UnixMicro()
	held, open := e.Held(t.owner, now)
	expires := e.Expires
	if !held && open { // its owner may have renewed the lease since then
		k, err := t.bucket.Get(ctx, api.LockKey(t.cmd.Session))
		if api.CodeOf(err) == api.NotFound {
			return nil
		}
		if err != nil {
			return err
		}
		held, expires = k.Value.Owner != t.owner && !k.Value.Free(t.owner, now), k.Value.Expires
	}
	if !held {
		return nil
	}
	wait := busy(t.cmd, e.Run == t.cmd.Run)
	if e.Run == t.cmd.Run {
		// Usually the owner has crashed and its lease must expire. Retrying more often
		// would only add load to the remaining replicas.
		wait.RetryAfter = min(1000, max(100, (expires-now)/1000+20))
	}
	return wait
}

// errLeaseLost is the cause that cancels the work of an owner that could not renew its
// lease in time.
var errLeaseLost = &api.Error{Code: api.Conflict, Message: "the lease on the session is lost"}

// With runs f unless another run of this process has the session. The context of f ends
// when the lease is lost, as [lease.Lease.Keep] says; an entry counts as a renewal.
// Errors: Conflict if another run has the session.
func (l Locks) With(ctx context.Context, cmd api.Run, f func(context.Context) error) (err error) {
	if other, here := l.mine.LoadOrStore(cmd.Session, cmd.Run); here {
		return busy(cmd, other == cmd.Run)
	}
	defer l.mine.Delete(cmd.Session)
	t := l.newOwnership(cmd)
	work, cancel := context.WithCancelCause(context.WithValue(ctx, ownershipKey{}, t))
	stop := t.lock.Keep(ctx, l.now(), t.renew, func(error) {
		if !l.KeepStale {
			cancel(errLeaseLost)
		}
	})
	defer func() { // also after a panic, because the process continues and would renew the lease for ever
		stop()
		lost := errors.Is(context.Cause(work), errLeaseLost)
		cancel(nil)
		t.leave(ctx)
		if err != nil && lost {
			err = errLeaseLost
		}
	}()
	return f(work)
}

// renew renews the lease if no entry has done so for a sixth of its length, and returns
// the time from which the lease counts.
func (t *ownership) renew(ctx context.Context) (time.Time, error) {
	t.mu.Lock()
	since, held := t.since, t.open
	t.mu.Unlock()
	at := t.now()
	if !held {
		return at, nil
	}
	if at.Sub(since) < t.ttl/6 {
		return since, nil
	}
	at, err := failpoint.Value(ctx, failpoint.LoopLockRenew, t.lock.Take)
	if err != nil {
		return since, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.After(t.since) {
		t.since = at
	}
	return at, nil
}

// leave returns the session: it deletes the renewed lease, and if the run is not over
// it appends a release. It does so after a cancel, too. While the answer is lost, as
// during the exit of a NATS server, it retries for the length of the lease, because
// otherwise the session's next message must wait for the lease to expire.
func (t *ownership) leave(ctx context.Context) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), t.ttl)
	defer done()
	if t.lock.Written() {
		if err := failpoint.Do(ctx, failpoint.LoopLockDelete, t.lock.Release); err != nil {
			t.log.Warn("lock not released, it expires by itself", "session", t.cmd.Session, "lease", t.ttl.String(), "err", err)
		}
	}
	if !t.open {
		return
	}
	for {
		_, err := t.Journal.Append(context.WithValue(ctx, ownershipKey{}, t), t.cmd, engine.Step{Run: t.cmd.Run, Turn: t.turn, Release: true}, t.last)
		switch {
		case err == nil, api.CodeOf(err) == api.Conflict: // another owner has the session
			return
		case api.CodeOf(err) != api.Unavailable || wait.For(ctx, 100*time.Millisecond) != nil:
			t.log.Warn("session not released, its lease expires by itself", "session", t.cmd.Session, "lease", t.ttl.String(), "err", err)
			return
		}
	}
}

// Sweep deletes the expired renewals, which do not block other owners.
func (l Locks) Sweep(ctx context.Context) error {
	return lease.Sweep(ctx, l.bucket, api.LockKey("*"), l.owner, l.now())
}

// busy returns the error for a session that another owner holds, which may end soon. If
// that owner executes the same run, the error has no ReasonBusy, so that the message
// does not expire for it.
func busy(cmd api.Run, same bool) *api.Error {
	e := &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "session " + cmd.Session + " is busy", RetryAfter: 100}
	if same {
		e.Reason, e.Message = "", "another owner executes the run"
	}
	return e
}

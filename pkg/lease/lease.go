// Package lease gives work to one process at a time, by a key of the coordination bucket
// whose value names its owner and expires. A lease is advisory: a holder that was
// suspended may run concurrently with the next one for a moment, so work done under a
// lease must be idempotent or fenced. The package must not depend on any work.
//
// A write whose answer was lost may have been stored. The next write then finds a value
// of its own owner, with an epoch that is not later, and continues from that value's
// revision. For this, two Leases of one key must not have the same owner at the same
// time.
//
// A value with an earlier epoch is replaced, whatever its expiry: its owner was fenced when
// the later epoch began, and has renewed the lease only because it was suspended, with its
// clock, and has not noticed.
package lease

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
)

// Value is a stored lease.
type Value interface {
	api.Lease | api.Lock
	// Free reports whether self may take the lease over at a time in Unix microseconds.
	Free(self string, now int64) bool
	// Holder returns the owner, its epoch, which is 0 if the lease has none, and the
	// expiry in Unix microseconds.
	Holder() (owner string, epoch uint64, expires int64)
}

// Lease is the claim of one owner on one key. All exported fields are required. Its
// methods must not be called concurrently.
type Lease[T Value] struct {
	Bucket *bus.Bucket[T]
	Key    string
	// Value returns the value to store. Its owner is unique to each start of a process;
	// its epoch, if any, must not decrease.
	Value func(expires int64) T
	TTL   time.Duration // delay after which another owner may take the lease of a crashed holder; at least bus.MinTTL
	Now   func() time.Time
	Log   *slog.Logger

	revision uint64 // of the latest confirmed write; 0: none
	unsure   bool   // a write without an answer may have been stored
	rival    int64  // expiry of the value that refused the latest write, in Unix microseconds
}

// Take takes the lease, or renews it if it is taken, and returns the time from which the
// TTL counts. Errors: Conflict if another owner has the lease; after any other error the
// caller may retry.
func (l *Lease[T]) Take(ctx context.Context) (from time.Time, err error) {
	from = l.Now()
	value := l.Value(from.Add(l.TTL).UnixMicro())
	if l.revision != 0 {
		next, err := l.Bucket.Update(ctx, l.Key, value, l.revision, l.TTL)
		if api.CodeOf(err) != api.Conflict {
			return from, l.wrote(next, err)
		}
		// Either another owner has taken the lease, or an earlier renewal was stored
		// without an answer, or the key has expired while its holder did not renew it.
	}
	self, _, _ := value.Holder()
	next, held, err := l.Bucket.Take(ctx, l.Key, value, l.TTL, func(held T) bool {
		return l.own(held) || l.fences(held) || l.revision == 0 && held.Free(self, from.UnixMicro())
	})
	owner, _, expires := held.Holder()
	if l.rival = expires; api.CodeOf(err) == api.Conflict && (owner == "" && expires == 0 || l.own(held)) {
		// No value of another owner was read: the read was behind the write.
		err = &api.Error{Code: api.Unavailable, Message: "the lease " + l.Key + " is being changed", Next: "try again", RetryAfter: 100}
	}
	return from, l.wrote(next, err)
}

func (l *Lease[T]) wrote(revision uint64, err error) error {
	switch {
	case err == nil:
		l.revision, l.unsure = revision, false
	case api.CodeOf(err) != api.Conflict:
		l.unsure = true
	}
	return err
}

// own reports whether this Lease has stored held, or an earlier Lease of its owner that
// did not release it.
func (l *Lease[T]) own(held T) bool {
	owner, epoch, _ := held.Holder()
	self, latest, _ := l.Value(0).Holder()
	return owner == self && epoch <= latest
}

// fences reports whether held is of an earlier epoch. Values without an epoch have 0.
func (l *Lease[T]) fences(held T) bool {
	_, epoch, _ := held.Holder()
	_, latest, _ := l.Value(0).Holder()
	return epoch < latest
}

// Written reports whether the key may have a value of this Lease, which Release deletes.
func (l *Lease[T]) Written() bool { return l.revision != 0 || l.unsure }

// releaseAgain is the pause between two attempts to release a lease.
const releaseAgain = 100 * time.Millisecond

// Release deletes the key if this Lease has written it, so that the next owner need not
// wait for the expiry. It retries until ctx ends if NATS is unavailable.
func (l *Lease[T]) Release(ctx context.Context) error {
	for l.Written() {
		err := l.release(ctx)
		if api.CodeOf(err) == api.Unavailable && wait.For(ctx, releaseAgain) == nil {
			continue
		}
		l.revision, l.unsure = 0, false
		return err
	}
	return nil
}

func (l *Lease[T]) release(ctx context.Context) error {
	for revision := l.revision; ; {
		if revision != 0 {
			if err := l.Bucket.Delete(ctx, l.Key, revision); api.CodeOf(err) != api.Conflict {
				return err
			}
		}
		e, err := l.Bucket.Get(ctx, l.Key)
		if api.CodeOf(err) == api.NotFound {
			return nil // an earlier attempt has deleted it, or it has expired
		}
		if err != nil || !l.own(e.Value) || e.Revision == revision {
			return err
		}
		revision = e.Revision
	}
}

// Sweep deletes the values that match a pattern of keys and that the owner self may take
// over. It keeps those of self. A NATS server that crashed may restore expired keys,
// without a TTL.
func Sweep[T Value](ctx context.Context, bucket *bus.Bucket[T], pattern, self string, now time.Time) error {
	return bucket.Sweep(ctx, pattern, func(held T) bool {
		owner, _, _ := held.Holder()
		return owner != self && held.Free(self, now.UnixMicro())
	})
}

// Keep calls renew every sixth of the TTL until the returned function is called, which
// waits for a call in progress. renew returns the time from which the lease counts, as
// [Lease.Take] does; from is the time from which it counts at first. Keep calls lost, at
// most once, if a renewal has a Conflict error, or if 5/6 of the TTL have passed since
// the lease counts: another owner may take it after the whole TTL. Renewals that fail do
// not delay that. Renewals continue after ctx has ended, because work may still be
// running.
func (l *Lease[T]) Keep(ctx context.Context, from time.Time, renew func(context.Context) (time.Time, error), lost func(error)) (stop func()) {
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	var renewals sync.WaitGroup
	renewals.Go(func() { l.keep(ctx, stopped, from, renew, lost) })
	return func() {
		close(stopped)
		renewals.Wait()
		end()
	}
}

// errLate is the error of a lease that was not renewed in time.
var errLate = &api.Error{Code: api.Unavailable, Message: "the lease was not renewed in time", Next: "check that NATS is up"}

func (l *Lease[T]) keep(ctx context.Context, stopped <-chan struct{}, from time.Time, renew func(context.Context) (time.Time, error), lost func(error)) {
	tick := time.NewTicker(l.TTL / 6)
	defer tick.Stop()
	late := time.NewTimer(l.left(from))
	defer late.Stop()
	for {
		select {
		case <-stopped:
			return
		case <-late.C:
			lost(errLate)
			return
		case <-tick.C:
		}
		attempt, done := context.WithTimeout(ctx, min(l.left(from), l.TTL/3))
		renewed, err := renew(attempt)
		done()
		switch {
		case err == nil:
			from = renewed
			late.Reset(l.left(from))
		case api.CodeOf(err) == api.Conflict, l.left(from) <= 0:
			lost(err)
			return
		default:
			l.Log.WarnContext(ctx, "lease not renewed, retrying", "key", l.Key, "err", err)
		}
	}
}

// left returns how long work may continue under a lease that counts from a time. The
// sixth of the TTL that remains then is for requests in progress and for the difference
// between the clocks of two owners.
func (l *Lease[T]) left(from time.Time) time.Duration {
	return from.Add(l.TTL * 5 / 6).Sub(l.Now())
}

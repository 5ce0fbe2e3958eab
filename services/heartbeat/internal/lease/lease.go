// Package lease lets one replica at a time run a task, by a key of the coordination
// bucket that expires. A lease is advisory: a holder that was suspended may run
// concurrently with the next one for a moment, so the task must be idempotent. The
// package must not depend on any task.
package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// Lease is a task that one replica at a time runs. All fields are required.
type Lease struct {
	Bucket *bus.Bucket[api.Lease]
	Task   string
	Owner  string        // unique for each replica and each start of it
	TTL    time.Duration // delay after which another replica may take the lease of a crashed holder; at least bus.MinTTL
	Now    func() time.Time
	Log    *slog.Logger
}

// Run calls work whenever this replica holds the lease, until ctx ends. The context of
// work ends when the lease is lost. Run waits for work to return before it releases the
// lease. If work returns early, Run releases the lease and starts again after a pause.
func (l Lease) Run(ctx context.Context, work func(context.Context) error) {
	for ctx.Err() == nil {
		began := l.Now()
		rev, held, err := l.take(ctx)
		switch {
		case err == nil:
			l.Log.InfoContext(ctx, "lease taken", "task", l.Task)
			l.hold(ctx, rev, began, work)
		case api.CodeOf(err) == api.Conflict:
			l.await(ctx, held)
		case ctx.Err() == nil:
			l.Log.WarnContext(ctx, "lease not taken, retrying", "task", l.Task, "err", err)
			pause(ctx, l.TTL/3)
		}
	}
}

// take creates the key, or replaces an expired lease, or one of the same owner: that is
// of an earlier attempt without a response. On a Conflict error, held is the lease of the
// other owner.
func (l Lease) take(ctx context.Context) (revision uint64, held api.Lease, err error) {
	return l.Bucket.Take(ctx, l.key(), l.value(), l.TTL, func(held api.Lease) bool {
		return held.Owner == l.Owner || held.Free(l.Owner, l.Now().UnixMicro())
	})
}

func (l Lease) value() api.Lease {
	return api.Lease{Owner: l.Owner, Expires: l.Now().Add(l.TTL).UnixMicro()}
}

func (l Lease) key() string { return api.LeaseKey(l.Task) }

var errFree = errors.New("the lease is free")

// await returns when the lease may be free: its key was deleted, or lease has expired.
func (l Lease) await(ctx context.Context, lease api.Lease) {
	left := time.UnixMicro(lease.Expires).Sub(l.Now())
	ctx, cancel := context.WithTimeout(ctx, min(max(left, 0), l.TTL))
	defer cancel()
	held := false
	err := l.Bucket.Watch(ctx, l.key(), func() {
		if !held { // the key was deleted before the watch began
			cancel()
		}
	}, func(e bus.Entry[api.Lease]) error {
		held = !e.Deleted
		if !held {
			return errFree
		}
		return nil
	})
	if !errors.Is(err, errFree) && ctx.Err() == nil {
		l.Log.WarnContext(ctx, "lease watch failed", "task", l.Task, "err", err)
	}
	// In a cluster Create may still fail for a moment after the deletion.
	pause(ctx, 10*time.Millisecond)
}

func (l Lease) hold(ctx context.Context, rev uint64, renewed time.Time, work func(context.Context) error) {
	workCtx, stop := context.WithCancel(ctx)
	defer stop()
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		failed = work(workCtx)
	}()

	tick := time.NewTicker(l.TTL / 3)
	defer tick.Stop()
	// A holder that cannot renew the lease must stop work before another replica may take
	// it, even if all attempts fail immediately.
	last := time.NewTimer(l.safe(renewed))
	defer last.Stop()
	for {
		var err error
		select {
		case <-done:
			l.release(ctx, rev)
			if ctx.Err() == nil {
				l.Log.WarnContext(ctx, "task ended early, restarting", "task", l.Task, "err", failed)
				pause(ctx, time.Second)
			}
			return
		case <-last.C:
			err = errLate
		case <-tick.C:
			began := l.Now()
			var next uint64
			if next, err = l.renew(ctx, rev, min(l.safe(renewed), l.TTL/3)); err == nil {
				rev, renewed = next, began
				last.Reset(l.safe(renewed))
				continue
			}
			if api.CodeOf(err) != api.Conflict && l.safe(renewed) > 0 {
				continue
			}
		}
		l.Log.WarnContext(ctx, "lease lost", "task", l.Task, "err", err)
		stop()
		<-done
		return
	}
}

var errLate = errors.New("lease not renewed in time")

// safe returns how long work may continue under a lease that was last renewed at a time:
// until 5/6 of the TTL, so that it ends before the lease expires.
func (l Lease) safe(renewed time.Time) time.Duration {
	return renewed.Add(l.TTL * 5 / 6).Sub(l.Now())
}

func (l Lease) renew(ctx context.Context, rev uint64, timeout time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout) // work may still be running
	defer cancel()
	return l.Bucket.Update(ctx, l.key(), l.value(), rev, l.TTL)
}

// release deletes the lease, so that another replica need not wait for its expiry.
func (l Lease) release(ctx context.Context, rev uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.TTL/3)
	defer cancel()
	if err := l.Bucket.Delete(ctx, l.key(), rev); err != nil && api.CodeOf(err) != api.Conflict {
		l.Log.WarnContext(ctx, "lease not released, it expires by itself", "task", l.Task, "err", err)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

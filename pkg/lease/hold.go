package lease

import (
	"context"
	"errors"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
)

// ErrLost is the cause of the end of a context whose lease was lost.
var ErrLost = &api.Error{Code: api.Conflict, Message: "the lease is lost", Next: "try again", RetryAfter: 100}

// Hold calls work under the lease, which [Lease.Take] has taken, renews the lease while
// work runs, and then releases it. from is the result of Take. The context of work ends
// with the cause ErrLost when the lease is lost. Hold returns the error of work.
func (l *Lease[T]) Hold(ctx context.Context, from time.Time, work func(context.Context) error) error {
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := l.Keep(ctx, from, l.Take, func(err error) {
		l.Log.WarnContext(ctx, "lease lost", "key", l.Key, "err", err)
		cancel(ErrLost)
	})
	err := work(working)
	stop()
	release, done := context.WithTimeout(context.WithoutCancel(ctx), l.TTL/3)
	defer done()
	if err := l.Release(release); err != nil {
		l.Log.WarnContext(ctx, "lease not released, it expires by itself", "key", l.Key, "err", err)
	}
	return err
}

// Run calls work whenever this process holds the lease, until ctx ends. The context of
// work ends with the cause ErrLost when the lease is lost. Run waits for work to return
// before it releases the lease. If work returns early, Run releases the lease and starts
// again after a second.
func (l *Lease[T]) Run(ctx context.Context, work func(context.Context) error) {
	for ctx.Err() == nil {
		from, err := l.Take(ctx)
		switch {
		case err == nil:
			l.Log.InfoContext(ctx, "lease taken", "key", l.Key)
			lost := false
			err = l.Hold(ctx, from, func(ctx context.Context) error {
				err := work(ctx)
				lost = errors.Is(context.Cause(ctx), ErrLost)
				return err
			})
			if !lost && ctx.Err() == nil {
				l.Log.WarnContext(ctx, "work under a lease ended early, restarting", "key", l.Key, "err", err)
				_ = wait.For(ctx, time.Second) // the loop ends with ctx
			}
		case api.CodeOf(err) == api.Conflict:
			l.await(ctx)
		case ctx.Err() == nil:
			l.Log.WarnContext(ctx, "lease not taken, retrying", "key", l.Key, "err", err)
			_ = wait.For(ctx, l.TTL/3) // the loop ends with ctx
		}
	}
}

var errFree = errors.New("the lease is free")

// await returns when the lease may be free: its key was deleted, or the value that
// refused the latest Take has expired.
func (l *Lease[T]) await(ctx context.Context) {
	left := time.UnixMicro(l.rival).Sub(l.Now())
	ctx, cancel := context.WithTimeout(ctx, min(max(left, 0), l.TTL))
	defer cancel()
	held := false
	err := l.Bucket.Watch(ctx, l.Key, func() {
		if !held { // the key was deleted before the watch began
			cancel()
		}
	}, func(e bus.Entry[T]) error {
		held = !e.Deleted
		if !held {
			return errFree
		}
		return nil
	})
	if !errors.Is(err, errFree) && ctx.Err() == nil {
		l.Log.WarnContext(ctx, "lease watch failed", "key", l.Key, "err", err)
	}
	// In a cluster the key may not be free yet on another server. Without the pause an
	// error of the watch would also be retried without a limit.
	_ = wait.For(context.WithoutCancel(ctx), 10*time.Millisecond)
}

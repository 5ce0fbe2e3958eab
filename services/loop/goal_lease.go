package loop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// leaser takes leases in the coordination bucket. A lease is advisory: it keeps two
// replicas from doing the same work, and work done under it must be idempotent.
type leaser struct {
	leases *bus.Bucket[api.Lease]
	owner  string
	ttl    time.Duration // time after which the lease of a crashed holder expires
	now    func() time.Time
	log    *slog.Logger
}

// With implements goal.Leases.
func (l leaser) With(ctx context.Context, key string, f func(context.Context) error) error {
	taken := l.now()
	revision, err := failpoint.Value(ctx, failpoint.LoopGoalLease, func(ctx context.Context) (uint64, error) {
		revision, _, err := l.leases.Take(ctx, key, l.value(), l.ttl, l.free)
		return revision, err
	})
	if api.CodeOf(err) == api.Conflict {
		return &api.Error{Code: api.Conflict, Message: "another replica holds the lease " + key, RetryAfter: max(100, l.ttl.Milliseconds()/4)}
	}
	if err != nil {
		return err
	}
	work, cancel := context.WithCancel(ctx)
	var renewals sync.WaitGroup
	renewals.Go(func() {
		keeping{
			length: l.ttl, taken: taken, now: l.now,
			renew: func(ctx context.Context) (time.Time, error) {
				began := l.now()
				next, err := l.leases.Update(ctx, key, l.value(), revision, l.ttl)
				if err == nil {
					revision = next
				}
				return began, err
			},
			failed: func(err error) { l.log.Warn("lease not renewed, retrying", "key", key, "err", err) },
			lost: func(err error) {
				l.log.Warn("lease lost", "key", key, "err", err)
				cancel()
			},
		}.keep(ctx, work.Done())
	})
	err = f(work)
	cancel()
	renewals.Wait()
	free, done := context.WithTimeout(context.WithoutCancel(ctx), l.ttl/3)
	defer done()
	if derr := l.leases.Delete(free, key, revision); derr != nil && api.CodeOf(derr) != api.Conflict {
		l.log.Warn("lease not released, it expires by itself", "key", key, "err", derr)
	}
	return err
}

func (l leaser) value() api.Lease {
	return api.Lease{Owner: l.owner, Expires: l.now().Add(l.ttl).UnixMicro()}
}

func (l leaser) free(held api.Lease) bool { return held.Free(l.owner, l.now().UnixMicro()) }

// tidy removes the leases on goals that have expired, as [locker.tidy] does for
// sessions.
func (l leaser) tidy(ctx context.Context) error {
	return l.leases.Sweep(ctx, api.LeaseKey("goal.*"), l.free)
}

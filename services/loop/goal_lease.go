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

// leaser takes leases in the coordination bucket. A lease is politeness, not a
// fence: it keeps two replicas from paying attention to the same thing, and what is
// done under it must bear to be done twice.
type leaser struct {
	leases *bus.Bucket[api.Lease]
	owner  string
	ttl    time.Duration // how long a dead holder keeps the others waiting
	now    func() time.Time
	log    *slog.Logger
}

// With implements goal.Leases.
func (l leaser) With(ctx context.Context, key string, f func(context.Context) error) error {
	mine := api.Lease{Owner: l.owner}
	revision, err := failpoint.Value(ctx, failpoint.LoopGoalLease, func(ctx context.Context) (uint64, error) {
		return l.leases.Create(ctx, key, mine, l.ttl)
	})
	if api.CodeOf(err) == api.Conflict {
		return &api.Error{Code: api.Conflict, Message: "another replica has " + key, RetryAfter: max(100, l.ttl.Milliseconds()/4)}
	}
	if err != nil {
		return err
	}
	work, cancel := context.WithCancel(ctx)
	var renewals sync.WaitGroup
	renewals.Go(func() {
		tick := time.NewTicker(l.ttl / 3)
		defer tick.Stop()
		good := l.now()
		for {
			select {
			case <-work.Done():
				return
			case <-tick.C:
			}
			attempt, done := context.WithTimeout(ctx, l.ttl/3)
			next, err := l.leases.Update(attempt, key, mine, revision, l.ttl)
			done()
			if err == nil {
				revision, good = next, l.now()
				continue
			}
			if api.CodeOf(err) == api.Conflict || l.now().Sub(good) > 2*l.ttl/3 {
				l.log.Warn("lease lost", "key", key, "err", err)
				cancel()
				return
			}
		}
	})
	err = f(work)
	cancel()
	renewals.Wait()
	free, done := context.WithTimeout(context.WithoutCancel(ctx), l.ttl/3)
	defer done()
	if derr := l.leases.Delete(free, key, revision); derr != nil && api.CodeOf(derr) != api.Conflict {
		l.log.Warn("lease not given back, it expires by itself", "key", key, "err", derr)
	}
	return err
}

package loop

import (
	"cmp"
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// keeping renews a lease while its holder works.
type keeping struct {
	length time.Duration
	every  time.Duration // interval of renewals; 0: a third of length
	taken  time.Time     // time before the lease was requested
	now    func() time.Time
	renew  func(context.Context) (time.Time, error) // returns the time from which the lease counts
	failed func(error)                              // called for an error that is retried
	lost   func(error)                              // called at most once: the lease may expire
}

// errLate ends work under a lease that was not renewed in time.
var errLate = &api.Error{Code: api.Unavailable, Message: "the lease was not renewed in time", Next: "check that NATS is up"}

// keep renews a lease every interval, by default a third of its length, until stop is
// closed. It calls lost if a renewal is refused, or if two thirds of the lease have
// passed since the start of the last successful renewal: other replicas may take the
// lease after its whole length. Failed renewals do not delay that.
func (k keeping) keep(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTicker(cmp.Or(k.every, k.length/3))
	defer tick.Stop()
	good := k.taken
	last := time.NewTimer(k.left(good))
	defer last.Stop()
	for {
		select {
		case <-stop:
			return
		case <-last.C:
			k.lost(errLate)
			return
		case <-tick.C:
		}
		attempt, done := context.WithTimeout(ctx, min(k.left(good), k.length/3))
		renewed, err := k.renew(attempt)
		done()
		switch {
		case err == nil:
			good = renewed
			last.Reset(k.left(good))
		case api.CodeOf(err) == api.Conflict, k.left(good) <= 0:
			k.lost(err)
			return
		default:
			k.failed(err)
		}
	}
}

// left returns how long work may continue if the lease counts from good.
func (k keeping) left(good time.Time) time.Duration { return good.Add(2 * k.length / 3).Sub(k.now()) }

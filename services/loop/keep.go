package loop

import (
	"cmp"
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// keeping is a lease that its holder renews while it works.
type keeping struct {
	length time.Duration
	every  time.Duration // between two renewals; 0: a third of the length
	taken  time.Time     // before it was asked for
	now    func() time.Time
	renew  func(context.Context) (time.Time, error) // since when it is good
	failed func(error)                              // a renewal that is tried again
	lost   func(error)                              // once: the lease may expire
}

// errLate ends work under a lease that was not renewed in time.
var errLate = &api.Error{Code: api.Unavailable, Message: "the lease was not renewed in time", Next: "check that NATS is up"}

// keep renews a lease three times in its length until stop is closed. Work under it
// ends when a renewal is refused, and two thirds of the lease after the last renewal
// that succeeded was asked for: the others may take it when its whole length is over.
// Renewals that fail at once do not put that off until the next try.
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

// left is how long work may go on after a renewal that was asked for at a time.
func (k keeping) left(good time.Time) time.Duration { return good.Add(2 * k.length / 3).Sub(k.now()) }

package loop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// TestKeepEndsBeforeTheLease tests that work under a lease ends before the lease of the
// last successful renewal expires, for all results of later renewals.
func TestKeepEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	const length = 15 * time.Second
	fast := func(context.Context) error { return errors.New("connection closed") }
	slow := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	refused := func(context.Context) error { return api.Errorf(api.Conflict, "moved on") }
	for name, c := range map[string]struct {
		good   int // number of renewals that succeed, each after 50 ms
		renew  func(context.Context) error
		wanted time.Duration // after the start of the last successful renewal
	}{
		"never renewed, failing at once":   {0, fast, 2 * length / 3},
		"never renewed, hanging":           {0, slow, 2 * length / 3},
		"renewed once, failing at once":    {1, fast, 2 * length / 3},
		"renewed three times, then silent": {3, slow, 2 * length / 3},
		"renewed twice, then refused":      {2, refused, length / 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked, lost time.Time
				asked = time.Now()
				n := 0
				keeping{
					length: length, taken: asked, now: time.Now,
					renew: func(ctx context.Context) (time.Time, error) {
						if n++; n <= c.good {
							asked = time.Now()
							<-time.After(50 * time.Millisecond) // on the clock of the synctest bubble
							return asked, nil
						}
						return asked, c.renew(ctx)
					},
					failed: func(error) {}, lost: func(error) { lost = time.Now() },
				}.keep(t.Context(), make(chan struct{}))
				if got := lost.Sub(asked); got != c.wanted {
					t.Errorf("lost %v after the last good renewal was asked for, want %v", got, c.wanted)
				}
			})
		})
	}
}

// TestKeepStops tests that a lease is not reported as lost after its work has ended.
func TestKeepStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(stop) })
		renewed := 0
		keeping{
			length: 15 * time.Second, taken: time.Now(), now: time.Now, renew: func(context.Context) (time.Time, error) { renewed++; return time.Now(), nil },
			failed: func(err error) { t.Error(err) }, lost: func(err error) { t.Error(err) },
		}.keep(t.Context(), stop)
		if renewed < 11 || renewed > 12 {
			t.Errorf("renewed %d times in a minute, want every 5 s", renewed)
		}
	})
}

package lease

import (
	"context"
	"errors"
	"log/slog"
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
		"never renewed, failing at once":   {0, fast, length * 5 / 6},
		"never renewed, hanging":           {0, slow, length * 5 / 6},
		"renewed once, failing at once":    {1, fast, length * 5 / 6},
		"renewed three times, then silent": {3, slow, length * 5 / 6},
		"renewed twice, then refused":      {2, refused, length / 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var asked, lost time.Time
				asked = time.Now()
				n := 0
				l := Lease[api.Lease]{TTL: length, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
				renew := func(ctx context.Context) (time.Time, error) {
					if n++; n <= c.good {
						asked = time.Now()
						<-time.After(50 * time.Millisecond) // on the clock of the synctest bubble
						return asked, nil
					}
					return asked, c.renew(ctx)
				}
				l.keep(t.Context(), make(chan struct{}), asked, renew, func(error) { lost = time.Now() })
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
		renewed := 0
		l := Lease[api.Lease]{TTL: 15 * time.Second, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
		stop := l.Keep(t.Context(), time.Now(), func(context.Context) (time.Time, error) {
			renewed++
			return time.Now(), nil
		}, func(err error) { t.Error(err) })
		<-time.After(61 * time.Second) // on the clock of the synctest bubble
		stop()
		if renewed != 24 {
			t.Errorf("renewed %d times in 61 s, want every 2.5 s", renewed)
		}
	})
}

package provider_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// TestWatch checks that the limit for the first token lasts until the first content, however
// many events come before it, and that each event counts after it.
func TestWatch(t *testing.T) {
	t.Parallel()
	const first, between = time.Minute, 30 * time.Second
	for name, c := range map[string]struct {
		content bool
		every   time.Duration // between two events
		alive   time.Duration // for which the call is not ended
	}{
		"nothing but events":         {every: 11 * time.Second, alive: first},
		"a pause before the content": {every: 50 * time.Second, alive: first},
		"events after the content":   {content: true, every: 20 * time.Second, alive: 10 * time.Minute},
		"a pause after the content":  {content: true, every: 40 * time.Second, alive: between},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begun := 0
				ctx, stop := provider.Watch(t.Context(), provider.TokenTimeouts{First: first, Between: between}, func() { begun++ })
				defer stop()
				began := time.Now()
				provider.EventReceived(ctx)
				if c.content {
					provider.ContentReceived(ctx)
					provider.ContentReceived(ctx)
				}
				for ctx.Err() == nil && time.Since(began) < c.alive {
					select {
					case <-ctx.Done():
					case <-time.After(c.every):
						provider.EventReceived(ctx)
					}
				}
				if got := time.Since(began); got < c.alive || got >= c.alive+c.every {
					t.Errorf("the call ended after %s, want %s", got, c.alive)
				}
				synctest.Wait()
				stalled := provider.StalledBy(ctx, "test")
				if ended := c.alive <= first; (stalled != nil) != ended {
					t.Errorf("got %v, want a stalled call: %t", stalled, ended)
				}
				if want := map[bool]int{true: 1}[c.content]; begun != want {
					t.Errorf("the first content was reported %d times, want %d", begun, want)
				}
			})
		})
	}
}

// TestWatchOfASlowCaller checks that the time in which a piece is passed on does not count.
func TestWatchOfASlowCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const between = 30 * time.Second
		ctx, stop := provider.Watch(t.Context(), provider.TokenTimeouts{First: time.Minute, Between: between}, nil)
		defer stop()
		provider.ContentReceived(ctx)
		provider.Passing(ctx, true)
		<-time.After(10*between + time.Second)
		provider.Passing(ctx, false)
		if ctx.Err() != nil {
			t.Fatalf("the call ended while a piece was passed on: %v", provider.StalledBy(ctx, "test"))
		}
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took >= between || provider.StalledBy(ctx, "test") == nil {
			t.Errorf("the call ended after %s with %v, want a stalled one within %s", took, provider.StalledBy(ctx, "test"), between)
		}
	})
}

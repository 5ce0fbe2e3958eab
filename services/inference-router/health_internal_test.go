package router

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"

	"github.com/anima-run/anima/services/inference-router/internal/health"
)

// manualClock is the clock of several replicas.
type manualClock struct{ at atomic.Int64 }

func (c *manualClock) now() time.Time          { return time.UnixMicro(c.at.Load()) }
func (c *manualClock) advance(d time.Duration) { c.at.Add(d.Microseconds()) }

func newClock() *manualClock {
	c := &manualClock{}
	c.at.Store(time.Now().UnixMicro())
	return c
}

// replica starts the shared health of one replica on a server.
func replica(t *testing.T, server *embednats.Server, now func() time.Time) *routeHealth {
	t.Helper()
	b, err := bus.New(apptest.Dial(t, server), bus.Options{Service: "inference-router", Log: apptest.Log(t), Guarded: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	h, err := newRouteHealth(t.Context(), b, health.OpenFor, now, apptest.Log(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := h.run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return h
}

// until waits until the state of a route satisfies fits.
func until(t *testing.T, h *routeHealth, r health.Route, what string, fits func(health.State) bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for again := time.Tick(time.Millisecond); !fits(h.State(r)); {
		select {
		case <-again:
		case <-late:
			t.Fatalf("%s: got %+v", what, h.State(r))
		}
	}
}

var testRoute = health.Route{Provider: "openai", Model: "a/model:with.signs"}

// fails makes as many failed attempts as open a breaker.
func fails(t *testing.T, h *routeHealth) {
	t.Helper()
	for i := range health.MaxFailures {
		p, ok := h.begin(t.Context(), testRoute)
		if !ok {
			t.Fatalf("attempt %d was refused: %+v", i, h.State(testRoute))
		}
		h.end(&p, health.Failed, 0, "it is down")
	}
}

func isOpen(now func() time.Time) func(health.State) bool {
	return func(s health.State) bool { return s.Phase(now()) == health.Open }
}

func isClosed(s health.State) bool { return s.OpenUntil.IsZero() }

// TestReplicasShareABreaker checks that the breaker that one replica opens is open at the
// others, also at one that starts later; that of all replicas together one attempt is
// admitted when it is half-open; and that the result of this attempt holds for all.
func TestReplicasShareABreaker(t *testing.T) {
	t.Parallel()
	server, clock := apptest.Server(t), newClock()
	replicas := []*routeHealth{replica(t, server, clock.now), replica(t, server, clock.now)}
	fails(t, replicas[0])
	replicas = append(replicas, replica(t, server, clock.now))
	for _, h := range replicas {
		until(t, h, testRoute, "opened by another", isOpen(clock.now))
		if _, ok := h.begin(t.Context(), testRoute); ok {
			t.Error("an open breaker admitted an attempt")
		}
		if got := h.cause(testRoute); got != "it is down" {
			t.Errorf("got the cause %q", got)
		}
	}
	for _, result := range []health.Result{health.Failed, health.Answered} {
		clock.advance(health.OpenFor)
		var all sync.WaitGroup
		var mu sync.Mutex
		var probes []func()
		for _, h := range replicas {
			for range 8 {
				all.Go(func() {
					p, ok := h.begin(t.Context(), testRoute)
					if mu.Lock(); ok {
						probes = append(probes, func() { h.end(&p, result, 0, "") })
					}
					mu.Unlock()
				})
			}
		}
		all.Wait()
		if len(probes) != 1 {
			t.Fatalf("%d attempts were admitted at the same time, want one", len(probes))
		}
		probes[0]()
		for _, h := range replicas {
			if result == health.Failed {
				until(t, h, testRoute, "opened again", isOpen(clock.now))
			} else {
				until(t, h, testRoute, "closed", isClosed)
			}
		}
	}
	for _, h := range replicas {
		if p, ok := h.begin(t.Context(), testRoute); !ok || p.Probe {
			t.Errorf("after the recovery: got %+v, %t", p, ok)
		}
	}
}

// TestReplicasShareTheWait checks that all replicas wait as long as a provider has asked
// one of them to.
func TestReplicasShareTheWait(t *testing.T) {
	t.Parallel()
	server, clock := apptest.Server(t), newClock()
	a, b := replica(t, server, clock.now), replica(t, server, clock.now)
	p, _ := a.begin(t.Context(), testRoute)
	a.end(&p, health.Answered, 20*time.Second, "")
	want := clock.now().Add(20 * time.Second)
	until(t, b, testRoute, "not before", func(s health.State) bool { return s.NotBefore.Equal(want) })
	clock.advance(19 * time.Second)
	if _, ok := b.begin(t.Context(), testRoute); ok {
		t.Error("an attempt before the time was admitted")
	}
	clock.advance(time.Second)
	if _, ok := b.begin(t.Context(), testRoute); !ok {
		t.Error("an attempt at the time was refused")
	}
}

// TestProbeOfACrashedReplica checks that another replica probes when the claim of the
// first one has expired, and not before.
func TestProbeOfACrashedReplica(t *testing.T) {
	t.Parallel()
	server, clock := apptest.Server(t), newClock()
	a, b := replica(t, server, clock.now), replica(t, server, clock.now)
	fails(t, a)
	until(t, b, testRoute, "opened by another", isOpen(clock.now))
	clock.advance(health.OpenFor)
	if p, ok := a.begin(t.Context(), testRoute); !ok || !p.Probe {
		t.Fatalf("got %+v, %t; want the probe", p, ok)
	}
	if _, ok := b.begin(t.Context(), testRoute); ok {
		t.Error("another replica has the probe too")
	}
	clock.advance(health.ProbeFor)
	p, ok := b.begin(t.Context(), testRoute)
	if !ok || !p.Probe {
		t.Fatalf("after the claim's end: got %+v, %t; want the probe", p, ok)
	}
	b.end(&p, health.Answered, 0, "")
	until(t, a, testRoute, "closed", isClosed)
}

// TestHealthWithoutNATS checks that a replica decides by itself while NATS does not
// answer.
func TestHealthWithoutNATS(t *testing.T) {
	t.Parallel()
	server, clock := apptest.Server(t), newClock()
	h := replica(t, server, clock.now)
	server.Shutdown()
	fails(t, h)
	if _, ok := h.begin(t.Context(), testRoute); ok {
		t.Error("an open breaker admitted an attempt")
	}
	clock.advance(health.OpenFor)
	p, ok := h.begin(t.Context(), testRoute)
	if !ok || !p.Probe {
		t.Fatalf("got %+v, %t; want the probe", p, ok)
	}
	h.end(&p, health.Answered, 0, "")
	if p, ok := h.begin(t.Context(), testRoute); !ok || p.Probe {
		t.Errorf("after the probe's success: got %+v, %t", p, ok)
	}
}

// TestHealthyAttemptsAreFree checks that attempts on a healthy model write no key and
// allocate nothing.
func TestHealthyAttemptsAreFree(t *testing.T) {
	server, clock := apptest.Server(t), newClock()
	h := replica(t, server, clock.now)
	ctx := t.Context()
	// AllocsPerRun counts the allocations of the whole process, those of the NATS server in
	// the background, too. An allocation of the attempt itself is in every measurement.
	least := math.Inf(1)
	for range 20 {
		least = min(least, testing.AllocsPerRun(100, func() {
			p, ok := h.begin(ctx, testRoute)
			if !ok {
				t.Fatal("refused")
			}
			h.end(&p, health.Answered, 0, "")
		}))
		if least == 0 {
			break
		}
	}
	if least != 0 {
		t.Errorf("%.0f allocations, want none", least)
	}
	if e, err := h.bucket.Get(ctx, api.HealthKey(testRoute.Provider, testRoute.Model)); api.CodeOf(err) != api.NotFound {
		t.Errorf("got the key %+v, %v; want none", e, err)
	}
}

// TestJitter checks that the waits before retries cover the whole range.
func TestJitter(t *testing.T) {
	t.Parallel()
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := jitter(firstWait)
		least, most = min(least, d), max(most, d)
	}
	if least < 0 || least > firstWait/10 || most < firstWait*9/10 || most >= firstWait {
		t.Errorf("1,000 waits are from %s to %s, want about 0 to %s", least, most, firstWait)
	}
}

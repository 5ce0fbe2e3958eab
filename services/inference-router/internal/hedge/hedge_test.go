package hedge_test

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/services/inference-router/internal/hedge"
)

// TestPercentile checks the estimate against the exact percentile of any times: it is never
// below it, and at most the width of a bucket above.
func TestPercentile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.SliceOfN(rapid.IntRange(1, 180_000), hedge.MinSamples, 500).Draw(t, "ms")
		var p hedge.Percentiles
		for i, n := range ms {
			if _, ok := p.At(hedge.Percentile); ok != (i >= hedge.MinSamples) {
				t.Fatalf("after %d samples there is an estimate: %t", i, ok)
			}
			p.Add(time.Duration(n) * time.Millisecond)
		}
		slices.Sort(ms)
		exact := time.Duration(ms[int(math.Ceil(hedge.Percentile*float64(len(ms))))-1]) * time.Millisecond
		got, ok := p.At(hedge.Percentile)
		if !ok || got < exact-time.Microsecond || float64(got) > 1.2*float64(exact) {
			t.Fatalf("got %s, %t; the exact percentile is %s", got, ok, exact)
		}
	})
}

// TestRecent checks that the estimate follows a change of the times.
func TestRecent(t *testing.T) {
	t.Parallel()
	var p hedge.Percentiles
	add := func(n int, d time.Duration) {
		for range n {
			p.Add(d)
		}
	}
	add(100_000, 100*time.Millisecond)
	add(100, 10*time.Second)
	if got, ok := p.At(hedge.Percentile); !ok || got < 10*time.Second {
		t.Errorf("after 100 slow attempts: got %s, %t", got, ok)
	}
	add(4000, 100*time.Millisecond)
	if got, ok := p.At(hedge.Percentile); !ok || got > 120*time.Millisecond {
		t.Errorf("after 4000 fast attempts: got %s, %t", got, ok)
	}
}

// TestBounded checks that the number of routes is bounded.
func TestBounded(t *testing.T) {
	t.Parallel()
	var e hedge.Estimates
	for i := range 3 * hedge.MaxRoutes {
		e.Add(hedge.Route{Provider: "p", Model: strconv.Itoa(i)}, time.Second)
	}
	if n := e.Len(); n > hedge.MaxRoutes {
		t.Errorf("%d routes, want at most %d", n, hedge.MaxRoutes)
	}
	r := hedge.Route{Provider: "p", Model: "m"}
	if _, ok := e.After(r); ok {
		t.Error("an unknown route has an estimate")
	}
	for range hedge.MinSamples {
		e.Add(r, time.Millisecond)
	}
	if got, ok := e.After(r); !ok || got != hedge.Shortest {
		t.Errorf("got %s, %t, want %s", got, ok, hedge.Shortest)
	}
}

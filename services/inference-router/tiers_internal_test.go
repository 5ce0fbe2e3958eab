package router

import (
	"strconv"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// TestTiers checks how long the tier of a settlement is used, and that the cache is
// bounded.
func TestTiers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var c tiers
	if _, ok := c.get("lucky", now); ok {
		t.Error("an empty cache has a tier")
	}
	c.set("lucky", api.TierLow, now)
	if got, ok := c.get("lucky", now.Add(tierFor-1)); !ok || got != api.TierLow {
		t.Errorf("got %q, %t, want %s", got, ok, api.TierLow)
	}
	if got, ok := c.get("lucky", now.Add(tierFor)); ok {
		t.Errorf("got %q after %s", got, tierFor)
	}
	for i := range 3 * maxTiers {
		c.set(strconv.Itoa(i), api.TierHigh, now)
	}
	if n := len(c.all); n > maxTiers {
		t.Errorf("%d tiers are kept, want at most %d", n, maxTiers)
	}
}

package treasury

import (
	"math"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

func TestRatio(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ a, b, c, want int64 }{
		{7, 3, 2, 10},
		{0, 5, 1, 0},
		{int64(api.MaxMicros), int64(api.MaxMicros), int64(api.MaxMicros), int64(api.MaxMicros)},
		{int64(api.MaxMicros), 3_600_000_000, 1, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, 1, math.MaxInt64},
	} {
		if got := ratio(c.a, c.b, c.c); got != c.want {
			t.Errorf("ratio(%d, %d, %d): got %d, want %d", c.a, c.b, c.c, got, c.want)
		}
	}
}

// TestRates checks the rates of an agent that began in the middle of the period, and of
// one that spends nothing.
func TestRates(t *testing.T) {
	t.Parallel()
	hour := time.Hour.Microseconds()
	p := ledger.Period{Since: 10 * hour, Until: 20 * hour, Buckets: 1}
	e := ledger.Economics{
		Spent: map[string]api.Micros{"inference": 500, "x402": 300}, TransfersOut: 200, Earned: 100, TransfersIn: 50, Exchange: -5, Reversed: -45,
		Deposits: 9999, Turns: 3, TurnCost: 800, First: 16 * hour, Balance: 1000, Buckets: make([]ledger.Bucket, 1),
	}
	got := economics([]string{"lucky"}, p, &e)
	if got.BurnPerHour != 250 || got.Runway != 4*3600 || got.Profit != -900 || got.CostPerTurn != 266 {
		t.Errorf("got %d an hour, a runway of %d s, a profit of %d, %d a turn; want 250, 14400, -900, 266", got.BurnPerHour, got.Runway, got.Profit, got.CostPerTurn)
	}
	e.First = 20*hour - 1
	if got := economics([]string{"lucky"}, p, &e); got.BurnPerHour != 1000 {
		t.Errorf("burn of an agent that just began: got %d an hour, want 1000", got.BurnPerHour)
	}
	if got := economics([]string{"idle"}, p, &ledger.Economics{Balance: 1000}); got.BurnPerHour != 0 || got.Runway != -1 {
		t.Errorf("idle: got %d an hour and a runway of %d, want 0 and -1", got.BurnPerHour, got.Runway)
	}
}

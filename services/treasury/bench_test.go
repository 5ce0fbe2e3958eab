package treasury_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/services/treasury"
)

// BenchmarkHold measures a hold on one account with concurrent callers, as another
// service makes it: over NATS, with its events.
func BenchmarkHold(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			w := apptest.Start(b, apptest.Options{Env: development}, treasury.Service)
			ctx := b.Context()
			if _, err := bus.Call[api.Account](ctx, w.Bus, api.OpenAccount{Agent: "lucky"}); err != nil {
				b.Fatal(err)
			}
			if _, err := bus.Call[api.Posted](ctx, w.Bus, api.Deposit{ID: "d", Agent: "lucky", Amount: api.MaxMicros, Source: "faucet"}); err != nil {
				b.Fatal(err)
			}
			expires := time.Now().Add(time.Hour).UnixMicro()
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			began := time.Now()
			for range callers {
				wg.Go(func() {
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						m := api.Hold{ID: fmt.Sprintf("h%d", n), Agent: "lucky", Amount: 100, Category: "inference", Turn: "t1", ExpiresAt: expires}
						if _, err := bus.Call[api.HoldState](ctx, w.Bus, m); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "holds/s")
		})
	}
}

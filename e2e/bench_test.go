package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
)

// BenchmarkTurn is the overhead of a turn: the simulated model answers at once, so
// what is left is ours. A run is two turns: one with a tool call that policy
// judges, one with words; each holds and settles. Sessions run at the same time,
// each by an agent of its own. The figures are per turn.
func BenchmarkTurn(b *testing.B) {
	for _, sessions := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			w := oneProcess(b, map[string]string{"ANIMA_LOOP_LEASE": "15s"})
			agents := make([]api.Agent, sessions)
			for i := range agents {
				agents[i] = born(b, w, fmt.Sprintf("Bench%d", i), 1000*api.Dollar)
				dir := filepath.Join(w.data, "loop", "workspaces", agents[i].ID)
				if err := os.MkdirAll(dir, 0o700); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "bench.txt"), []byte("x"), 0o600); err != nil {
					b.Fatal(err)
				}
			}
			ends := map[string]chan api.LoopEnd{}
			for _, a := range agents {
				ends[a.Session] = make(chan api.LoopEnd, 1)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var following sync.WaitGroup
			defer following.Wait()
			defer cancel()
			following.Go(func() {
				err := w.bus.Follow(ctx, 0, func(s bus.Stored) error {
					var e api.LoopEnd
					if err := api.Decode(s.Data, &e); err != nil {
						return err
					}
					ends[e.Session] <- e
					return nil
				}, api.LoopEnd{}.Subject().All())
				if ctx.Err() == nil {
					b.Errorf("follow: %v", err)
				}
			})
			one := func(a api.Agent) time.Duration {
				began := time.Now()
				if _, err := bus.Call[api.Accepted](ctx, w.bus, api.SendMessage{Agent: a.ID, Content: "one tool"}); err != nil {
					b.Error(err)
					return 0
				}
				e := <-ends[a.Session]
				if !e.Success || e.Turns != 2 {
					b.Errorf("run: %+v", e)
				}
				return time.Since(began) / 2
			}
			for _, a := range agents { // warm
				one(a)
			}
			var mu sync.Mutex
			var took []time.Duration
			work := make(chan struct{})
			b.ResetTimer()
			began := time.Now()
			var wg sync.WaitGroup
			for _, a := range agents {
				wg.Go(func() {
					for range work {
						d := one(a)
						mu.Lock()
						took = append(took, d)
						mu.Unlock()
					}
				})
			}
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			elapsed := time.Since(began)
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms/turn")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms/turn")
			b.ReportMetric(2*float64(len(took))/elapsed.Seconds(), "turns/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// bareNATS is a connection without the bus.
func bareNATS(b *testing.B, s *embednats.Server) *nats.Conn {
	b.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(s.InProcess()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	return nc
}

// BenchmarkRequest is a question through a service's route against the bare
// foundation on the same server in the same run.
func BenchmarkRequest(b *testing.B) {
	w := oneProcess(b, nil)
	born(b, w, "Asked", api.Dollar)
	s := apptest.Server(b)
	nc, responder := bareNATS(b, s), bareNATS(b, s)
	if _, err := responder.Subscribe("bare", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	ask := func() time.Duration {
		began := time.Now()
		if _, err := bus.Call[api.Keys](b.Context(), w.bus, api.ListKeys{}); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	bare := func() time.Duration {
		began := time.Now()
		if _, err := nc.RequestWithContext(b.Context(), "bare", []byte("{}")); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	var ours, theirs []time.Duration
	for range b.N {
		ours, theirs = append(ours, ask()), append(theirs, bare())
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	mine, plain := ours[len(ours)/2], theirs[len(theirs)/2]
	b.ReportMetric(float64(mine.Nanoseconds())/1000, "p50-us/route")
	b.ReportMetric(float64(plain.Nanoseconds())/1000, "p50-us/bare")
	b.ReportMetric(float64(mine)/float64(plain), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWake is the time from a wake being asked for to the woken agent's first
// event.
func BenchmarkWake(b *testing.B) {
	w := oneProcess(b, map[string]string{"ANIMA_LOOP_LEASE": "15s"})
	a := born(b, w, "Light", 1000*api.Dollar)
	await(b, w, api.AgentChanged{Agent: a.ID}, func(api.AgentChanged) bool { return true })
	starts := make(chan api.LoopStart, 16)
	ends := make(chan api.LoopEnd, 16)
	ctx, cancel := context.WithCancel(b.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	following.Go(func() {
		_ = w.bus.Follow(ctx, 0, func(s bus.Stored) error {
			var e api.LoopStart
			if err := api.Decode(s.Data, &e); err != nil {
				return err
			}
			starts <- e
			return nil
		}, api.LoopStart{Session: a.Session}.Subject().String())
	})
	following.Go(func() {
		_ = w.bus.Follow(ctx, 0, func(s bus.Stored) error {
			var e api.LoopEnd
			if err := api.Decode(s.Data, &e); err != nil {
				return err
			}
			ends <- e
			return nil
		}, api.LoopEnd{Session: a.Session}.Subject().String())
	})
	var took []time.Duration
	for i := range b.N {
		began := time.Now()
		if _, err := bus.Call[api.Wake](ctx, w.bus, api.RequestWake{Agent: a.ID, Cause: fmt.Sprintf("bench-%d", i), Reason: "bench"}); err != nil {
			b.Fatal(err)
		}
		<-starts
		took = append(took, time.Since(began))
		<-ends
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(0, "ns/op")
}

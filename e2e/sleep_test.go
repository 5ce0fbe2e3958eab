package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// BenchmarkSleeping measures the cost of sleeping agents and the time to wake one. It
// creates ANIMA_BENCH_AGENTS agents (10,000 by default) in one loop process. Messages of
// the creator then wake randomly chosen ones, one after the other. It compares the first
// turn after the sleep with the next turn of the same agent.
func BenchmarkSleeping(b *testing.B) {
	agents := 10_000
	if s := os.Getenv("ANIMA_BENCH_AGENTS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			b.Fatalf("ANIMA_BENCH_AGENTS is %q", s)
		}
		agents = n
	}
	w := manyProcesses(b, nil)
	empty := memory(b, w.processes["loop"])
	ids := make([]string, agents)
	work := make(chan int)
	var making sync.WaitGroup
	for range 16 {
		making.Go(func() {
			for i := range work {
				ids[i] = born(b, w, fmt.Sprintf("S%d", i), api.Dollar).ID
			}
		})
	}
	for i := range agents {
		work <- i
	}
	close(work)
	making.Wait()
	// The process is measured when idle: within 30 s it returns the memory that the
	// creation of agents took, and it closes connections that were not used for 20 s.
	<-time.After(40 * time.Second)
	full := memory(b, w.processes["loop"])

	type moment struct {
		run string
		at  time.Time
	}
	starts, ends := make(chan moment, 16), make(chan moment, 16)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var following sync.WaitGroup
	b.Cleanup(func() { cancel(); following.Wait() })
	follow := func(to chan moment, zero api.Message) {
		following.Go(func() {
			_ = w.bus.Events(ctx, 0, func(s bus.Stored) error {
				var e struct {
					Run string `json:"runId"`
				}
				if err := api.Decode(s.Data, &e); err != nil {
					return err
				}
				to <- moment{e.Run, time.Now()}
				return nil
			}, zero.Subject())
		})
	}
	follow(starts, api.LoopStart{})
	follow(ends, api.LoopEnd{})
	var woken, first, next []time.Duration
	b.ResetTimer()
	for i := range max(b.N, 10) {
		agent := ids[rand.IntN(agents)]
		for turn := range 2 {
			asked := time.Now()
			if _, err := bus.Call[api.Wake](ctx, w.bus, api.RequestWake{Agent: agent, Cause: fmt.Sprintf("bench-%d-%d", i, turn), Reason: "bench"}); err != nil {
				b.Fatal(err)
			}
			began, over := <-starts, <-ends
			if turn == 0 {
				woken, first = append(woken, began.at.Sub(asked)), append(first, over.at.Sub(began.at))
			} else {
				next = append(next, over.at.Sub(began.at))
			}
		}
	}
	b.StopTimer()
	for _, all := range [][]time.Duration{woken, first, next} {
		slices.Sort(all)
	}
	ms := func(all []time.Duration, percent int) float64 {
		return float64(all[len(all)*percent/100].Microseconds()) / 1000
	}
	b.ReportMetric(float64(agents), "agents")
	b.ReportMetric(empty, "MiB-without")
	b.ReportMetric(full, "MiB")
	b.ReportMetric(ms(woken, 50), "wake-p50-ms")
	b.ReportMetric(ms(woken, 99), "wake-p99-ms")
	b.ReportMetric(ms(first, 50)/ms(next, 50), "first/next-turn")
	b.ReportMetric(0, "ns/op")
}

// memory returns a process's resident memory in MiB.
func memory(t testing.TB, p *process) float64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib / 1024
		}
	}
	t.Fatal("a process without memory")
	return 0
}

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// memoryCalls is the variable of make memory: the number of calls. Without it
// TestRouterMemory has its short form.
const memoryCalls = "ANIMA_MEMORY_CALLS"

// TestRouterMemory checks that the memory of a router does not grow with its calls: after
// all of them it is at most 1.1 times that after the first ones, 10^4 of 10^6 in the long
// form. The short form has a wider bound, because a young heap still grows. Each call is of
// another agent, of 20,000, and has an id, a prompt and a hold of its own; some break off,
// and some are repeated. The memory is that of the router's process, the lowest of several
// samples between the garbage collections.
func TestRouterMemory(t *testing.T) {
	t.Parallel()
	total, first, bound := number(t, memoryCalls, 0), 10_000, 1.1
	if total == 0 {
		total, first, bound = 4_000, 1_500, 1.35
	}
	s := server(t, "127.0.0.1:0")
	p := startService(t, "inference-router", s.ClientURL(), t.TempDir(), map[string]string{
		"ANIMA_INFERENCE_ROUTER_SIMULATED": "true", "ANIMA_INFERENCE_ROUTER_HEDGE": "p95", "ANIMA_INFERENCE_ROUTER_ENDPOINTS": "simulated=|", "GOGC": "50",
	})
	nc, err := bus.Dial(bus.DialOptions{URL: s.ClientURL(), Token: token, Name: "e2e", Wait: true, Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := bus.New(nc, bus.Options{Service: "e2e", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	serveForgetful(t, b)
	p.await(t)

	began := time.Now()
	var made atomic.Int64
	calls := func(until int) {
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for n := made.Add(1); n <= int64(until); n = made.Add(1) {
					if err := memoryCall(t.Context(), b, n); err != nil {
						t.Errorf("call %d: %v", n, err)
						return
					}
				}
			})
		}
		all.Wait()
		made.Store(int64(until))
	}
	calls(first)
	before := settledMemory(t, p, calls, first)
	for tenth := 1; tenth < 10 && total/10 > first; tenth++ {
		n := total / 10 * tenth
		calls(n)
		t.Logf("%d of %d calls, %.1f MB, %.0f s gone", n, total, float64(settledMemory(t, p, calls, n))/1e6, time.Since(began).Seconds())
	}
	calls(total)
	after := settledMemory(t, p, calls, total)
	ratio := float64(after) / float64(before)
	t.Logf("%.1f MB after %d calls, %.1f MB after %d, a ratio of %.2f, in %.0f s", float64(before)/1e6, first, float64(after)/1e6, total, ratio, time.Since(began).Seconds())
	if ratio > bound {
		t.Errorf("a ratio of %.2f, want at most %.2f", ratio, bound)
	}
}

// settledMemory returns the lowest resident memory of a process between further calls,
// after n.
func settledMemory(t *testing.T, p *process, calls func(until int), n int) int64 {
	t.Helper()
	least := int64(0)
	for i := range 8 {
		calls(n + 50*(i+1))
		if now := residentOf(t, p.cmd.Process.Pid); least == 0 || now < least {
			least = now
		}
	}
	return least
}

// memoryCall makes one call. Every 10th is repeated with its id, and every 50th is canceled
// during its answer.
func memoryCall(ctx context.Context, b *bus.Bus, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	agent := fmt.Sprintf("agent%d", n%20_000)
	id := fmt.Sprintf("memory/%d", n)
	req := api.Complete{
		ID: id, Agent: agent, Session: "s" + agent, Turn: id, Run: id, Task: api.TaskTurn, Tier: api.TierHigh,
		Messages: []api.ChatMessage{{Role: "system", Content: "You are " + agent}, {Role: "user", Content: strings.Repeat(id+" ", 20)}},
	}
	left := n%50 == 0
	for range 1 + n%10/9 {
		_, err := bus.CallStream[api.Delta, api.Completion](ctx, b, req, func(api.Delta) error {
			if left {
				cancel()
			}
			return nil
		})
		if err != nil && !left {
			return err
		}
	}
	return nil
}

// serveForgetful answers as a treasury that accepts everything and remembers nothing, so
// that the memory of the test does not grow.
func serveForgetful(t *testing.T, b *bus.Bus) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- b.Serve(ctx, time.Second, func() { close(ready) },
			bus.Reply(func(_ context.Context, m api.Hold) (api.HoldState, error) {
				return api.HoldState{ID: m.ID, Agent: m.Agent, Status: api.HoldActive, Amount: m.Amount, ExpiresAt: m.ExpiresAt}, nil
			}),
			bus.Reply(func(_ context.Context, m api.Settle) (api.HoldState, error) {
				return api.HoldState{ID: m.ID, Status: api.HoldSettled, Settled: m.Amount}, nil
			}),
			bus.Reply(func(_ context.Context, m api.Release) (api.HoldState, error) {
				return api.HoldState{ID: m.ID, Status: api.HoldReleased}, nil
			}),
			bus.Reply(func(context.Context, api.ListHolds) (api.Holds, error) { return api.Holds{}, nil }),
			bus.Reply(func(_ context.Context, m api.SettleMany) (api.Settled, error) {
				out := api.Settled{Results: make([]api.SettleResult, len(m.Settlements))}
				for i, s := range m.Settlements {
					agent, _, _ := strings.Cut(s.ID, "/")
					out.Results[i].Hold = &api.HoldState{ID: s.ID, Agent: agent, Status: api.HoldSettled, Settled: s.Amount}
					out.Funds = append(out.Funds, api.AgentFunds{Agent: agent, Funds: api.Funds{Available: api.Dollar, Tier: api.TierNormal}})
				}
				return out, nil
			}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
}

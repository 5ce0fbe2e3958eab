package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/inference-router/openaitest"
	"github.com/anima-run/anima/services/treasury"
)

// overspendCalls is the variable of the long form of [TestOverspend]: how many calls each
// caller has credits for. In the long form a replica is killed at every number of callers.
const overspendCalls = "ANIMA_OVERSPEND_CALLS"

// Each attempt costs the same, whether it is answered, aborted or lost, and as much as its
// hold: the prompt is free and the text has as many tokens as the limit. So a balance for
// n calls is spent to the last micro-USD, and one call too many is visible.
const (
	overspendTokens = 32
	overspendPrice  = 4 // micro-USD for an output token
	overspendCost   = api.Micros(overspendTokens * overspendPrice)
)

// meter is a provider that charges a call as soon as it has generated its text.
type meter struct {
	url     string
	charged atomic.Int64 // calls
	stopAt  int64        // from this call on, answers wait for goOn; 0: none waits
	waiting chan struct{}
	goOn    chan struct{}
}

func startMeter(t *testing.T, stopAt int64) *meter {
	t.Helper()
	m := &meter{stopAt: stopAt, waiting: make(chan struct{}, 1024), goOn: make(chan struct{})}
	text := strings.Repeat("four", overspendTokens)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			openaitest.WriteModels(w, openaitest.Model{}, "m")
			return
		}
		req, err := openaitest.Decode(r.Body, r.ContentLength)
		if err != nil {
			openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
			return
		}
		n := m.charged.Add(1)
		out := openaitest.NewStream(w, fmt.Sprint(n), "m", 0)
		out.Text(text)
		if m.stopAt > 0 && n >= m.stopAt {
			select {
			case m.waiting <- struct{}{}:
			default:
			}
			select {
			case <-m.goOn:
			case <-r.Context().Done():
				return
			}
		}
		out.Finish("stop")
		out.Usage(openaitest.Usage{Input: req.Estimate(), Output: overspendTokens})
		out.Done()
	}))
	t.Cleanup(srv.Close)
	m.url = srv.URL + "/v1"
	return m
}

func (m *meter) environment() map[string]string {
	return map[string]string{
		"OPENAI_BASE_URL": m.url, "OPENAI_API_KEY": "key", "ANIMA_TREASURY_FAUCET": "true",
		"ANIMA_INFERENCE_ROUTER_MODELS": fmt.Sprintf("m=0/%d/128000", overspendPrice),
	}
}

// spend makes calls from many callers of one agent with credits for calls of them, until
// no caller gets another answer and no credits are left. It returns the number of answers
// and of attempts that were made again.
func (m *meter) spend(t *testing.T, b *bus.Bus, callers, calls int) (answers, repeats int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	const agent = "spender"
	money := api.Micros(calls) * overspendCost
	if _, err := bus.Call[api.Account](ctx, b, api.OpenAccount{Agent: agent}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Call[api.Posted](ctx, b, api.Deposit{ID: "all", Agent: agent, Amount: money, Source: "faucet"}); err != nil {
		t.Fatal(err)
	}
	var answered, repeated atomic.Int64
	var left api.Balance
	for round := 0; ; round++ {
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for n := 0; ; n++ {
					more, repeats, err := m.call(ctx, b, agent, fmt.Sprintf("r%d-c%d-%d", round, i, n))
					repeated.Add(repeats)
					switch {
					case err != nil:
						t.Errorf("caller %d: %v", i, err)
						return
					case !more:
						return
					}
					answered.Add(1)
				}
			})
		}
		all.Wait()
		var err error
		if left, err = bus.Call[api.Balance](ctx, b, api.GetBalance{Agent: agent}); err != nil {
			t.Fatal(err)
		}
		// The hold of a stopped call may have been released after the last caller was refused.
		if t.Failed() || left.Available == 0 && left.Held == 0 {
			break
		}
	}
	bill := api.Micros(m.charged.Load()) * overspendCost
	t.Logf("%d callers: %d answers after %d repeats, the provider charged %s of %s, a ratio of %.2f",
		callers, answered.Load(), repeated.Load(), bill, money, float64(bill)/float64(money))
	if bill > money {
		t.Errorf("the provider charged %s for a balance of %s", bill, money)
	}
	if left.Available != 0 || left.Held != 0 {
		t.Errorf("%s are left and %s are held, want everything spent", left.Available, left.Held)
	}
	return answered.Load(), repeated.Load()
}

// call makes one call and repeats it under its id until it is answered. It returns false
// when the credits are spent, and the number of repeats.
func (m *meter) call(ctx context.Context, b *bus.Bus, agent, id string) (more bool, repeats int64, err error) {
	for ; ; repeats++ {
		_, err := bus.CallStream[api.Delta, api.Completion](ctx, b, api.Complete{
			ID: id, Agent: agent, Session: "s", Turn: id, Task: api.TaskTurn, Tier: api.TierNormal, Model: "m", MaxTokens: overspendTokens,
			Messages: []api.ChatMessage{{Role: "user", Content: "spend"}},
		}, func(api.Delta) error { return nil })
		switch {
		case err == nil:
			return true, repeats, nil
		case api.ReasonOf(err) == api.ReasonInsufficient:
			return false, repeats, nil
		case ctx.Err() != nil || api.CodeOf(err) != api.Unavailable:
			return false, repeats, err
		}
	}
}

// TestOverspend checks that the calls of one agent cost at most its balance at the
// provider, with many callers at once, and that they can spend all of it.
func TestOverspend(t *testing.T) {
	t.Parallel()
	each := number(t, overspendCalls, 2)
	for _, callers := range []int{1, 16, 64, 256} {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			t.Parallel()
			m := startMeter(t, 0)
			w := apptest.Start(t, apptest.Options{Env: m.environment()}, treasury.Service, router.Service)
			// The provider charges an attempt that is stopped, too, when the machine is slow.
			answers, repeats := m.spend(t, w.Bus, callers, callers*each)
			if want := int64(callers * each); answers > want || answers < want-repeats {
				t.Errorf("%d answers after %d repeats, want %d with none", answers, repeats, want)
			}
		})
	}
}

// TestOverspendKilled is TestOverspend with three replicas of the router, one of which is
// killed while the provider generates the answers to its calls. The provider charges these
// answers, and nothing of them is stored. Their callers make the calls again.
func TestOverspendKilled(t *testing.T) {
	t.Parallel()
	each := number(t, overspendCalls, 2)
	sizes := []int{64}
	if each > 2 {
		sizes = []int{1, 16, 64, 256}
	}
	for _, callers := range sizes {
		t.Run(fmt.Sprint(callers), func(t *testing.T) {
			t.Parallel()
			calls := max(callers*each, 4)
			m := startMeter(t, int64(calls/4))
			env := m.environment()
			s := server(t, "127.0.0.1:0")
			bank := startService(t, "treasury", s.ClientURL(), t.TempDir(), env)
			env["ANIMA_DATABASE_URL"] = sqldbtest.Postgres(t)
			var replicas []*process
			for range 3 {
				replicas = append(replicas, startService(t, "inference-router", s.ClientURL(), t.TempDir(), env))
			}
			for _, p := range append(replicas, bank) {
				p.await(t)
			}
			nc, err := bus.Dial(bus.DialOptions{URL: s.ClientURL(), Token: token, Name: "e2e", Wait: true, Log: apptest.Log(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			b, err := bus.New(nc, bus.Options{Service: "e2e", Log: apptest.Log(t), AliveEvery: time.Second}) // callers notice soon
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			var killer sync.WaitGroup
			killer.Go(func() {
				defer close(m.goOn)
				for range max(callers/2, 1) { // calls of every replica wait, if there are enough
					select {
					case <-m.waiting:
					case <-time.After(time.Minute):
						t.Error("no call waits at the provider")
						return
					}
				}
				replicas[0].kill()
			})
			answers, _ := m.spend(t, b, callers, calls)
			killer.Wait()
			t.Logf("%d attempts had no answer", m.charged.Load()-answers)
		})
	}
}

package router_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/hedge"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// slowFirst is a server that leaves the n-th call without content while slow is true of it,
// until its client has left.
func slowFirst(t *testing.T, slow func(n int64) bool) (s *server, left chan int64) {
	t.Helper()
	left = make(chan int64, 256)
	return answering(t, func(n int64, out raw, r *http.Request) {
		if slow(n) {
			out.events(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`) // no content
			hang(r)
			left <- n
			return
		}
		out.events(chunkText(fmt.Sprintf("answer %d", n)), chunkStop, chunkDone)
	}), left
}

// outcomes returns the number of attempts by their outcome.
func outcomes(t *testing.T, data string) map[string]int {
	t.Helper()
	db, err := sqldb.Open(t.Context(), "sqlite:"+data+"/inference-router/inference-router.db", sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // it was only read
	type row struct {
		outcome string
		n       int
	}
	all, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (v row, err error) { return v, r.Scan(&v.outcome, &v.n) },
		"select outcome, count(*) from inference_attempts group by outcome")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, r := range all {
		out[r.outcome] = r.n
	}
	return out
}

// TestHedge checks that a call whose first attempt has no content is answered by a second
// one, at another model or at another endpoint, and that the first one is canceled, has a
// row and is paid for its prompt.
func TestHedge(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]map[string]string{
		"model":    {"ANIMA_INFERENCE_ROUTER_LOCAL": "no"},
		"endpoint": {"ANIMA_INFERENCE_ROUTER_ENDPOINTS": "openai=|other-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, left := slowFirst(t, func(n int64) bool { return n == 1 })
			env["ANIMA_INFERENCE_ROUTER_HEDGE"] = "200ms"
			w, b := paid(t, s.url, env)
			c, h, err := ask(t, w.Bus, request("hedged", "hello"))
			want := map[string]string{"model": "n", "endpoint": "m"}[name]
			if err != nil || c.Text != "answer 2" || c.Model != want || h.text.String() != "answer 2" || h.discards != 0 || c.Attempts != 2 {
				t.Fatalf("got %+v, %v, shown %q; want the answer of the second attempt", c, err, h.text.String())
			}
			select {
			case <-left:
			case <-time.After(10 * time.Second):
				t.Error("the first attempt was not canceled")
			}
			settled, released, active, sum := b.sums()
			if settled != 2 || released+active != 0 || sum != c.Cost {
				t.Errorf("%d settled with %s, %d released, %d active; want two with the cost of %s", settled, sum, released, active, c.Cost)
			}
			w.Stop()
			if got := outcomes(t, w.Data); got["answered"] != 1 || got["hedged"] != 1 || len(got) != 2 {
				t.Errorf("got the outcomes %v, want one answered and one hedged", got)
			}
		})
	}
}

// TestHedgeIsInProgress checks that the attempt of a hedge counts as in progress until its
// hold is settled: another replica that asks about it must not pay it as a lost one.
func TestHedgeIsInProgress(t *testing.T) {
	t.Parallel()
	s, _ := slowFirst(t, func(n int64) bool { return n == 1 })
	b, settling, goOn := newBooks(), make(chan string, 8), make(chan struct{})
	b.refusing(func(m api.Message) error {
		if v, ok := m.(api.Settle); ok && strings.HasSuffix(v.ID, "h") {
			settling <- v.ID
			<-goOn
		}
		return nil
	})
	w := paidBy(t, b, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_HEDGE": "200ms", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"})
	var call sync.WaitGroup
	defer call.Wait()
	defer close(goOn)
	call.Go(func() {
		if c, _, err := ask(t, w.Bus, request("hedged", "hello")); err != nil || c.Text != "answer 2" {
			t.Errorf("got %+v, %v; want the answer of the second attempt", c, err)
		}
	})
	var hold string
	select {
	case hold = <-settling:
	case <-time.After(30 * time.Second):
		t.Fatal("the second attempt was not settled")
	}
	questions, err := bus.OpenBucket[api.AttemptQuery](t.Context(), w.Bus)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := questions.Create(t.Context(), api.AttemptKey(hold), api.AttemptQuery{Hold: hold, By: "another"}, time.Minute); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	answered := false
	err = questions.Watch(ctx, api.AttemptKey(hold), nil, func(e bus.Entry[api.AttemptQuery]) error {
		if answered = e.Value.Holder != ""; answered {
			return io.EOF // enough
		}
		return nil
	})
	if !answered {
		t.Errorf("the question about %s was not answered: %v", hold, err)
	}
}

// TestNoHedge checks that a call is not hedged if its first content arrives in time, if the
// credits do not suffice for both attempts, if hedges are off, and if the server is local
// and the only one.
func TestNoHedge(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]map[string]string{
		"in time": {"ANIMA_INFERENCE_ROUTER_HEDGE": "20s", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"},
		"credits": {"ANIMA_INFERENCE_ROUTER_HEDGE": "50ms", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"},
		"off":     {"ANIMA_INFERENCE_ROUTER_LOCAL": "no"},
		"local":   {"ANIMA_INFERENCE_ROUTER_HEDGE": "50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goOn := make(chan struct{})
			s := answering(t, func(_ int64, out raw, _ *http.Request) {
				<-goOn
				out.events(chunkText("fine"), chunkStop, chunkDone)
			})
			b := newBooks()
			var holds atomic.Int64
			b.refusing(func(m api.Message) error {
				if _, ok := m.(api.Hold); ok && holds.Add(1) == 2 {
					close(goOn)
					return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "too little"}
				}
				return nil
			})
			if name != "credits" {
				time.AfterFunc(300*time.Millisecond, func() { close(goOn) }) // longer than it takes to hedge
			}
			w := paidBy(t, b, s.url, env)
			c, _, err := ask(t, w.Bus, request("plain", "hello"))
			if err != nil || c.Text != "fine" || s.calls.Load() != 1 {
				t.Errorf("got %+v, %v after %d attempts; want the answer of one", c, err, s.calls.Load())
			}
			if settled, released, active, _ := b.sums(); settled != 1 || released+active != 0 {
				t.Errorf("%d settled, %d released, %d active; want one settled", settled, released, active)
			}
		})
	}
}

// TestRefusedHedgesKeepTheBudget checks that second attempts which treasury does not pay take
// no retries from the budget of their provider: a later call is hedged.
func TestRefusedHedgesKeepTheBudget(t *testing.T) {
	t.Parallel()
	const refused = health.Burst + 2 // each call also pays for a tenth of a retry
	holds := make(chan struct{}, refused)
	s := answering(t, func(n int64, out raw, r *http.Request) {
		switch {
		case n <= refused:
			select {
			case <-holds: // the hold of the second attempt was refused
			case <-r.Context().Done():
			}
		case n == refused+1:
			hang(r)
			return
		}
		out.events(chunkText(fmt.Sprintf("answer %d", n)), chunkStop, chunkDone)
	})
	b := newBooks()
	b.refusing(func(m api.Message) error {
		if v, ok := m.(api.Hold); ok && strings.HasSuffix(v.ID, "h") && s.calls.Load() <= refused {
			holds <- struct{}{}
			return &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "too little"}
		}
		return nil
	})
	w := paidBy(t, b, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_HEDGE": "20ms", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"})
	call := func(id string) (api.Completion, error) {
		req := request(id, "hello")
		req.Deadline = time.Now().Add(20 * time.Second).UnixMicro() // without a second attempt the first one waits
		c, _, err := ask(t, w.Bus, req)
		return c, err
	}
	for i := range refused {
		if c, err := call(fmt.Sprintf("refused-%d", i)); err != nil || c.Attempts != 1 {
			t.Fatalf("call %d: got %+v, %v; want the answer of one attempt", i, c, err)
		}
	}
	if c, err := call("hedged"); err != nil || c.Text != fmt.Sprintf("answer %d", refused+2) {
		t.Errorf("got %+v, %v; want the answer of a second attempt", c, err)
	}
}

// TestHedgeAfterPercentile checks that calls are hedged when enough attempts are known, and
// not before.
func TestHedgeAfterPercentile(t *testing.T) {
	t.Parallel()
	var slow atomic.Bool
	s, _ := slowFirst(t, func(n int64) bool { return slow.Load() && n%2 == 1 })
	w := start(t, s.provider, map[string]string{
		"ANIMA_INFERENCE_ROUTER_HEDGE": "p95", "ANIMA_INFERENCE_ROUTER_ENDPOINTS": "openai=|sekret-key",
	})
	for i := range hedge.MinSamples {
		if _, _, err := ask(t, w.Bus, request(fmt.Sprintf("fast-%d", i), "hello")); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.calls.Load(); n < hedge.MinSamples || n > hedge.MinSamples+health.Burst {
		t.Fatalf("%d attempts for %d calls", n, hedge.MinSamples)
	}
	s.calls.Store(0)
	slow.Store(true)
	c, _, err := ask(t, w.Bus, request("slow", "hello"))
	if err != nil || c.Text != "answer 2" {
		t.Errorf("got %+v, %v; want the answer of the second attempt", c, err)
	}
}

// TestOutageWithHedges checks that a provider that never sends content receives at most
// 1.1 attempts for each call, and the burst of its budget.
func TestOutageWithHedges(t *testing.T) {
	t.Parallel()
	const calls, callers = 80, 16
	s, _ := slowFirst(t, func(int64) bool { return true })
	w, b := paid(t, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_HEDGE": "30ms", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"})
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range calls / callers {
				req := request(fmt.Sprintf("dead-%d-%d", caller, i), "hello")
				req.Deadline = time.Now().Add(400 * time.Millisecond).UnixMicro()
				if c, _, err := ask(t, w.Bus, req); err == nil {
					t.Errorf("got %+v", c)
				}
			}
		})
	}
	all.Wait()
	attempts := s.calls.Load()
	t.Logf("%d attempts for %d calls", attempts, calls)
	if 10*attempts > 11*calls+10*health.Burst {
		t.Errorf("%d attempts for %d calls", attempts, calls)
	}
	w.Stop()
	if _, _, active, _ := b.sums(); active != 0 {
		t.Errorf("%d holds are active", active)
	}
}

// TestHedgeFails checks that the first attempt goes on when the second one fails, and the
// reverse.
func TestHedgeFails(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]int64{"second": 2, "first": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second, b := make(chan struct{}), newBooks()
			s := answering(t, func(n int64, out raw, _ *http.Request) {
				if n == 2 {
					close(second)
				}
				<-second
				if n == failing {
					out.fail(503, "down")
					return
				}
				for range time.Tick(5 * time.Millisecond) { // until the failure is stored and its hold is ended
					if _, released, _, _ := b.sums(); released == 1 {
						break
					}
				}
				out.events(chunkText("fine"), chunkStop, chunkDone)
			})
			w := paidBy(t, b, s.url, map[string]string{"ANIMA_INFERENCE_ROUTER_HEDGE": "100ms", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"})
			c, _, err := ask(t, w.Bus, request("one", "hello"))
			if err != nil || c.Text != "fine" || s.calls.Load() != 2 || strings.Contains(c.Text, "down") {
				t.Errorf("got %+v, %v after %d attempts", c, err, s.calls.Load())
			}
			if settled, released, active, sum := b.sums(); settled != 1 || released != 1 || active != 0 || sum != c.Cost {
				t.Errorf("%d settled with %s, %d released, %d active; want one each, and a cost of %s", settled, sum, released, active, c.Cost)
			}
		})
	}
}

// TestHedgeAtAMissingModel checks that the failure of a second attempt counts for its model:
// one that does not exist is not called again when the first attempt fails, too.
func TestHedgeAtAMissingModel(t *testing.T) {
	t.Parallel()
	b := newBooks()
	var mu sync.Mutex
	calls := map[string]int{}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := raw{w}
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m"},{"id":"n"}]}`)
			return
		}
		req, err := openaitest.Decode(r.Body, r.ContentLength)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		calls[req.Model]++
		n := calls[req.Model]
		mu.Unlock()
		switch {
		case req.Model == "n":
			out.fail(http.StatusNotFound, "the model n does not exist")
		case n == 1:
			for range time.Tick(5 * time.Millisecond) { // until the failure of n is stored and its hold is ended
				if _, released, _, _ := b.sums(); released == 1 {
					break
				}
			}
			out.fail(http.StatusBadGateway, "down")
		default:
			out.events(chunkText("fine"), chunkStop, chunkDone)
		}
	}))
	t.Cleanup(up.Close)
	w := paidBy(t, b, up.URL+"/v1", map[string]string{"ANIMA_INFERENCE_ROUTER_HEDGE": "100ms", "ANIMA_INFERENCE_ROUTER_LOCAL": "no"})
	c, _, err := ask(t, w.Bus, request("one", "hello"))
	mu.Lock()
	defer mu.Unlock()
	if err != nil || c.Text != "fine" || c.Model != "m" || calls["m"] != 2 || calls["n"] != 1 {
		t.Errorf("got %+v, %v after the attempts %v; want the answer of m, and one attempt at n", c, err, calls)
	}
}

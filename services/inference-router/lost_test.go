package router_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
)

func answersAtOnce(t *testing.T) *server {
	t.Helper()
	return answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("fine"), chunkStop, chunkDone) })
}

// holdOf returns a hold.
func holdOf(t *testing.T, b *books, id string) api.HoldState {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holds[id] == nil {
		t.Fatalf("there is no hold %s", id)
	}
	return *b.holds[id]
}

// TestLostAttempt checks that a hold that a crashed process left is paid whole, whether or
// not the prompt is the same, and that the next attempt has a hold of its own.
func TestLostAttempt(t *testing.T) {
	t.Parallel()
	w, b := paid(t, answersAtOnce(t).url, nil)
	one, _, err := ask(t, w.Bus, request("probe", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	amount := holdOf(t, b, "probe/0").Amount
	for name, more := range map[string]api.Micros{"same": 0, "other": 5} {
		left := api.HoldState{
			ID: name + "/0", Agent: "lucky", Status: api.HoldActive, Amount: amount + more, ExpiresAt: time.Now().Add(time.Minute).UnixMicro(),
		}
		b.mu.Lock()
		b.holds[left.ID] = &left
		b.mu.Unlock()
		c, _, err := ask(t, w.Bus, request(name, "hello"))
		if err != nil || c.Text != "fine" || c.Attempts != 1 || c.Cost != one.Cost+left.Amount {
			t.Errorf("%s: got %+v, %v; want a cost of %s", name, c, err, one.Cost+left.Amount)
		}
		if h := holdOf(t, b, name+"/0"); h.Status != api.HoldSettled || h.Settled != left.Amount {
			t.Errorf("%s: got %+v, want the lost hold paid whole", name, h)
		}
		if h := holdOf(t, b, name+"/0.1"); h.Status != api.HoldSettled || h.Settled != one.Cost {
			t.Errorf("%s: got %+v, want the answer paid", name, h)
		}
	}
}

// TestUnansweredHold checks that a hold that treasury made without an answer is not taken
// for that of a lost attempt, and is ended.
func TestUnansweredHold(t *testing.T) {
	t.Parallel()
	w, b := paid(t, answersAtOnce(t).url, nil)
	first := true
	b.refusing(func(m api.Message) error {
		h, ok := m.(api.Hold)
		if !ok || !first {
			return nil
		}
		first = false
		b.holds[h.ID] = &api.HoldState{ID: h.ID, Agent: h.Agent, Status: api.HoldActive, Amount: h.Amount, ExpiresAt: h.ExpiresAt}
		return api.Errorf(api.Unavailable, "the answer is lost")
	})
	if _, _, err := ask(t, w.Bus, request("again", "hello")); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("got %v, want %s", err, api.Unavailable)
	}
	c, _, err := ask(t, w.Bus, request("again", "hello"))
	if err != nil || c.Text != "fine" {
		t.Fatalf("got %+v, %v", c, err)
	}
	if settled, _, active, sum := b.sums(); settled != 1 || active != 0 || sum != c.Cost {
		t.Errorf("%d settled with %s, %d active; want one with %s", settled, sum, active, c.Cost)
	}
}

// TestUnansweredHoldOfAnotherAmount is TestUnansweredHold for a call that is repeated with
// another prompt before the hold is released: it holds credits of its own.
func TestUnansweredHoldOfAnotherAmount(t *testing.T) {
	t.Parallel()
	w, b := paid(t, answersAtOnce(t).url, nil)
	first, away := true, true
	b.refusing(func(m api.Message) error {
		switch h := m.(type) {
		case api.Hold:
			switch {
			case first:
				first = false
				b.holds[h.ID] = &api.HoldState{ID: h.ID, Agent: h.Agent, Status: api.HoldActive, Amount: h.Amount, ExpiresAt: h.ExpiresAt}
				return api.Errorf(api.Unavailable, "the answer is lost")
			case h.ID == "again/0":
				return api.Errorf(api.Conflict, "hold %s has another amount", h.ID)
			}
		case api.Release:
			if away {
				return api.Errorf(api.Unavailable, "not now")
			}
		}
		return nil
	})
	if _, _, err := ask(t, w.Bus, request("again", "hello")); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("got %v, want %s", err, api.Unavailable)
	}
	c, _, err := ask(t, w.Bus, request("again", "hello again"))
	if err != nil || c.Text != "fine" {
		t.Fatalf("got %+v, %v", c, err)
	}
	if settled, _, active, sum := b.sums(); settled != 1 || active != 1 || sum != c.Cost {
		t.Errorf("%d settled with %s, %d active; want one with %s, and the other one", settled, sum, active, c.Cost)
	}
	b.mu.Lock()
	away = false
	b.mu.Unlock()
	late := time.After(30 * time.Second)
	for again := time.Tick(5 * time.Millisecond); ; {
		if _, released, active, _ := b.sums(); released == 1 && active == 0 {
			return
		}
		select {
		case <-again:
		case <-late:
			t.Fatal("the hold without a call was not released")
		}
	}
}

// replicas runs two routers with one database on one NATS server, and a treasury.
func replicas(t *testing.T, url string) (one, two *apptest.World, b *books) {
	t.Helper()
	b = newBooks()
	nats, data := apptest.Server(t), t.TempDir()
	env := map[string]string{
		"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000,n=1/4/128000",
	}
	two = apptest.Start(t, apptest.Options{Server: nats, Data: data, Env: env}, router.Service, b.service())
	one = withBalances(t, apptest.Start(t, apptest.Options{Server: nats, Data: data, Env: env}, router.Service))
	return one, two, b
}

// TestAttemptAtAnotherReplica checks that a call that comes to a second replica while the
// first one works on it waits for that attempt, and is answered and paid once.
func TestAttemptAtAnotherReplica(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := answering(t, func(n int64, out raw, _ *http.Request) {
		if n > 1 {
			t.Error("the call was made twice")
		}
		out.events(chunkText("one "))
		close(begun)
		<-goOn
		out.events(chunkText("two"), chunkStop, chunkDone)
	})
	one, two, b := replicas(t, s.url)
	answers := make(chan struct{}, 64)
	questions, err := bus.OpenBucket[api.AttemptQuery](t.Context(), one.Bus)
	if err != nil {
		t.Fatal(err)
	}
	var watch sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		_ = questions.Watch(ctx, api.AttemptKeys, nil, func(e bus.Entry[api.AttemptQuery]) error { // it ends with ctx
			if e.Value.Holder != "" {
				answers <- struct{}{}
			}
			return nil
		})
	})
	var all sync.WaitGroup
	call := func(w *apptest.World, answer *string) {
		all.Go(func() {
			var status int
			status, *answer = post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "Anima-Agent", "lucky", "Idempotency-Key", "both")
			if status != http.StatusOK {
				t.Errorf("status %d: %s", status, *answer)
			}
		})
	}
	var first, second string
	call(one, &first)
	<-begun
	call(two, &second)
	for range 3 { // the second replica asks, waits, and asks again
		select {
		case <-answers:
		case <-time.After(20 * time.Second):
			t.Fatal("the first replica did not answer that it works on the attempt")
		}
	}
	if settled, released, active, _ := b.sums(); settled+released != 0 || active != 1 {
		t.Errorf("%d settled, %d released and %d active holds during the attempt, want one active", settled, released, active)
	}
	close(goOn)
	all.Wait()
	if first == "" || first != second {
		t.Errorf("got %s and %s", first, second)
	}
	if settled, released, active, _ := b.sums(); settled != 1 || released+active != 0 {
		t.Errorf("%d settled, %d released, %d active; want one that is paid", settled, released, active)
	}
}

// TestAttemptAtAStoppingReplica checks that a call that comes to a second replica, while the
// first one has been told to stop and still works on it, is answered and paid once.
func TestAttemptAtAStoppingReplica(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(*testing.T, *apptest.World) (string, error){
		"over NATS": func(t *testing.T, w *apptest.World) (string, error) {
			c, _, err := complete(t, w.Bus, request("moved", "hello"))
			return c.Text, err
		},
		"over HTTP": func(t *testing.T, w *apptest.World) (string, error) {
			status, answer := post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "Anima-Agent", "lucky", "Idempotency-Key", "moved")
			if status != http.StatusOK {
				return "", fmt.Errorf("status %d: %s", status, answer)
			}
			return answer, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun, goOn := make(chan struct{}), make(chan struct{})
			s := answering(t, func(n int64, out raw, _ *http.Request) {
				if n > 1 {
					t.Error("the call was made twice")
					out.events(chunkText("one two"), chunkStop, chunkDone)
					return
				}
				out.events(chunkText("one "))
				close(begun)
				<-goOn
				out.events(chunkText("two"), chunkStop, chunkDone)
			})
			b, nats, data := newBooks(), apptest.Server(t), t.TempDir()
			bank := withBalances(t, apptest.Start(t, apptest.Options{Server: nats}, b.service()))
			replica := func() *apptest.World {
				return apptest.Start(t, apptest.Options{Server: nats, Data: data, Env: map[string]string{
					"OPENAI_BASE_URL": s.url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000",
				}}, router.Service)
			}
			one := replica()
			var calls, stops sync.WaitGroup
			var release sync.Once
			defer stops.Wait()
			defer calls.Wait()
			defer release.Do(func() { close(goOn) })
			answers := make(chan string, 2)
			call := func(w *apptest.World) {
				calls.Go(func() {
					answer, err := over(t, w)
					if err != nil {
						t.Error(err)
					}
					answers <- answer
				})
			}
			call(one)
			<-begun
			stops.Go(one.Stop)
			for { // until the replica takes no more requests
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				_, err := bus.Call[api.Models](ctx, bank.Bus, api.ListModels{})
				cancel()
				if api.ReasonOf(err) == api.ReasonNoAnswer {
					break
				}
				if t.Context().Err() != nil {
					t.Fatal("the replica goes on taking requests")
				}
			}
			held := make(chan struct{}, 64)
			questions, err := bus.OpenBucket[api.AttemptQuery](t.Context(), bank.Bus)
			if err != nil {
				t.Fatal(err)
			}
			var watch sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			defer watch.Wait()
			defer cancel()
			watch.Go(func() {
				_ = questions.Watch(ctx, api.AttemptKeys, nil, func(e bus.Entry[api.AttemptQuery]) error { // it ends with ctx
					if e.Value.Holder != "" {
						held <- struct{}{}
					}
					return nil
				})
			})
			call(replica())
			select {
			case <-held:
			case <-time.After(20 * time.Second):
				t.Fatal("the stopping replica did not answer that it works on the attempt")
			}
			release.Do(func() { close(goOn) })
			calls.Wait()
			stops.Wait()
			for range cap(answers) {
				if answer := <-answers; !strings.Contains(answer, "one two") {
					t.Errorf("got the answer %q, want one two", answer)
				}
			}
			if settled, released, active, _ := b.sums(); settled != 1 || released+active != 0 {
				t.Errorf("%d settled, %d released, %d active; want one that is paid", settled, released, active)
			}
		})
	}
}

// TestAnsweredBeforeTheHold checks that a call that another replica answers after the second
// one has looked for the answer, and before it holds credits, is not made again.
func TestAnsweredBeforeTheHold(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := answering(t, func(n int64, out raw, _ *http.Request) {
		if n == 1 {
			close(begun)
			<-goOn
		}
		out.events(chunkText("fine"), chunkStop, chunkDone)
	})
	one, two, b := replicas(t, s.url)
	asked, answered := make(chan struct{}), make(chan struct{})
	var holds atomic.Int32
	b.mu.Lock()
	b.arrive = func(api.Hold) {
		if holds.Add(1) == 2 {
			close(asked)
			<-answered
		}
	}
	b.mu.Unlock()
	type result struct {
		status int
		body   string
	}
	call := func(w *apptest.World) <-chan result {
		done := make(chan result, 1)
		go func() {
			status, body := post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "Anima-Agent", "lucky", "Idempotency-Key", "both")
			done <- result{status, body}
		}()
		return done
	}
	first := call(one)
	<-begun
	second := call(two)
	<-asked
	close(goOn)
	want := <-first
	close(answered)
	if got := <-second; got != want || got.status != http.StatusOK {
		t.Errorf("got %+v and %+v, want the same answer", want, got)
	}
	if settled, released, active, _ := b.sums(); s.calls.Load() != 1 || settled != 1 || released+active != 0 {
		t.Errorf("%d calls, %d settled, %d released, %d active; want one that is paid", s.calls.Load(), settled, released, active)
	}
}

// TestLostAttemptIsSwept checks that the hold of a lost attempt whose call is not repeated
// is paid whole to its provider, and has a row, and that other active holds are kept.
func TestLostAttemptIsSwept(t *testing.T) {
	t.Parallel()
	b := newBooks()
	settled := make(chan api.Settle, 8)
	b.refusing(func(m api.Message) error {
		if s, ok := m.(api.Settle); ok {
			settled <- s
		}
		return nil
	})
	made := func(id, category, payee string, age time.Duration) {
		b.holds[id] = &api.HoldState{
			ID: id, Agent: "lucky", Status: api.HoldActive, Amount: 700, Category: category, Turn: "r.1", Payee: payee,
			ExpiresAt: time.Now().Add(10*time.Minute - age).UnixMicro(),
		}
	}
	made("lost/call/0", api.CategoryInference, "provider:openai", 4*time.Minute)
	made("lost/call/1.2", api.CategoryInference, "", 4*time.Minute)
	made("young/0", api.CategoryInference, "provider:openai", time.Minute)
	made("transfer", "transfer", "", 4*time.Minute)
	for i := range 250 { // more than a list has, and older
		made(fmt.Sprint("payment", i), api.CategoryX402, "", 9*time.Minute)
	}
	w := paidBy(t, b, answersAtOnce(t).url, nil)
	got := map[string]string{}
	for range 2 {
		select {
		case s := <-settled:
			if got[s.ID] = s.Payee; s.Amount != 700 {
				t.Errorf("%s: settled with %s, want the whole hold", s.ID, s.Amount)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("settled are %v, want the two lost holds", got)
		}
	}
	if got["lost/call/0"] != "provider:openai" || got["lost/call/1.2"] != "provider:unknown" {
		t.Errorf("settled are %v, want the two lost holds", got)
	}
	// Repeated, the call costs also what was lost.
	c, _, err := ask(t, w.Bus, request("lost/call", "hello"))
	if err != nil || c.Text != "fine" || c.Cost <= 1400 {
		t.Errorf("got %+v, %v; want an answer whose cost has the lost attempts", c, err)
	}
	for _, id := range []string{"young/0", "transfer"} {
		if h := holdOf(t, b, id); h.Status != api.HoldActive {
			t.Errorf("%s is %s, want it active", id, h.Status)
		}
	}
}

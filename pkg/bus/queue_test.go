package bus_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	waitfor "github.com/anima-run/anima/pkg/wait"
)

// waiting is a service whose handler blocks until release is called, and that has one
// worker and a queue.
type waiting struct {
	route   bus.Route
	subject string
	call    func(ctx context.Context, b *bus.Bus, id string) error
	begun   chan string // ids of the requests, when their handler begins
	release func()      // ends all handlers
}

// newWaiting returns a service without a route, and what its handler calls.
func newWaiting() (w waiting, handle func(id string)) {
	open := make(chan struct{})
	begun := make(chan string, 1000)
	return waiting{begun: begun, release: sync.OnceFunc(func() { close(open) })}, func(id string) { begun <- id; <-open }
}

func waitingReply(queue bus.Queue) waiting {
	w, handle := newWaiting()
	w.subject = api.GetAgent{}.Subject().String()
	w.route = bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) {
		handle(r.Agent)
		return api.Agent{ID: r.Agent}, nil
	}, bus.Workers(1), queue)
	w.call = func(ctx context.Context, b *bus.Bus, id string) error { _, err := getAgent(ctx, b, id); return err }
	return w
}

func waitingStream(queue bus.Queue) waiting {
	w, handle := newWaiting()
	w.subject = api.Complete{}.Subject().String()
	w.route = bus.Stream(func(_ context.Context, r api.Complete, _ func(api.Delta) error) (api.Completion, error) {
		handle(r.ID)
		return api.Completion{Text: r.ID}, nil
	}, queue, bus.Workers(1))
	w.call = func(ctx context.Context, b *bus.Bus, id string) error { _, err := ask(ctx, b, id, nil); return err }
	return w
}

// eachKind runs f with a plain and with a streamed request.
func eachKind(t *testing.T, queue bus.Queue, f func(t *testing.T, w waiting)) {
	t.Helper()
	for name, kind := range map[string]func(bus.Queue) waiting{"plain": waitingReply, "streamed": waitingStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := kind(queue)
			defer w.release()
			f(t, w)
		})
	}
}

// TestQueue checks that a request takes a place in the queue of a busy replica only after
// several tries, and is refused if the queue is full.
func TestQueue(t *testing.T) {
	t.Parallel()
	eachKind(t, 1, func(t *testing.T, w waiting) {
		b, s := one(t)
		serve(t, b, patience, w.route)
		caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
		done := make(chan error, 2)
		call := func(id string) { done <- w.call(testContext(t), caller, id) }
		go call("first")
		wait(t, w.begun, "the first request")
		nc := connect(t, s).NATS()
		requests, err := nc.SubscribeSync(w.subject)
		if err == nil {
			err = nc.FlushWithContext(testContext(t))
		}
		if err != nil {
			t.Fatal(err)
		}
		go call("second")
		if got := wait(t, w.begun, "the second request"); got != "second" {
			t.Fatalf("%q began, want the second request", got)
		}
		var marks []bool
		for len(marks) == 0 || !marks[len(marks)-1] {
			m, err := requests.NextMsg(patience)
			if err != nil {
				t.Fatal(err)
			}
			marks = append(marks, m.Header.Get("Anima-Tried") != "")
		}
		if want := []bool{false, false, false, false, false, true}; !slices.Equal(marks, want) {
			t.Errorf("the tries were marked %v, want %v", marks, want)
		}
		wantBusy(t, func(ctx context.Context) error { return w.call(ctx, caller, "third") })
		m := nats.NewMsg(w.subject)
		m.Data = []byte(`{}`)
		m.Header.Set("Anima-Tried", "1")
		if m, err = nc.RequestMsgWithContext(testContext(t), m); err != nil || m.Header.Get("Anima-Refused") == "" {
			t.Errorf("a marked request with a full queue: got %v, %v, want a refusal", m, err)
		}
		w.release()
		for range 2 {
			if err := wait(t, done, "an answer"); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestQueueOfABusyReplica checks that requests do not wait at a replica whose worker is
// busy while another replica has a free one. A request waits there only if NATS chooses
// the busy replica for all its first tries.
func TestQueueOfABusyReplica(t *testing.T) {
	t.Parallel()
	const callers = 64
	eachKind(t, callers, func(t *testing.T, w waiting) {
		b, s := one(t)
		serve(t, b, patience, w.route)
		caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
		var all sync.WaitGroup
		call := func(id string) {
			if err := w.call(testContext(t), caller, id); err != nil {
				t.Errorf("request %s: %v", id, err)
			}
		}
		all.Go(func() { call("first") })
		wait(t, w.begun, "the first request")
		var quick atomic.Int64
		replica := newBus(t, connect(t, s), bus.Options{Service: "loop", Instance: "free"})
		serve(t, replica, patience, bus.Routes(
			bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) {
				quick.Add(1)
				return api.Agent{ID: r.Agent}, nil
			}, bus.Workers(callers)),
			bus.Stream(func(_ context.Context, r api.Complete, _ func(api.Delta) error) (api.Completion, error) {
				quick.Add(1)
				return api.Completion{Text: r.ID}, nil
			}, bus.Workers(callers)),
		))
		ended := make(chan struct{}, callers)
		for i := range callers {
			all.Go(func() { call(fmt.Sprint(i)); ended <- struct{}{} })
		}
		most := callers * 3 / 4 // 62 are expected; if requests waited at once, half of them
		for i := range most {
			wait(t, ended, fmt.Sprintf("answer %d of %d", i+1, most))
		}
		if n := quick.Load(); n < int64(most) {
			t.Errorf("the free replica has handled %d requests, want at least %d", n, most)
		}
		w.release()
		all.Wait()
	})
}

// BenchmarkQueue makes calls of half a second at five replicas with eight slots each, with
// as many callers as slots and with twice as many. Calls that find no slot wait in the
// handler, at once or when no replica took them in several tries. It prints the share of
// the largest possible rate.
func BenchmarkQueue(b *testing.B) {
	const replicas, slots, took = 5, 8, 500 * time.Millisecond
	for name, limits := range map[string][]bus.Limit{
		"at once":     {bus.Workers(slots + 512)},
		"after tries": {bus.Workers(slots), bus.Queue(512)},
	} {
		for _, callers := range []int{replicas * slots, 2 * replicas * slots} {
			b.Run(fmt.Sprintf("%s/callers=%d", name, callers), func(b *testing.B) {
				s := startServer(b)
				for i := range replicas {
					free := make(chan struct{}, slots)
					serve(b, newBus(b, connect(b, s), bus.Options{Instance: fmt.Sprint(i)}), patience, bus.Stream(func(ctx context.Context, _ api.Complete, _ func(api.Delta) error) (api.Completion, error) {
						free <- struct{}{}
						defer func() { <-free }()
						return api.Completion{}, waitfor.For(ctx, took)
					}, limits...))
				}
				caller := newBus(b, connect(b, s), bus.Options{Service: "caller"})
				var all sync.WaitGroup
				var next atomic.Int64
				b.ResetTimer()
				began := time.Now()
				for range callers {
					all.Go(func() {
						for next.Add(1) <= int64(b.N) {
							if _, err := ask(b.Context(), caller, "x", nil); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N)*took.Seconds()/time.Since(began).Seconds()/(replicas*slots), "x-linear")
			})
		}
	}
}

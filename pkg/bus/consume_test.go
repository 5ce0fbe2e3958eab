package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

func publish(t testing.TB, b *bus.Bus, ms ...api.AgentChanged) {
	t.Helper()
	for _, m := range ms {
		if err := b.Publish(testContext(t), fmt.Sprintf("%s/%d", m.Agent, m.Seq), m); err != nil {
			t.Fatal(err)
		}
	}
}

func enqueue(t testing.TB, b *bus.Bus, session, run string) {
	t.Helper()
	if err := b.Publish(testContext(t), session+"/"+run, api.Run{Run: run, Session: session}); err != nil {
		t.Fatal(err)
	}
}

func TestOnSettles(t *testing.T) {
	t.Parallel()
	errBug := errors.New("a bug")
	for name, c := range map[string]struct {
		first     error
		max       int
		want      int           // deliveries
		afterward time.Duration // minimum delay between the first two
	}{
		"nil is done":                        {first: nil, want: 1},
		"invalid is hopeless":                {first: api.Errorf(api.Invalid, "no"), want: 1},
		"denied is hopeless":                 {first: api.Errorf(api.Denied, "no"), want: 1},
		"wrapped denied too":                 {first: fmt.Errorf("deep: %w", api.Errorf(api.Denied, "no")), want: 1},
		"conflict comes back":                {first: api.Errorf(api.Conflict, "moved"), want: 2, afterward: 100 * time.Millisecond},
		"not found comes back":               {first: api.Errorf(api.NotFound, "not yet"), want: 2, afterward: 100 * time.Millisecond},
		"unavailable comes back":             {first: api.Errorf(api.Unavailable, "away"), want: 2, afterward: 100 * time.Millisecond},
		"a foreign error comes back":         {first: errBug, want: 2, afterward: 100 * time.Millisecond},
		"RetryAfter is honoured":             {first: &api.Error{Code: api.Unavailable, RetryAfter: 700}, want: 2, afterward: 700 * time.Millisecond},
		"the last delivery is given up":      {first: errBug, max: 1, want: 1},
		"a conflict can be given up as well": {first: api.Errorf(api.Conflict, "moved"), max: 1, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, s := one(t)
			ctx := testContext(t)
			type delivery struct {
				bus.Meta
				at time.Time
			}
			got := make(chan delivery, 10)
			serve(t, b, patience, bus.On(func(ctx context.Context, r api.Run) error {
				m := bus.MetaOf(ctx)
				got <- delivery{m, time.Now()}
				if m.Delivered == 1 {
					return c.first
				}
				return nil
			}, bus.ConsumerOptions{MaxDeliver: c.max}))
			enqueue(t, b, "s", "r")
			var all []delivery
			for n := range c.want {
				d := wait(t, got, "a delivery")
				if d.Delivered != n+1 || d.ID != "s/r" || d.Key != "s" || d.Sequence != 1 {
					t.Errorf("delivery %+v, want number %d of s/r", d, n+1)
				}
				all = append(all, d)
			}
			if c.want > 1 {
				if after := all[1].at.Sub(all[0].at); after < c.afterward {
					t.Errorf("came back after %v, want at least %v", after, c.afterward)
				}
			}
			// Acknowledged or terminated, the message is removed from the queue.
			js := raw(t, s)
			for messages(t, js, "LOOP_CMD") > 0 {
				if ctx.Err() != nil {
					t.Fatal("the message stays in the queue")
				}
			}
			if len(got) > 0 {
				t.Errorf("one delivery too many: %+v", <-got)
			}
		})
	}
}

func TestOnGivesUpAfterMaxDeliver(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	advisory := advisories(t, s)
	var seen atomic.Int64
	serve(t, b, patience, bus.On(func(context.Context, api.Run) error {
		seen.Add(1)
		return &api.Error{Code: api.Internal, Message: "again and again", RetryAfter: 1}
	}, bus.ConsumerOptions{MaxDeliver: 3}))
	enqueue(t, b, "s", "r")
	wait(t, advisory, "the end of the message")
	if seen.Load() != 3 {
		t.Errorf("%d deliveries, want 3", seen.Load())
	}
}

// advisories returns the server's advisories about terminated messages, with the reason.
func advisories(t *testing.T, s *server.Server) <-chan string {
	t.Helper()
	c := make(chan string, 16)
	nc := connect(t, s).NATS()
	sub, err := nc.Subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>", func(m *nats.Msg) { c <- string(m.Data) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := nc.FlushWithContext(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOnTerminatesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	advisory := advisories(t, s)
	handled := make(chan string, 1)
	serve(t, b, patience, bus.On(func(_ context.Context, r api.Run) error { handled <- r.Run; return nil }))
	if _, err := raw(t, s).Publish(testContext(t), api.Run{Session: "s"}.Subject().String(), []byte("not JSON")); err != nil {
		t.Fatal(err)
	}
	wait(t, advisory, "the end of the unreadable message")
	enqueue(t, b, "s", "r")
	if got := wait(t, handled, "the message behind it"); got != "r" {
		t.Errorf("handled %q, want r", got)
	}
}

func TestOnKeepsForeignTextToItself(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	advisory := advisories(t, s)
	serve(t, b, patience, bus.On(func(context.Context, api.Run) error { panic("password hunter2") }, bus.ConsumerOptions{MaxDeliver: 1}))
	enqueue(t, b, "s", "r")
	if got := wait(t, advisory, "the end of the message"); strings.Contains(got, "hunter2") {
		t.Errorf("the advisory tells %s", got)
	}
}

func TestPanicIsAnErrorOfItsMessage(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	got := make(chan string, 10)
	serve(t, b, patience,
		bus.On(func(ctx context.Context, r api.Run) error {
			if bus.MetaOf(ctx).Delivered == 1 && r.Run == "bad" {
				panic("oh")
			}
			got <- r.Run
			return nil
		}),
		bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) { panic("oh") }),
	)
	enqueue(t, b, "s", "bad")
	enqueue(t, b, "s", "good")
	seen := []string{wait(t, got, "a message"), wait(t, got, "a message")}
	slices.Sort(seen)
	if diff := cmp.Diff([]string{"bad", "good"}, seen); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
	_, err := bus.Call[api.Agent](testContext(t), b, api.GetAgent{})
	wantCode(t, err, api.Internal, "")
	if strings.Contains(err.Error(), "oh") {
		t.Errorf("the panic crossed the wire: %v", err)
	}
}

func TestOneAtATimeInOrder(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	const n = 200
	for i := range int64(n) {
		publish(t, b, changed([]string{"a", "b", "c"}[i%3], i))
	}
	var inHand atomic.Int64
	got := make(chan int64, n)
	serve(t, b, patience, bus.On(func(_ context.Context, m api.AgentChanged) error {
		if inHand.Add(1) != 1 {
			t.Error("two at a time")
		}
		got <- m.Seq
		inHand.Add(-1)
		return nil
	}))
	for i := range int64(n) {
		if seq := wait(t, got, "a message"); seq != i {
			t.Fatalf("got %d, want %d", seq, i)
		}
	}
}

func TestInOrderPerKey(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	const keys, each = 6, 9
	for n := range each {
		for k := range keys {
			enqueue(t, b, fmt.Sprint("s", k), fmt.Sprint(n))
		}
	}
	var mu sync.Mutex
	busy, got, done := map[string]bool{}, map[string][]string{}, make(chan struct{}, keys*each)
	together := make(chan struct{}, keys)
	serve(t, b, patience, bus.On(func(ctx context.Context, r api.Run) error {
		mu.Lock()
		if busy[r.Session] {
			t.Errorf("two messages of %s at a time", r.Session)
		}
		busy[r.Session] = true
		got[r.Session] = append(got[r.Session], r.Run)
		first := len(got[r.Session]) == 1
		mu.Unlock()
		if first { // all keys must reach this point at the same time
			together <- struct{}{}
			for len(together) < keys {
				if pause(ctx) != nil {
					return ctx.Err()
				}
			}
		}
		mu.Lock()
		busy[r.Session] = false
		mu.Unlock()
		done <- struct{}{}
		return nil
	}, bus.ConsumerOptions{Workers: keys, InOrder: true}))
	for range keys * each {
		wait(t, done, "a message")
	}
	for k, order := range got {
		if !slices.IsSorted(order) || len(order) != each {
			t.Errorf("%s: %v", k, order)
		}
	}
}

// pause waits 1 ms, for conditions that have no event.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond):
		return nil
	}
}

func TestAFullKeyLeavesWorkersToOthers(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	release, other := make(chan struct{}), make(chan struct{})
	done := make(chan string, 20)
	serve(t, b, patience, bus.On(func(ctx context.Context, r api.Run) error {
		switch r.Session {
		case "slow":
			select {
			case <-release:
			case <-ctx.Done():
			}
		case "other":
			close(other)
		}
		done <- r.Session
		return nil
	}, bus.ConsumerOptions{Workers: 2, InOrder: true}))
	for n := range api.QueueDepth {
		enqueue(t, b, "slow", fmt.Sprint(n))
	}
	enqueue(t, b, "other", "r")
	wait(t, other, "the message of another key")
	close(release)
	for range api.QueueDepth + 1 {
		wait(t, done, "a message")
	}
}

// TestLongWorkIsKept checks that held messages are not redelivered after AckWait: those
// being handled and those queued behind them.
func TestLongWorkIsKept(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]bus.ConsumerOptions{
		"one at a time": {},
		"by key":        {Workers: 4, InOrder: true},
		"in parallel":   {Workers: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, s := one(t)
			how.AckWait = 800 * time.Millisecond
			got := make(chan bus.Meta, 50)
			handle := func(ctx context.Context, r api.Run) error {
				got <- bus.MetaOf(ctx)
				if r.Run == "0" {
					select {
					case <-time.After(2*how.AckWait + how.AckWait/2):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			}
			for n := range 8 {
				enqueue(t, b, "s", fmt.Sprint(n))
			}
			serve(t, b, patience, bus.On(handle, how))
			first := wait(t, got, "the first message")
			// Another replica would receive messages that are redelivered.
			serve(t, newBus(t, connect(t, s), bus.Options{}), patience, bus.On(handle, how))
			for seen := map[uint64]bool{first.Sequence: true}; len(seen) < 8; {
				m := wait(t, got, "a message")
				if m.Delivered != 1 || seen[m.Sequence] {
					t.Errorf("message %d was delivered again (delivery %d)", m.Sequence, m.Delivered)
				}
				seen[m.Sequence] = true
			}
			js := raw(t, s)
			for messages(t, js, "LOOP_CMD") > 0 {
				if pause(testContext(t)) != nil {
					t.Fatal("messages stay")
				}
			}
			if len(got) > 0 {
				t.Errorf("delivered again: %+v", <-got)
			}
		})
	}
}

func TestAnotherReplicaTakesOverFromADeadOne(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	how := bus.ConsumerOptions{AckWait: 300 * time.Millisecond}
	ncA := connect(t, s)
	a := newBus(t, ncA, bus.Options{})
	began, over := make(chan struct{}), make(chan struct{})
	serving := serve(t, a, patience, bus.On(func(context.Context, api.Run) error {
		close(began)
		<-over
		return nil
	}, how))
	enqueue(t, a, "s", "r")
	wait(t, began, "the first delivery")
	got := make(chan bus.Meta, 1)
	serve(t, newBus(t, connect(t, s), bus.Options{}), patience, bus.On(func(ctx context.Context, _ api.Run) error {
		got <- bus.MetaOf(ctx)
		return nil
	}, how))
	ncA.Close() // simulates a crash of the process
	if m := wait(t, got, "the second delivery"); m.Delivered != 2 || m.ID != "s/r" {
		t.Errorf("delivered %+v, want the second of s/r", m)
	}
	close(over)
	if err := serving.wait(); err == nil {
		t.Error("Serve on a closed connection ended without an error")
	}
}

// TestStoppingHandsBackAtOnce checks that a replica that stops returns its messages at
// once instead of after AckWait.
func TestStoppingHandsBackAtOnce(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]bus.ConsumerOptions{
		"one at a time": {},
		"by key":        {Workers: 2, InOrder: true},
		"in parallel":   {Workers: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t)
			a, b := newBus(t, connect(t, s), bus.Options{}), newBus(t, connect(t, s), bus.Options{})
			began, finish := make(chan string, 20), make(chan struct{})
			stopping := serve(t, a, patience, bus.On(func(_ context.Context, r api.Run) error {
				began <- r.Run
				<-finish
				return nil
			}, how))
			const n = 9
			for i := range n {
				enqueue(t, a, "s", fmt.Sprint(i))
			}
			mine := 1
			if how.Workers > 1 && !how.InOrder {
				mine = 2
			}
			for range mine {
				wait(t, began, "a message")
			}
			c, err := raw(t, s).Consumer(testContext(t), "LOOP_CMD", "loop-run")
			if err != nil {
				t.Fatal(err)
			}
			taken := n // those queued in a lane are held, too
			if mine == 2 {
				taken = mine
			}
			for i, err := c.Info(testContext(t)); err != nil || i.NumAckPending != taken; i, err = c.Info(testContext(t)) {
				if err := pause(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			stopping.cancel()
			got := make(chan string, 20)
			serve(t, b, patience, bus.On(func(_ context.Context, r api.Run) error { got <- r.Run; return nil }, how))
			for range n - mine {
				wait(t, got, "a message that the first replica had not begun")
			}
			close(finish)
			if err := stopping.wait(); err != nil {
				t.Errorf("Serve: %v", err)
			}
			if len(began) > 0 {
				t.Errorf("%d more were begun, want %d in all", len(began), mine)
			}
		})
	}
}

func TestServeEndsAfterWhatIsInHand(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	began, finish := make(chan struct{}, 2), make(chan struct{})
	work := func(ctx context.Context) error {
		began <- struct{}{}
		<-finish
		return ctx.Err()
	}
	serving := serve(t, b, patience,
		bus.On(func(ctx context.Context, _ api.Run) error { return work(ctx) }),
		bus.Reply(func(ctx context.Context, _ api.GetAgent) (api.Agent, error) { return api.Agent{ID: "lucky"}, work(ctx) }),
	)
	enqueue(t, b, "s", "r")
	answers := make(chan error, 1)
	caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
	go func() {
		_, err := bus.Call[api.Agent](testContext(t), caller, api.GetAgent{})
		answers <- err
	}()
	wait(t, began, "the command")
	wait(t, began, "the request")
	serving.cancel()
	quiet(t, serving.done, 100*time.Millisecond, "Serve ended with work in hand")
	close(finish)
	if err := serving.wait(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := wait(t, answers, "the answer"); err != nil {
		t.Errorf("the request in hand: %v", err)
	}
	// Acknowledgements have no answer: the server may not have processed them yet.
	js, ctx := raw(t, s), testContext(t)
	for got := messages(t, js, "LOOP_CMD"); got != 0; got = messages(t, js, "LOOP_CMD") {
		if ctx.Err() != nil {
			t.Fatalf("%d messages not settled", got)
		}
	}
}

func TestDrainTimeCancelsAndHandsBack(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	began := make(chan struct{})
	// MaxDeliver 1: an interrupted delivery is not a failure.
	how := bus.ConsumerOptions{MaxDeliver: 1}
	serving := serve(t, b, time.Millisecond, bus.On(func(ctx context.Context, _ api.Run) error {
		close(began)
		<-ctx.Done()
		return fmt.Errorf("cut: %w", ctx.Err())
	}, how))
	enqueue(t, b, "s", "r")
	wait(t, began, "the message")
	if err := serving.stop(); err != nil {
		t.Errorf("Serve: %v", err)
	}
	again := make(chan int, 1)
	serve(t, newBus(t, connect(t, s), bus.Options{}), patience, bus.On(func(ctx context.Context, _ api.Run) error {
		again <- bus.MetaOf(ctx).Delivered
		return nil
	}, how))
	if n := wait(t, again, "the message that was cut off"); n != 2 {
		t.Errorf("delivery %d, want 2", n)
	}
}

// TestPoisonIsGivenUp checks that a message that crashes every process that handles it is
// terminated, although no delivery was settled.
func TestPoisonIsGivenUp(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	advisory := advisories(t, s)
	how := bus.ConsumerOptions{MaxDeliver: 2}
	makesDurable := serve(t, b, patience, bus.On(func(context.Context, api.Run) error { return nil }, how))
	if err := makesDurable.stop(); err != nil {
		t.Fatal(err)
	}
	enqueue(t, b, "s", "r")
	c, err := raw(t, s).Consumer(testContext(t), "LOOP_CMD", "loop-run")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * how.MaxDeliver {
		m, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	handled := make(chan string, 2)
	serve(t, b, patience, bus.On(func(_ context.Context, r api.Run) error { handled <- r.Run; return nil }, how))
	wait(t, advisory, "the end of the poison")
	enqueue(t, b, "s", "next")
	if got := wait(t, handled, "the next message"); got != "next" {
		t.Errorf("handled %q, want next", got)
	}
}

func TestOnOutlivesItsDurable(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	got := make(chan string, 2)
	serve(t, b, patience, bus.On(func(_ context.Context, r api.Run) error { got <- r.Run; return nil }))
	enqueue(t, b, "s", "1")
	wait(t, got, "the first message")
	for js := raw(t, s); messages(t, js, "LOOP_CMD") > 0; { // its acknowledgement must be processed before the durable is deleted
	}
	if err := raw(t, s).DeleteConsumer(testContext(t), "LOOP_CMD", "loop-run"); err != nil {
		t.Fatal(err)
	}
	enqueue(t, b, "s", "2")
	if r := wait(t, got, "the message after the durable was deleted"); r != "2" {
		t.Errorf("handled %q, want 2", r)
	}
}

func TestOnOutlivesARestart(t *testing.T) {
	t.Parallel()
	o := listening(t)
	o.start()
	b := o.bus()
	got := make(chan string, 2)
	serve(t, b, patience, bus.On(func(_ context.Context, r api.Run) error { got <- r.Run; return nil }))
	enqueue(t, b, "s", "1")
	wait(t, got, "the first message")
	o.stop()
	o.start()
	enqueue(t, b, "s", "2")
	if r := wait(t, got, "the message after the restart"); r != "2" {
		t.Errorf("handled %q, want 2", r)
	}
}

func TestReplicasShareAndReadersDoNot(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	other := newBus(t, connect(t, s), bus.Options{Service: "social"})
	got := make(chan string, 100)
	on := func(reader string) bus.Route {
		return bus.On(func(_ context.Context, m api.AgentChanged) error { got <- reader; return nil })
	}
	serve(t, b, patience, on("loop"))
	serve(t, newBus(t, connect(t, s), bus.Options{}), patience, on("loop"))
	serve(t, other, patience, on("social"))
	for n := range int64(20) {
		publish(t, b, changed("lucky", n))
	}
	count := map[string]int{}
	for range 40 {
		count[wait(t, got, "a message")]++
	}
	if diff := cmp.Diff(map[string]int{"loop": 20, "social": 20}, count); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
}

func TestAFailedRouteStopsTheOthers(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	want := errors.New("no such route")
	ended := make(chan struct{})
	err := b.Serve(testContext(t), patience, func() { t.Error("ready") },
		bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) { return api.Agent{}, nil }),
		bus.Go(func(ctx context.Context) error { <-ctx.Done(); close(ended); return nil }),
		bus.Failing(want),
	)
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	wait(t, ended, "the task of another route")
	wantNobody(t, b)
}

func TestATaskThatFailsTakesTheServiceDown(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	want := errors.New("cannot go on")
	fail := make(chan struct{})
	serving := serve(t, b, patience,
		bus.Go(func(context.Context) error { <-fail; return want }),
		bus.Go(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }),
		bus.Go(func(context.Context) error { return nil }),
	)
	close(fail)
	if err := serving.wait(); !errors.Is(err, want) {
		t.Errorf("Serve: %v, want %v", err, want)
	}
}

func TestTheConsumerIsAsAsked(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	serve(t, b, patience, bus.On(func(context.Context, api.Run) error { return nil }, bus.ConsumerOptions{Workers: 2000, AckWait: time.Minute}))
	c, err := raw(t, s).Consumer(testContext(t), "LOOP_CMD", "loop-run")
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.CachedInfo().Config
	if cfg.AckWait != time.Minute || cfg.MaxAckPending != 2000 || cfg.AckPolicy != jetstream.AckExplicitPolicy || cfg.MaxDeliver != -1 {
		t.Errorf("consumer %+v", cfg)
	}
}

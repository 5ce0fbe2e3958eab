package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats/clustertest"
)

func behind(t *testing.T, s *server.Server, stream string, times int) (left func() int) {
	t.Helper()
	left, stop, err := clustertest.Behind(s, stream, times)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return left
}

// TestAppendIsFoundBehindALeader repeats an append whose answer was lost. A leader that
// is behind does not show the first one; this must not be taken for another writer.
func TestAppendIsFoundBehindALeader(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	m := api.Journal{Session: "s", Run: "r", Turn: 1, Kind: "begin", Epoch: 7}
	first, err := b.Append(testContext(t), "journal/r/7/0", m, 0)
	if err != nil {
		t.Fatal(err)
	}
	left := behind(t, s, m.Subject().Stream(), 2)
	again, err := b.Append(testContext(t), "journal/r/7/0", m, 0)
	if err != nil || again != first || left() != 0 {
		t.Errorf("got %d, %v with %d answers to come, want %d", again, err, left(), first)
	}
}

// TestAppendAheadOfTheStream appends after a sequence that the stream has not reached, as
// after a restore: Conflict makes the caller read again.
func TestAppendAheadOfTheStream(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	m := api.Journal{Session: "s", Run: "r", Turn: 1, Kind: "begin"}
	_, err := b.Append(testContext(t), "journal/r/0/9", m, 9)
	wantCode(t, err, api.Conflict, "")
}

// TestCreateBehindALeader creates a key that another Bucket has deleted, while a leader
// that is behind does not show the delete marker.
func TestCreateBehindALeader(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	lock := func() *bus.Bucket[api.Lock] {
		k, err := bus.OpenBucket[api.Lock](testContext(t), b)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	one, other := lock(), lock()
	rev, err := one.Create(testContext(t), api.LockKey("s"), api.Lock{Run: "r"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Delete(testContext(t), api.LockKey("s"), rev); err != nil {
		t.Fatal(err)
	}
	left := behind(t, s, "KV_"+api.Coordination, 2)
	next, err := other.Create(testContext(t), api.LockKey("s"), api.Lock{Run: "r2"}, time.Minute)
	if err != nil || next <= rev || left() != 0 {
		t.Errorf("got %d, %v with %d answers to come, want a revision after %d", next, err, left(), rev)
	}
}

// hanging returns a route whose handler calls hang on the first delivery of a message,
// and the delivery numbers that it receives.
func hanging(patience time.Duration, hang func(context.Context) error) (bus.Route, <-chan int) {
	got := make(chan int, 10)
	return bus.On(func(ctx context.Context, _ api.Run) error {
		n := bus.MetaOf(ctx).Delivered
		got <- n
		if n == 1 {
			return hang(ctx)
		}
		return nil
	}, bus.ConsumerOptions{Workers: 4, AckWait: 600 * time.Millisecond, MaxDeliver: -1, InOrder: true, StallTimeout: patience}), got
}

// TestHandlerHangs checks that a handler without progress is cancelled and its message
// redelivered.
func TestHandlerHangs(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ended := make(chan error, 1)
	route, got := hanging(300*time.Millisecond, func(ctx context.Context) error {
		bus.InProgress(ctx)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return context.Cause(ctx)
	})
	serve(t, b, 0, route)
	enqueue(t, b, "s", "r")
	if n := wait(t, got, "the message"); n != 1 {
		t.Fatalf("delivery %d first", n)
	}
	if err := wait(t, ended, "the end of its context"); api.CodeOf(err) != api.Unavailable || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("its context ended with %v, want that it made no progress", err)
	}
	if n := wait(t, got, "the message again"); n != 2 {
		t.Errorf("delivery %d, want 2", n)
	}
}

// TestHandlerIgnoresItsContext checks that the message of a handler without progress is
// redelivered elsewhere although the handler ignores the end of its context.
func TestHandlerIgnoresItsContext(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	over := make(chan struct{})
	route, got := hanging(300*time.Millisecond, func(context.Context) error { <-over; return errors.New("it went on") })
	serve(t, b, 0, route)
	enqueue(t, b, "s", "r")
	wait(t, got, "the message")
	other, again := hanging(300*time.Millisecond, func(context.Context) error { return nil })
	serve(t, newBus(t, connect(t, s), bus.Options{}), 0, other)
	select {
	case <-again:
	case <-got: // impossible: the lane of the first handler is occupied
		t.Error("the replica that hangs handles the message again")
	case <-time.After(patience):
		t.Error("the message stays where it hangs")
	}
	close(over)
}

// TestHandlerWaits checks that a handler is not cancelled during Within, but afterwards.
func TestHandlerWaits(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ended := make(chan error, 2)
	route, got := hanging(100*time.Millisecond, func(ctx context.Context) error {
		done := bus.Within(ctx, time.Hour)
		long := time.NewTimer(1500 * time.Millisecond) // several ticks of keepAlive
		defer long.Stop()
		select {
		case <-ctx.Done():
			ended <- context.Cause(ctx)
		case <-long.C:
			ended <- nil
		}
		done()
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	})
	serve(t, b, 0, route)
	enqueue(t, b, "s", "r")
	if n := wait(t, got, "the message"); n != 1 {
		t.Fatalf("delivery %d first", n)
	}
	if err := wait(t, ended, "the end of its wait"); err != nil {
		t.Errorf("while it waited its context ended: %v", err)
	}
	if err := wait(t, ended, "the end of its context"); api.CodeOf(err) != api.Unavailable {
		t.Errorf("after its wait: %v, want that it made no progress", err)
	}
}

// TestPostIsRepeated checks that a posted event that did not reach the stream, as after a
// crash of the server, is stored when Wait returns.
func TestPostIsRepeated(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	m := changed("lucky", 1)
	stop, err := clustertest.Swallow(s, m.Subject().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	p := b.Async()
	if err := p.Publish(testContext(t), "event", m); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(testContext(t)); err != nil {
		t.Errorf("got %v, want that it is published again", err)
	}
	if _, err := b.Last(testContext(t), m.Subject()); err != nil {
		t.Errorf("the event: %v", err)
	}
}

// TestMaxPause checks that MaxPause limits the delay of every redelivery.
func TestMaxPause(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	again := make(chan int, 20)
	serve(t, b, 0, bus.On(func(ctx context.Context, _ api.Run) error {
		n := bus.MetaOf(ctx).Delivered
		again <- n
		if n < 12 {
			return errors.New("a bug")
		}
		return nil
	}, bus.ConsumerOptions{MaxDeliver: -1, MaxPause: 20 * time.Millisecond}))
	enqueue(t, b, "s", "r")
	for want := 1; want <= 12; want++ {
		if n := wait(t, again, "the message"); n != want {
			t.Fatalf("delivery %d, want %d", n, want)
		}
	}
}

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

// The answer to an append was lost, and it is made again. A leader that is behind does
// not show what was written, and that is no sign of another writer.
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

// A caller that is ahead of its stream, as after a restore, is told to read again.
func TestAppendAheadOfTheStream(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	m := api.Journal{Session: "s", Run: "r", Turn: 1, Kind: "begin"}
	_, err := b.Append(testContext(t), "journal/r/0/9", m, 9)
	wantCode(t, err, api.Conflict, "")
}

// A key that was deleted elsewhere leaves a marker, which a leader behind does not show.
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

// hanging is a route that hangs the first time it gets a message, in the given way,
// and what it sees.
func hanging(patience time.Duration, hang func(context.Context) error) (bus.Route, <-chan int) {
	got := make(chan int, 10)
	return bus.On(func(ctx context.Context, _ api.Run) error {
		n := bus.MetaOf(ctx).Delivered
		got <- n
		if n == 1 {
			return hang(ctx)
		}
		return nil
	}, bus.Consuming{Workers: 4, AckWait: 600 * time.Millisecond, MaxDeliver: -1, InOrder: true, Patience: patience}), got
}

// A handler that makes no progress loses its context and its message.
func TestHandlerHangs(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ended := make(chan error, 1)
	route, got := hanging(300*time.Millisecond, func(ctx context.Context) error {
		bus.Working(ctx)
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

// A handler that ignores the end of its context loses the message all the same.
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
	case <-got: // the lane of the first is busy, so this cannot be
		t.Error("the replica that hangs handles the message again")
	case <-time.After(patience):
		t.Error("the message stays where it hangs")
	}
	close(over)
}

// A handler that says it waits keeps its message for as long, and not longer.
func TestHandlerWaits(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ended := make(chan error, 2)
	route, got := hanging(100*time.Millisecond, func(ctx context.Context) error {
		done := bus.Within(ctx, time.Hour)
		long := time.NewTimer(1500 * time.Millisecond) // several looks of the keeper
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

// A posted event that does not reach the stream, as when its server was killed, is
// stored all the same, before its poster gives up.
func TestPostIsRepeated(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	m := changed("lucky", 1)
	stop, err := clustertest.Swallow(s, m.Subject().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	p := b.Posts()
	if err := p.Post(testContext(t), "event", m); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(testContext(t)); err != nil {
		t.Errorf("got %v, want that it is published again", err)
	}
	if _, err := b.Last(testContext(t), m.Subject()); err != nil {
		t.Errorf("the event: %v", err)
	}
}

// However often a message was delivered, it comes back after the longest pause of its
// route.
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
	}, bus.Consuming{MaxDeliver: -1, MaxPause: 20 * time.Millisecond}))
	enqueue(t, b, "s", "r")
	for want := 1; want <= 12; want++ {
		if n := wait(t, again, "the message"); n != want {
			t.Fatalf("delivery %d, want %d", n, want)
		}
	}
}

package bus_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// on dials until the connection is on s.
func on(t *testing.T, s *server.Server, all []*server.Server) *bus.Conn {
	t.Helper()
	var urls []string
	for _, o := range all {
		urls = append(urls, o.ClientURL())
	}
	for {
		c, err := bus.Dial(bus.DialOptions{URL: strings.Join(urls, ","), Name: t.Name(), Log: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		if c.NATS().ConnectedServerName() == s.Name() {
			t.Cleanup(c.Close)
			return c
		}
		c.Close()
	}
}

// TestMovesBeforeItsServerLeaves checks that calls, replies, consumers, followers and
// watches continue on another server when theirs shuts down, and that no request is
// handled twice.
func TestMovesBeforeItsServerLeaves(t *testing.T) {
	t.Parallel()
	var three cluster
	servers := three.start(t)
	t.Cleanup(three.stop)
	leaving := servers[1]
	ctx := testContext(t)
	conns := []*bus.Conn{on(t, leaving, servers), on(t, leaving, servers)}
	asker := newBus(t, conns[0], bus.Options{Replicas: 3, Service: "policy"})
	worker := newBus(t, conns[1], bus.Options{Replicas: 3})

	var answered, worked, again atomic.Int64
	served := serve(t, worker, patience,
		bus.Reply(func(_ context.Context, q api.GetAgent) (api.Agent, error) {
			answered.Add(1)
			<-time.After(5 * time.Millisecond) // simulated work
			return api.Agent{ID: q.Agent}, nil
		}),
		bus.Stream(func(_ context.Context, q api.Complete, send func(api.Delta) error) (api.Completion, error) {
			for range 5 {
				if err := send(api.Delta{Content: "."}); err != nil {
					return api.Completion{}, err
				}
				<-time.After(5 * time.Millisecond) // simulated work
			}
			return api.Completion{Text: q.ID}, nil
		}),
		bus.On(func(ctx context.Context, _ api.Run) error {
			worked.Add(1)
			if bus.MetaOf(ctx).Delivered > 1 {
				again.Add(1)
			}
			<-time.After(20 * time.Millisecond) // simulated work
			return nil
		}, bus.ConsumerOptions{Workers: 4}))

	var lasting sync.WaitGroup
	until, stop := context.WithCancel(ctx)
	followed, watched := make(chan uint64, 4096), make(chan string, 64)
	lasting.Go(func() {
		err := asker.Follow(until, 0, func(s bus.Stored) error { followed <- s.Sequence; return nil }, api.AgentChanged{}.Subject().All())
		if until.Err() == nil {
			t.Error("follow:", err)
		}
	})
	bucket, err := bus.OpenBucket[api.Wake](ctx, asker)
	if err != nil {
		t.Fatal(err)
	}
	lasting.Go(func() {
		err := bucket.Watch(until, api.WakeKeys, nil, func(e bus.Entry[api.Wake]) error { watched <- e.Key; return nil })
		if until.Err() == nil {
			t.Error("watch:", err)
		}
	})

	var asked, streamed, sent atomic.Int64
	var load sync.WaitGroup
	over := make(chan struct{})
	repeat := func(f func(n int) error) {
		load.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				default:
				}
				if err := f(n); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 4 {
		repeat(func(int) error {
			asked.Add(1)
			_, err := bus.Call[api.Agent](ctx, asker, api.GetAgent{Agent: "lucky"})
			return err
		})
		repeat(func(int) error {
			streamed.Add(1)
			_, err := ask(ctx, asker, "c", func(api.Delta) error { return nil })
			return err
		})
	}
	repeat(func(n int) error {
		sent.Add(1)
		id := fmt.Sprint("m", n)
		if err := asker.Publish(ctx, id, api.Run{Run: id, Session: id}); err != nil {
			return err
		}
		return asker.Publish(ctx, "e"+id, changed("lucky", int64(n)))
	})

	gone := make(chan struct{})
	go func() { defer close(gone); leaving.LameDuckShutdown() }()
	wait(t, gone, "the server's end")
	for _, c := range conns {
		if got := c.NATS().ConnectedServerName(); got == leaving.Name() {
			t.Errorf("still on %s, which has left", got)
		}
	}
	close(over)
	load.Wait()
	if _, err := bucket.Create(ctx, api.WakeKey("lucky", "after"), api.Wake{Agent: "lucky", Cause: "after"}, 0); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, watched, "the wake"); got != api.WakeKey("lucky", "after") {
		t.Errorf("watched %s", got)
	}
	for n := uint64(1); n <= uint64(sent.Load()); n++ {
		if got := wait(t, followed, "an event"); got < n {
			t.Fatalf("followed %d after %d", got, n-1)
		}
	}
	if err := served.stop(); err != nil {
		t.Error(err)
	}
	stop()
	lasting.Wait()
	if asked.Load() < 50 || answered.Load() != asked.Load() {
		t.Errorf("%d questions were begun %d times, want each once and at least 50", asked.Load(), answered.Load())
	}
	// A new leader of a consumer may not have the last acknowledgements.
	if again.Load() > 8 {
		t.Errorf("%d of %d messages were delivered twice, want at most those in progress", again.Load(), worked.Load())
	}
	for _, c := range conns {
		if got := c.Connections(); got != 1 {
			t.Errorf("%d connections are open, want 1: nothing is under way on the first", got)
		}
	}
}

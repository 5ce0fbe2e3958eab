package lease_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/lease"
)

// replica is a process that competes for the task.
type replica struct {
	began, ended chan struct{} // receive a value at each start and end of its work
	kill         func()        // closes its connection
	stop         func()        // stops it as a signal does, and waits
	leases       *bus.Bucket[api.Lease]
}

func start(t *testing.T, server *embednats.Server, owner string, work func(context.Context) error) *replica {
	t.Helper()
	return startNoted(t, server, owner, bus.MinTTL, work, func(string) {})
}

// startNoted is start with a given TTL of the lease. It calls note when the work begins
// and ends, before any consequence of that.
func startNoted(t *testing.T, server *embednats.Server, owner string, ttl time.Duration, work func(context.Context) error, note func(string)) *replica {
	t.Helper()
	leases, kill := open[api.Lease](t, server, owner)
	r := &replica{began: make(chan struct{}, 100), ended: make(chan struct{}, 100), kill: kill, leases: leases}
	l := newLease(t, leases, owner, ttl)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx, func(ctx context.Context) error {
			note(owner + " begins")
			r.began <- struct{}{}
			defer func() {
				note(owner + " ends")
				r.ended <- struct{}{}
			}()
			return work(ctx)
		})
	}()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(r.stop)
	return r
}

// open returns the bucket on a connection of its own, and a function that closes the
// connection.
func open[T any](t *testing.T, server *embednats.Server, instance string) (leases *bus.Bucket[T], kill func()) {
	t.Helper()
	nc := apptest.Dial(t, server)
	b, err := bus.New(nc, bus.Options{Service: "lease", Instance: instance, Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	leases, err = bus.OpenBucket[T](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return leases, nc.Close
}

func newLease(t *testing.T, leases *bus.Bucket[api.Lease], owner string, ttl time.Duration) *lease.Lease[api.Lease] {
	t.Helper()
	return &lease.Lease[api.Lease]{
		Bucket: leases, Key: api.LeaseKey("test"), TTL: ttl, Now: time.Now, Log: apptest.Log(t),
		Value: func(expires int64) api.Lease { return api.Lease{Owner: owner, Expires: expires} },
	}
}

func toTheEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestOneAtATimeAndHandOver(t *testing.T) {
	t.Parallel()
	server := apptest.Server(t)
	one := start(t, server, "one", toTheEnd)
	<-one.began
	two := start(t, server, "two", toTheEnd)
	// Longer than the lease, so that it is renewed.
	select {
	case <-two.began:
		t.Fatal("two have the lease")
	case <-one.ended:
		t.Fatal("the lease was lost")
	case <-time.After(2 * bus.MinTTL):
	}
	one.stop()
	<-two.began
	two.stop()
}

func TestGivenBackAtTheEnd(t *testing.T) {
	t.Parallel()
	one := start(t, apptest.Server(t), "one", toTheEnd)
	<-one.began
	one.stop()
	if e, err := one.leases.Get(t.Context(), api.LeaseKey("test")); api.CodeOf(err) != api.NotFound {
		t.Errorf("after the end: got %+v, %v, want not found", e, err)
	}
}

// TestKilledHolderIsReplaced checks that a holder that cannot renew its lease stops
// before the next one begins. The lease is longer than in the other tests, because the
// test fails if the machine stalls between the two for a sixth of it.
func TestKilledHolderIsReplaced(t *testing.T) {
	t.Parallel()
	server := apptest.Server(t)
	var mu sync.Mutex
	var order []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	const ttl = 6 * bus.MinTTL
	one := startNoted(t, server, "one", ttl, toTheEnd, note)
	<-one.began
	two := startNoted(t, server, "two", ttl, toTheEnd, note)
	one.kill()
	<-two.began
	<-one.ended
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"one begins", "one ends", "two begins"}; !slices.Equal(order, want) {
		t.Errorf("got %q, want %q", order, want)
	}
}

func TestWorkIsBegunAgain(t *testing.T) {
	t.Parallel()
	first := true
	one := start(t, apptest.Server(t), "one", func(ctx context.Context) error {
		if first {
			first = false
			return errors.New("the watch ended")
		}
		return toTheEnd(ctx)
	})
	<-one.began
	<-one.began
}

// TestEndsWithoutTheServer checks that a lease ends at its own expiry and with its
// process even if its key has no TTL, as after a crash of the server.
func TestEndsWithoutTheServer(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]api.Lease{
		"expired":               {Owner: "killed", Expires: time.Now().Add(200 * time.Millisecond).UnixMicro()},
		"of a process before":   {Owner: api.OwnerName("folder", "1"), Expires: time.Now().Add(time.Hour).UnixMicro()},
		"of an earlier release": {Owner: "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := apptest.Server(t)
			leases, _ := open[api.Lease](t, server, "")
			if _, err := leases.Create(t.Context(), api.LeaseKey("test"), held, 0); err != nil {
				t.Fatal(err)
			}
			next := start(t, server, api.OwnerName("folder", "2"), toTheEnd)
			select {
			case <-next.began:
			case <-time.After(30 * time.Second):
				t.Fatalf("the lease %+v is held for ever", held)
			}
		})
	}
}

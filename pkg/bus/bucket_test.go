package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type locks = bus.Bucket[api.Lock]

func openLocks(t *testing.T, b *bus.Bus) *locks {
	t.Helper()
	k, err := bus.OpenBucket[api.Lock](testContext(t), b)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestBucketComparesAndSets(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		k, k2 := openLocks(t, b), openLocks(t, other)
		key := api.LockKey(fresh("cas"))
		_, err := k.Get(ctx, key)
		wantCode(t, err, api.NotFound, "")
		_, err = k.Update(ctx, key, api.Lock{}, 1, 0)
		wantCode(t, err, api.Conflict, "")

		one, err := k.Create(ctx, key, api.Lock{Owner: "a"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = k2.Create(ctx, key, api.Lock{Owner: "b"}, 0)
		wantCode(t, err, api.Conflict, "")
		two, err := k.Update(ctx, key, api.Lock{Owner: "a", Epoch: 2}, one, 0)
		if err != nil || two <= one {
			t.Fatalf("revision %d after %d, %v", two, one, err)
		}
		_, err = k2.Update(ctx, key, api.Lock{Owner: "b"}, one, 0)
		wantCode(t, err, api.Conflict, "")
		wantCode(t, k2.Delete(ctx, key, one), api.Conflict, "")
		e, err := k2.Get(ctx, key)
		want := bus.Entry[api.Lock]{Key: key, Value: api.Lock{Owner: "a", Epoch: 2}, Revision: two}
		if diff := cmp.Diff(want, e); diff != "" || err != nil {
			t.Errorf("entry (-want +got), %v:\n%s", err, diff)
		}
		if err := k2.Delete(ctx, key, two); err != nil {
			t.Fatal(err)
		}
		wantCode(t, k2.Delete(ctx, key, two), api.Conflict, "")
		_, err = k.Get(ctx, key)
		wantCode(t, err, api.NotFound, "")
		three, err := k2.Create(ctx, key, api.Lock{}, 0)
		if err != nil || three <= two {
			t.Errorf("created again at %d after %d, %v: revisions fence", three, two, err)
		}
		for _, bad := range []string{"", "a b", "lock.*", "lock.>", ".lock", "lock."} {
			_, err := k.Create(ctx, bad, api.Lock{}, 0)
			wantCode(t, err, api.Invalid, "")
		}
	})
}

// TestBucketCreateAfterDelete checks that a deleted key can be created again at once: by
// the Bucket that deleted it and has its marker, by one that has an older marker, and by
// one that has none.
func TestBucketCreateAfterDelete(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		turns := []*locks{openLocks(t, b), openLocks(t, other)}
		key := api.LockKey(fresh("handed-over"))
		for n := range 300 {
			rev, err := turns[n%2].Create(ctx, key, api.Lock{}, 15*time.Second)
			if err != nil {
				t.Fatalf("cycle %d: %v", n, err)
			}
			if err := turns[n/3%2].Delete(ctx, key, rev); err != nil {
				t.Fatalf("cycle %d: %v", n, err)
			}
		}
	})
}

func TestBucketHasOneOwnerAtATime(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		const writers, each = 8, 15
		ctx := testContext(t)
		key := api.LockKey(fresh("contended"))
		var owners, held atomic.Int64
		var all sync.WaitGroup
		for w := range writers {
			k := openLocks(t, []*bus.Bus{b, other}[w%2])
			all.Go(func() {
				for got := 0; got < each; {
					rev, err := k.Create(ctx, key, api.Lock{Owner: fmt.Sprint(w)}, 15*time.Second)
					if api.CodeOf(err) == api.Conflict {
						continue
					}
					if err != nil {
						t.Errorf("create: %v", err)
						return
					}
					if owners.Add(1) != 1 {
						t.Error("two owners")
					}
					if rev, err = k.Update(ctx, key, api.Lock{Owner: fmt.Sprint(w)}, rev, 15*time.Second); err != nil {
						t.Errorf("the owner cannot renew: %v", err)
					}
					owners.Add(-1)
					if err := k.Delete(ctx, key, rev); err != nil {
						t.Errorf("the owner cannot release: %v", err)
					}
					held.Add(1)
					got++
				}
			})
		}
		all.Wait()
		if held.Load() != writers*each {
			t.Errorf("held %d times, want %d", held.Load(), writers*each)
		}
	})
}

// watch sends the entries that a watch of pattern receives; nil stands for the call of
// ready.
func watch(t *testing.T, k *locks, pattern string) <-chan *bus.Entry[api.Lock] {
	t.Helper()
	c := make(chan *bus.Entry[api.Lock], 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- k.Watch(ctx, pattern, func() { c <- nil }, func(e bus.Entry[api.Lock]) error { c <- &e; return nil })
	}()
	t.Cleanup(func() {
		cancel()
		if err := wait(t, done, "the end of the watch"); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	})
	return c
}

func TestBucketWatch(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		k := openLocks(t, b)
		root := fresh("watch")
		a1, a2, b1 := root+".a.1", root+".a.2", root+".b.1"
		revs := map[string]uint64{}
		for _, key := range []string{a1, a2, b1, "un" + root + ".a.1"} {
			rev, err := k.Create(ctx, key, api.Lock{Owner: key}, 0)
			if err != nil {
				t.Fatal(err)
			}
			revs[key] = rev
		}
		c := watch(t, openLocks(t, other), root+".a.*")
		existing := map[string]string{}
		for {
			e := wait(t, c, "what exists")
			if e == nil {
				break
			}
			existing[e.Key] = e.Value.Owner
		}
		if diff := cmp.Diff(map[string]string{a1: a1, a2: a2}, existing); diff != "" {
			t.Errorf("existing (-want +got):\n%s", diff)
		}
		rev, err := k.Update(ctx, a1, api.Lock{Owner: "next"}, revs[a1], 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Update(ctx, b1, api.Lock{}, revs[b1], 0); err != nil {
			t.Fatal(err)
		}
		if err := k.Delete(ctx, a2, revs[a2]); err != nil {
			t.Fatal(err)
		}
		if e := wait(t, c, "the update"); e.Key != a1 || e.Value.Owner != "next" || e.Revision != rev || e.Deleted {
			t.Errorf("update %+v", e)
		}
		if e := wait(t, c, "the deletion"); e.Key != a2 || !e.Deleted {
			t.Errorf("deletion %+v", e)
		}
	})
}

func TestBucketWatchEndsWithItsHandler(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	k := openLocks(t, b)
	if _, err := k.Create(testContext(t), "a", api.Lock{}, 0); err != nil {
		t.Fatal(err)
	}
	want := errors.New("enough")
	if err := k.Watch(testContext(t), ">", nil, func(bus.Entry[api.Lock]) error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// TestBucketWatchEndsWithItsContext checks that Watch returns the error of its context,
// also when the library has ended its part of the watch first.
func TestBucketWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	nc := connect(t, s)
	k := openLocks(t, newBus(t, nc, bus.Options{}))
	if _, err := k.Create(testContext(t), "a", api.Lock{}, 0); err != nil {
		t.Fatal(err)
	}
	const tries = 20 // in each of them Watch chooses between two ends at random
	for range tries {
		before := nc.NATS().NumSubscriptions()
		ctx, cancel := context.WithCancel(testContext(t))
		err := k.Watch(ctx, ">", nil, func(bus.Entry[api.Lock]) error {
			cancel()
			subscriptions(t, nc, before)
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
}

// TestBucketLease checks that a lease expires by its TTL, that watchers receive the
// expiry, and that Update keeps the key expiring.
func TestBucketLease(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		k := openLocks(t, b)
		key := api.LeaseKey(fresh("task"))
		c := watch(t, openLocks(t, other), key)
		if e := wait(t, c, "ready"); e != nil {
			t.Fatalf("exists: %+v", e)
		}
		first, err := k.Create(ctx, key, api.Lock{Owner: "a"}, bus.MinTTL)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		renewed, err := k.Update(ctx, key, api.Lock{Owner: "a"}, first, 2*bus.MinTTL)
		if err != nil {
			t.Fatal(err)
		}
		e := wait(t, c, "the lock")
		for !e.Deleted { // a key keeps only its last value, so the watch may skip earlier ones
			e = wait(t, c, "the end of the lease")
		}
		if lived := time.Since(began); !e.Deleted || e.Key != key || lived < 2*bus.MinTTL-100*time.Millisecond {
			t.Errorf("ended %+v after %v, want the second lease's %v", e, lived, 2*bus.MinTTL)
		}
		_, err = k.Update(ctx, key, api.Lock{Owner: "a"}, renewed, bus.MinTTL)
		wantCode(t, err, api.Conflict, "") // a late owner is fenced
		next, err := openLocks(t, other).Create(ctx, key, api.Lock{Owner: "b"}, bus.MinTTL)
		if err != nil || next <= renewed {
			t.Errorf("taken over at %d after %d, %v", next, renewed, err)
		}
	})
}

// TestBucketIsMadeAgainAtOnce checks that the Bucket that deleted a key creates it again
// with one write, because it has the revision of the marker.
func TestBucketIsMadeAgainAtOnce(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	key, end := api.LockKey("again"), api.LockKey("end")
	const prefix = "$KV." + api.Coordination + "."
	writes, err := nc.SubscribeSync(prefix + ">")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	k := openLocks(t, b)
	const cycles = 5
	for range cycles {
		rev, err := k.Create(testContext(t), key, api.Lock{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Delete(testContext(t), key, rev); err != nil {
			t.Fatal(err)
		}
	}
	// The server may confirm a write before it delivers the message to a subscriber. The
	// messages of one connection keep their order, so that of end follows all others.
	if _, err := k.Create(testContext(t), end, api.Lock{}, 0); err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		m, err := writes.NextMsgWithContext(testContext(t))
		if err != nil {
			t.Fatalf("after %d messages: %v", n, err)
		}
		if m.Subject == prefix+end {
			break
		}
		n++
	}
	if n != 2*cycles {
		t.Errorf("a key was written %d times with %d messages, want %d", 2*cycles, n, 2*cycles)
	}
}

package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/embednats/clustertest"
	"github.com/anima-run/anima/pkg/lease"
)

const keySubject = "$KV." + api.Coordination + ".lease.test"

// unanswered calls f with a short deadline while the answer of the next write of the key
// is lost, and checks that f returns an Unavailable error.
func unanswered(t *testing.T, server *embednats.Server, f func(context.Context) error) {
	t.Helper()
	stop, err := clustertest.Mute(server, keySubject)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, done := context.WithTimeout(t.Context(), time.Second)
	defer done()
	if err := f(ctx); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("without an answer: got %v, want %s", err, api.Unavailable)
	}
}

func take(l *lease.Lease[api.Lease]) func(context.Context) error {
	return func(ctx context.Context) error { _, err := l.Take(ctx); return err }
}

// entry returns the entry of the key, which must exist.
func entry[T any](t *testing.T, leases *bus.Bucket[T], key string) bus.Entry[T] {
	t.Helper()
	e, err := leases.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func wantGone[T any](t *testing.T, leases *bus.Bucket[T], key string) {
	t.Helper()
	if e, err := leases.Get(t.Context(), key); api.CodeOf(err) != api.NotFound {
		t.Errorf("got %+v, %v, want no key", e, err)
	}
}

// TestLostAnswers checks that a Lease recognises a create and a renewal whose answers
// were lost: it renews the stored value and releases it.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"create": 0, "renewal": 1} { // number of confirmed writes before
		for _, again := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				server := apptest.Server(t)
				leases, _ := open[api.Lease](t, server, "one")
				l, other := newLease(t, leases, "one", time.Hour), newLease(t, leases, "two", time.Hour)
				for range before {
					if _, err := l.Take(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				unanswered(t, server, take(l))
				stored := entry(t, leases, l.Key)
				if again {
					if _, err := l.Take(t.Context()); err != nil {
						t.Fatalf("the next renewal: %v", err)
					}
					if e := entry(t, leases, l.Key); e.Value.Owner != "one" || e.Revision <= stored.Revision {
						t.Errorf("got %+v after %+v, want it renewed", e, stored)
					}
				}
				if _, err := other.Take(t.Context()); api.CodeOf(err) != api.Conflict {
					t.Errorf("another owner: got %v, want %s", err, api.Conflict)
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("release: %v", err)
				}
				wantGone(t, leases, l.Key)
			})
		}
	}
}

// TestLostRelease checks that a release whose answer was lost succeeds when it is
// repeated.
func TestLostRelease(t *testing.T) {
	t.Parallel()
	server := apptest.Server(t)
	leases, _ := open[api.Lease](t, server, "one")
	l := newLease(t, leases, "one", time.Hour)
	if _, err := l.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop, err := clustertest.Mute(server, keySubject)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	wantGone(t, leases, l.Key)
}

// TestTakenOver checks that an owner whose lease another one has taken does not renew or
// release it, even after that lease has expired, and that its work ends.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	leases, _ := open[api.Lease](t, apptest.Server(t), "one")
	l := newLease(t, leases, "one", bus.MinTTL)
	from, err := l.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := entry(t, leases, l.Key)
	expired := api.Lease{Owner: "two", Expires: time.Now().Add(-time.Hour).UnixMicro()}
	if _, err := leases.Update(t.Context(), l.Key, expired, e.Revision, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Take(t.Context()); api.CodeOf(err) != api.Conflict {
		t.Errorf("renewal: got %v, want %s", err, api.Conflict)
	}
	err = l.Hold(t.Context(), from, func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, lease.ErrLost) {
		t.Errorf("work: got %v, want %v", err, lease.ErrLost)
	}
	if e := entry(t, leases, l.Key); e.Value.Owner != "two" {
		t.Errorf("after the release: got %+v, want the lease of two", e.Value)
	}
	// A new claim may take it.
	if _, err := newLease(t, leases, "one", time.Hour).Take(t.Context()); err != nil {
		t.Errorf("expired: %v", err)
	}
}

// TestExpired checks that a holder that did not renew its lease in time may take it again
// if no other owner has taken it.
func TestExpired(t *testing.T) {
	t.Parallel()
	leases, _ := open[api.Lease](t, apptest.Server(t), "one")
	l := newLease(t, leases, "one", bus.MinTTL)
	if _, err := l.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := errors.New("expired")
	err := leases.Watch(t.Context(), l.Key, nil, func(e bus.Entry[api.Lease]) error {
		if e.Deleted {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) {
		t.Fatal(err)
	}
	if _, err := l.Take(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	if e := entry(t, leases, l.Key); e.Value.Owner != "one" {
		t.Errorf("got %+v, want the lease of one", e.Value)
	}
}

// TestUnavailable checks that work ends before its lease expires if NATS is unavailable,
// and that the lease is then taken again.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	leases, kill := open[api.Lease](t, apptest.Server(t), "one")
	l := newLease(t, leases, "one", bus.MinTTL)
	from, err := l.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = l.Hold(t.Context(), from, func(ctx context.Context) error {
		kill()
		<-ctx.Done()
		if since := time.Since(from); since < bus.MinTTL/2 {
			t.Errorf("the work was ended after %v, want that renewals are retried", since)
		}
		return context.Cause(ctx)
	})
	if !errors.Is(err, lease.ErrLost) {
		t.Errorf("work: got %v, want %v", err, lease.ErrLost)
	}
	if _, err := l.Take(t.Context()); err == nil || api.CodeOf(err) == api.Conflict {
		t.Errorf("taken again: got %v, want an error that is no conflict", err)
	}
}

// TestEpoch checks that the stored epoch follows the owner, and that an owner does not
// replace a value of a later epoch of its own.
func TestEpoch(t *testing.T) {
	t.Parallel()
	locks, _ := open[api.Lock](t, apptest.Server(t), "one")
	var epoch atomic.Uint64
	claim := func(epoch func() uint64) *lease.Lease[api.Lock] {
		return &lease.Lease[api.Lock]{
			Bucket: locks, Key: api.LockKey("s"), TTL: time.Hour, Now: time.Now, Log: apptest.Log(t),
			Value: func(expires int64) api.Lock {
				return api.Lock{Run: "r", Owner: "one", Epoch: epoch(), Expires: expires}
			},
		}
	}
	l := claim(epoch.Load)
	for want := range uint64(3) {
		epoch.Store(want)
		if _, err := l.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := entry(t, locks, l.Key); e.Value.Epoch != want || e.Value.Run != "r" {
			t.Errorf("got %+v, want epoch %d", e.Value, want)
		}
	}
	old := claim(func() uint64 { return 1 })
	if _, err := old.Take(t.Context()); api.CodeOf(err) != api.Conflict {
		t.Errorf("an earlier epoch: got %v, want %s", err, api.Conflict)
	}
	next := claim(func() uint64 { return 3 }) // the release of the one before was lost
	if _, err := next.Take(t.Context()); err != nil {
		t.Errorf("a later epoch: %v", err)
	}
}

// TestEarlierEpoch checks that an owner takes the lease from one of an earlier epoch, which
// has renewed it after a suspension, and keeps it.
func TestEarlierEpoch(t *testing.T) {
	t.Parallel()
	locks, _ := open[api.Lock](t, apptest.Server(t), "one")
	claim := func(owner string, epoch uint64) *lease.Lease[api.Lock] {
		return &lease.Lease[api.Lock]{
			Bucket: locks, Key: api.LockKey("s"), TTL: time.Hour, Now: time.Now, Log: apptest.Log(t),
			Value: func(expires int64) api.Lock { return api.Lock{Run: "r", Owner: owner, Epoch: epoch, Expires: expires} },
		}
	}
	suspended, present := claim("one", 5), claim("two", 9)
	if _, err := suspended.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first renewal of the present owner, and a later one
		if _, err := present.Take(t.Context()); err != nil {
			t.Errorf("the later epoch: %v", err)
		}
	}
	if _, err := suspended.Take(t.Context()); api.CodeOf(err) != api.Conflict {
		t.Errorf("the earlier epoch: got %v, want %s", err, api.Conflict)
	}
	if e := entry(t, locks, present.Key); e.Value.Owner != "two" {
		t.Errorf("got %+v, want the lease of two", e.Value)
	}
}

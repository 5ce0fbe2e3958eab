package loop

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/lease"
)

// TestGoalLeases tests that one handler at a time works on a goal, also in one process,
// and that a process takes a lease again whose first request was stored without an
// answer.
func TestGoalLeases(t *testing.T) {
	t.Parallel()
	bucket, err := bus.OpenBucket[api.Lease](t.Context(), apptest.Bus(t))
	if err != nil {
		t.Fatal(err)
	}
	process := func(owner string) goalLeases {
		return goalLeases{bucket: bucket, owner: owner, ttl: time.Hour, now: time.Now, log: apptest.Log(t), mine: &sync.Map{}}
	}
	this, other := process("this"), process("other")
	key := api.LeaseKey("goal.g")
	if _, err := bucket.Create(t.Context(), key, api.Lease{Owner: "this", Expires: time.Now().Add(time.Hour).UnixMicro()}, time.Hour); err != nil {
		t.Fatal(err)
	}
	err = this.With(t.Context(), key, func(ctx context.Context) error {
		for name, g := range map[string]goalLeases{"this process": this, "another process": other} {
			err := g.With(ctx, key, func(context.Context) error { return nil })
			if api.CodeOf(err) != api.Conflict {
				t.Errorf("%s: got %v, want %s", name, err, api.Conflict)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("after a lost answer: %v", err)
	}
	if err := other.With(t.Context(), key, func(context.Context) error { return nil }); err != nil {
		t.Errorf("after the work: %v", err)
	}
}

// TestGoalLeaseIsFree tests that a lease is held until it expires, or until the next
// process with the same data folder requests it, also without a TTL.
func TestGoalLeaseIsFree(t *testing.T) {
	t.Parallel()
	bucket, err := bus.OpenBucket[api.Lease](t.Context(), apptest.Bus(t))
	if err != nil {
		t.Fatal(err)
	}
	g := goalLeases{bucket: bucket, owner: api.OwnerName("folder", "2"), ttl: time.Minute, now: time.Now, log: apptest.Log(t), mine: &sync.Map{}}
	past, future := time.Now().UnixMicro(), time.Now().Add(time.Hour).UnixMicro()
	for i, c := range []struct {
		name, owner string
		expires     int64
		free        bool
	}{
		{"expired", "other/1", past, true},
		{"of the installation, before", api.OwnerName("folder", "1"), future, true},
		{"of another installation", api.OwnerName("other", "1"), future, false},
		{"of another process", "1", future, false},
	} {
		key := api.LeaseKey(fmt.Sprintf("goal.g%d", i))
		put := func() { // without a TTL, as a server restores it
			if _, err := bucket.Create(t.Context(), key, api.Lease{Owner: c.owner, Expires: c.expires}, 0); err != nil {
				t.Fatal(err)
			}
		}
		put()
		led := false
		err := g.With(t.Context(), key, func(context.Context) error { led = true; return nil })
		if led != c.free || !c.free && api.CodeOf(err) != api.Conflict {
			t.Errorf("%s: got it %t, %v, want %t", c.name, led, err, c.free)
		}
		if led {
			put()
		}
		if err := lease.Sweep(t.Context(), bucket, key, g.owner, time.Now()); err != nil {
			t.Fatal(err)
		}
		if _, err := bucket.Get(t.Context(), key); (api.CodeOf(err) == api.NotFound) != c.free {
			t.Errorf("%s: after the sweep got %v, want it deleted %t", c.name, err, c.free)
		}
	}
}

package loop

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
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

package loop

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats/clustertest"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

func TestJournalTail(t *testing.T) {
	t.Parallel()
	j := journal{apptest.Bus(t)}
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	first, err := j.Append(t.Context(), cmd, turn.Step{Turn: 1, Begin: &turn.Begin{Attempt: 1}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	last, err := j.Append(t.Context(), cmd, turn.Step{Turn: 1, Intent: &turn.Intent{Index: 3}}, first)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		after uint64
		want  []string
	}{
		{"from the start", 0, []string{"begin", "intent"}},
		{"after the first", first, []string{"intent"}},
		{"after the last", last, nil},
		// A journalled intent that nobody sees would make an irreversible call again.
		{"the store has seen more than the stream has", last + 1000, []string{"begin", "intent"}},
	} {
		steps, end, err := j.Tail(t.Context(), "s", c.after)
		if err != nil || end != last {
			t.Errorf("%s: got end %d, %v; want %d", c.name, end, err, last)
		}
		var got []string
		for _, s := range steps {
			got = append(got, s.Kind())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if steps, end, err := j.Tail(t.Context(), "other", 7); err != nil || end != 0 || steps != nil {
		t.Errorf("a session without a journal: got %v, %d, %v", steps, end, err)
	}
}

// The answer of NATS to a write of a lock may be lost with its leader. What the
// process wrote and does not know of is its own all the same.
func TestLockWithoutAnswer(t *testing.T) {
	t.Parallel()
	locks, err := bus.OpenBucket[api.Lock](t.Context(), apptest.Bus(t))
	if err != nil {
		t.Fatal(err)
	}
	const lease = 1500 * time.Millisecond // renewed each half second
	l := newLocker(locks, "this", lease, time.Now, apptest.Log(t))
	other := newLocker(locks, "other", lease, time.Now, apptest.Log(t))
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	key := api.LockKey(cmd.Session)

	// It was made by an earlier try, and nobody was told.
	if _, err := locks.Create(t.Context(), key, l.value(cmd, 0), time.Hour); err != nil {
		t.Fatal(err)
	}
	err = other.with(t.Context(), cmd, func(context.Context) error { t.Error("another process has it, too"); return nil })
	if api.ReasonOf(err) != api.ReasonBusy {
		t.Errorf("another process got %v, want that it is busy", err)
	}
	err = l.with(t.Context(), cmd, func(ctx context.Context) error {
		held, err := locks.Get(ctx, key)
		if err != nil || held.Revision != epochOf(ctx) {
			t.Errorf("its epoch is %d, and the key's revision %d, %v", epochOf(ctx), held.Revision, err)
		}
		if err := l.with(ctx, cmd, func(context.Context) error { t.Error("this process has it twice"); return nil }); api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("the run itself, delivered again, got %v, want that it is busy", err)
		}
		// A renewal was stored, and its owner was not told. The next ones go on from there.
		stored, err := locks.Update(ctx, key, l.value(cmd, epochOf(ctx)), held.Revision, lease)
		if err != nil {
			return err
		}
		renewed := errors.New("renewed")
		err = locks.Watch(ctx, key, nil, func(e bus.Entry[api.Lock]) error {
			if e.Revision > stored {
				return renewed
			}
			return nil
		})
		if !errors.Is(err, renewed) {
			t.Errorf("waiting for a renewal: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("with its own lock: %v", err)
	}
	// A renewal was stored, its owner was not told, and the work is over before the next.
	err = l.with(t.Context(), cmd, func(ctx context.Context) error {
		_, err := locks.Update(ctx, key, l.value(cmd, epochOf(ctx)), epochOf(ctx), time.Hour)
		return err
	})
	if err != nil {
		t.Errorf("with a renewal that it does not know of: %v", err)
	}
	if _, err := locks.Get(t.Context(), key); api.CodeOf(err) != api.NotFound {
		t.Errorf("after the work the lock is there: %v", err)
	}
	// Another owner's renewal ends the work.
	err = l.with(t.Context(), cmd, func(ctx context.Context) error {
		if _, err := locks.Update(ctx, key, other.value(cmd, 1), epochOf(ctx), lease); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, errLeaseLost) {
		t.Errorf("got %v, want %v", err, errLeaseLost)
	}
}

// A lock whose release was lost on its way is released all the same: the next message
// of the session may come to another replica.
func TestLockIsReleasedAgain(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{})
	locks, err := bus.OpenBucket[api.Lock](t.Context(), w.Bus)
	if err != nil {
		t.Fatal(err)
	}
	const lease = time.Hour
	l := newLocker(locks, "this", lease, time.Now, apptest.Log(t))
	other := newLocker(locks, "other", lease, time.Now, apptest.Log(t))
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	err = l.with(t.Context(), cmd, func(context.Context) error {
		stop, err := clustertest.Swallow(w.NATS, "$KV."+api.Coordination+"."+api.LockKey(cmd.Session))
		if err == nil {
			t.Cleanup(stop)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.with(t.Context(), cmd, func(context.Context) error { return nil }); err != nil {
		t.Errorf("another replica got %v, want the session", err)
	}
}

// A lock holds until its own expiry, whatever became of the TTL of its key, and not
// beyond the end of a process whose successor in the data folder asks.
func TestLockIsFree(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	locks, err := bus.OpenBucket[api.Lock](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := bus.OpenBucket[api.Lease](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
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
		cmd := api.Run{Run: "r", Session: fmt.Sprintf("s%d", i), Agent: "a"}
		key, goal := api.LockKey(cmd.Session), api.LeaseKey(fmt.Sprintf("goal.g%d", i))
		put := func() { // without a TTL, as a server brings it back
			if _, err := locks.Create(t.Context(), key, api.Lock{Run: "before", Owner: c.owner, Expires: c.expires}, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := leases.Create(t.Context(), goal, api.Lease{Owner: c.owner, Expires: c.expires}, 0); err != nil {
				t.Fatal(err)
			}
		}
		l := newLocker(locks, api.OwnerName("folder", "2"), time.Minute, time.Now, apptest.Log(t))
		g := leaser{leases: leases, owner: l.owner, ttl: time.Minute, now: time.Now, log: apptest.Log(t)}
		put()
		ran, led := false, false
		err := l.with(t.Context(), cmd, func(context.Context) error { ran = true; return nil })
		if ran != c.free || !c.free && api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("lock %s: got it %t, %v, want %t", c.name, ran, err, c.free)
		}
		err = g.With(t.Context(), goal, func(context.Context) error { led = true; return nil })
		if led != c.free || !c.free && api.CodeOf(err) != api.Conflict {
			t.Errorf("lease %s: got it %t, %v, want %t", c.name, led, err, c.free)
		}
		if c.free {
			put()
		}
		if err := errors.Join(l.tidy(t.Context()), g.tidy(t.Context())); err != nil {
			t.Fatal(err)
		}
		_, err = locks.Get(t.Context(), key)
		_, errGoal := leases.Get(t.Context(), goal)
		if gone, over := api.CodeOf(err) == api.NotFound, api.CodeOf(errGoal) == api.NotFound; gone != c.free || over != c.free {
			t.Errorf("%s: tidied up are the lock %t, %v, and the lease %t, %v; want %t", c.name, gone, err, over, errGoal, c.free)
		}
	}
}

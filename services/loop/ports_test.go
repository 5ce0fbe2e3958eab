package loop

import (
	"context"
	"errors"
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
	// Somebody else's renewal ends the work.
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

package session

import (
	"context"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// TestWaitingReadsTheNotices tests that Waiting marks the notices of messages as read that
// do not wait any more, and none that arrives later.
func TestWaitingReadsTheNotices(t *testing.T) {
	t.Parallel()
	q := NewQueue(apptest.Bus(t), apptest.Log(t))
	cmd := api.Run{Run: "r", Session: "s"}
	steered, stop := q.Watch(cmd, func(error) {})
	defer stop()
	for _, message := range []string{"expired", "later"} {
		q.notice(api.SessionNotice{Session: "s", Steered: message})
		if !steered() {
			t.Errorf("after the notice of %s the run is not steered", message)
		}
		if waiting, err := q.Waiting(t.Context(), cmd); err != nil || len(waiting) != 0 {
			t.Fatalf("waiting: %v, %v", waiting, err)
		}
		if steered() {
			t.Errorf("the run is still steered by %s, which does not wait", message)
		}
	}
}

// TestBefore tests that Before returns what precedes a sequence.
func TestBefore(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	q := NewQueue(b, apptest.Log(t))
	publish := func(ctx context.Context, run string) uint64 {
		t.Helper()
		sequence, err := b.PublishSequence(ctx, "run/"+run, api.Run{Run: run, Session: "s"})
		if err != nil {
			t.Fatal(err)
		}
		return sequence
	}
	first, second := publish(t.Context(), "first"), publish(t.Context(), "second")
	if again := publish(t.Context(), "first"); again != first {
		t.Errorf("published again, the message has the sequence %d, want %d", again, first)
	}
	for sequence, want := range map[uint64]int{first: 0, second: 1, second + 1: 2, 0: 2} {
		if got, err := q.Before(t.Context(), "s", sequence); err != nil || len(got) != want {
			t.Errorf("before %d: %d runs, %v, want %d", sequence, len(got), err, want)
		}
	}
}

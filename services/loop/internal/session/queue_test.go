package session

import (
	"context"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

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

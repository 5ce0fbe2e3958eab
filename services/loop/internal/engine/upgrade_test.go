package engine_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// TestRunOfTheReleaseBefore resumes a run that an owner of an older release left at any
// step of its first turn. That release published an event for each step separately; the
// engine publishes those events again, and announces later steps in the journal.
func TestRunOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	calm := three(true)
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	want := outcomeOf(t, calm, command)
	wanted := slices.Sorted(slices.Values(calm.Stream.IDs()))
	first := nth(ports.Ports, "append begin", 1)
	for at := first; at < nth(ports.Ports, "persist", 1); at++ {
		w := three(true)
		crash := enginetest.Crash{At: ports.Point(at), After: true}
		if err := w.Run(t.Context(), crash.Gate, command); !errors.Is(err, enginetest.ErrCrash) {
			t.Fatalf("got %v, want a crash", err)
		}
		if err := w.Age(t.Context(), command); err != nil {
			t.Fatal(err)
		}
		untilOver(t, w, command)
		sound(t, w, command)
		got := outcomeOf(t, w, command)
		if c := got.Turns[0].Calls; len(c) == 3 && c[2].Outcome == api.OutcomeUnknown {
			forget(&got, want)
		}
		if diff := cmp.Diff(want, got, timeless); diff != "" {
			t.Errorf("left at %s (-want +got):\n%s", ports.Ports[at-1], diff)
		}
		if diff := cmp.Diff(wanted, slices.Sorted(slices.Values(w.Stream.IDs()))); diff != "" {
			t.Errorf("left at %s: events (-want +got):\n%s", ports.Ports[at-1], diff)
		}
	}
}

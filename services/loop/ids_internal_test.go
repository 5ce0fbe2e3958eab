package loop

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// TestRunsOfEvents tests that the ids of events have the order of their times, that the same
// event has the same id, and that other events at the same time have others.
func TestRunsOfEvents(t *testing.T) {
	t.Parallel()
	const millisecond, noon = 1000, int64(1_795_953_600_000_000)
	var ids []string
	for i := range int64(5) {
		ids = append(ids, runOfEvent("wake", noon+i*millisecond).run)
	}
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("ids of consecutive milliseconds are not in order: %q", ids)
	}
	first := runOfEvent("wake", noon)
	if diff := cmp.Diff(ids[0], first.run); diff != "" {
		t.Errorf("the same event (-first +again):\n%s", diff)
	}
	if other := runOfEvent("other", noon); other.run == first.run || other.former == first.former {
		t.Errorf("another event at the same time has the id %v of the first", other)
	}
	if u, err := uuid.Parse(first.run); err != nil || u.Version() != 8 || u.Variant() != uuid.RFC4122 {
		t.Errorf("id %s: version %d, variant %v, error %v, want a UUID of version 8", first.run, u.Version(), u.Variant(), err)
	}
	if got, want := first.messageID(), "run/"+uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:wake")).String(); got != want {
		t.Errorf("message id %s, want %s, as in the previous release", got, want)
	}
	for _, at := range []int64{0, -1} {
		if id := runOfEvent("wake", at).run; id[:13] != "00000000-0000" {
			t.Errorf("at %d: %s, want one that begins with zeros", at, id)
		}
	}
}

// TestMayRest checks that a sleep of 24 hours is permitted by a clock that is ahead.
func TestMayRest(t *testing.T) {
	t.Parallel()
	const second = 1_000_000
	for ahead, want := range map[int64]bool{-1: false, 0: false, 1: true, 86_400: true, 86_460: true, 86_461: false} {
		if got := mayRest((100_000+ahead)*second, 100_000*second); got != want {
			t.Errorf("until %d s from now: got %v, want %v", ahead, got, want)
		}
	}
}

package router

import (
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// TestIsLost checks which active holds are those of lost attempts: not one whose attempt is
// in progress, and not one on which no call was made.
func TestIsLost(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	h := &handlers{now: func() time.Time { return now }}
	h.working.begin("working/0")
	h.unsure.add("unsure/0")
	of := func(id, category string, age time.Duration) api.HoldState {
		return api.HoldState{ID: id, Category: category, ExpiresAt: now.Add(holdTime - age).UnixMicro()}
	}
	for _, c := range []struct {
		hold api.HoldState
		want bool
	}{
		{of("lost/0", api.CategoryInference, lostAfter), true},
		{of("young/0", api.CategoryInference, lostAfter-time.Second), false},
		{of("working/0", api.CategoryInference, lostAfter), false},
		{of("unsure/0", api.CategoryInference, lostAfter), false},
		{of("other/0", api.CategoryTransfer, lostAfter), false},
		{api.HoldState{ID: "endless/0", Category: api.CategoryInference}, false},
	} {
		if got := h.isLost(c.hold); got != c.want {
			t.Errorf("%s: got %t, want %t", c.hold.ID, got, c.want)
		}
	}
}

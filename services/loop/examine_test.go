package loop

import (
	"context"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestIsLost tests that a run is lost if it is in no queue and not over, and not if it
// ends while the queue is read.
func TestIsLost(t *testing.T) {
	t.Parallel()
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	for _, c := range []struct {
		name  string
		queue []string
		over  bool
		want  bool
	}{
		{"waiting behind another", []string{"other", "r"}, false, false},
		{"in no queue", []string{"other"}, false, true},
		{"ended since", nil, true, false},
	} {
		next := func(_ context.Context, _ api.Subject, from uint64) (bus.Stored, error) {
			if from > uint64(len(c.queue)) {
				return bus.Stored{}, api.Errorf(api.NotFound, "no message")
			}
			data, err := api.Encode(api.Run{Run: c.queue[from-1]})
			return bus.Stored{Sequence: from, Data: data}, err
		}
		over := func(context.Context, string) (bool, error) { return c.over, nil }
		if got, err := isLost(t.Context(), cmd, next, over); err != nil || got != c.want {
			t.Errorf("%s: got %t, %v, want %t", c.name, got, err, c.want)
		}
	}
}

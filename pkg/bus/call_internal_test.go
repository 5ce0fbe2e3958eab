package bus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestPause checks that a request is repeated only if its context leaves time for it.
func TestPause(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		left time.Duration // of the context; 0: it has no deadline
		want bool
	}{
		"no deadline":                     {0, true},
		"more than two pauses":            {1100 * time.Millisecond, true},
		"less than the rest of the pause": {499 * time.Millisecond, false},
		"less than the pause":             {time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.left > 0 {
					limited, cancel := context.WithTimeout(ctx, tt.left)
					defer cancel()
					ctx = limited
				}
				if got := pause(ctx, 10); got != tt.want {
					t.Errorf("got %v, want %v", got, tt.want)
				}
			})
		})
	}
}

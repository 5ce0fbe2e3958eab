package drill

import (
	"testing"
	"time"
)

// TestBurnEnds checks that release ends the processes long before the limit.
func TestBurnEnds(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		burn(t.Context(), 2, time.Hour)()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the burners go on")
	}
}

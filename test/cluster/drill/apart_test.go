package drill

import (
	"testing"
	"time"
)

// The burners end when they are released, long before their limit.
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

package bus_test

import (
	"context"
	"testing"
)

// TestReadingOutlivesSilence checks that a read is retried long before its caller's
// deadline when the server has shut down and does not answer. In a rolling update of NATS
// one such read blocked a run until the run's deadline.
func TestReadingOutlivesSilence(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ctx := testContext(t)
	tries := 0
	err := b.Retry(ctx, func(once context.Context) error {
		if tries++; tries > 1 {
			return nil
		}
		<-once.Done() // no answer
		return once.Err()
	})
	if err != nil || tries != 2 {
		t.Errorf("after %d tries: %v, want the second one to be answered", tries, err)
	}
}

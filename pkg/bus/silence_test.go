package bus_test

import (
	"context"
	"testing"
)

// A server that has left answers nothing at all. A read asks again long before its
// caller's deadline, which may be that of a whole run: in a rolling update of NATS
// one such read held a run until the end of its time.
func TestReadingOutlivesSilence(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ctx := testContext(t)
	tries := 0
	err := b.Look(ctx, func(once context.Context) error {
		if tries++; tries > 1 {
			return nil
		}
		<-once.Done() // silence
		return once.Err()
	})
	if err != nil || tries != 2 {
		t.Errorf("after %d tries: %v, want the second one to be answered", tries, err)
	}
}

// Package wait pauses a function, or repeats it at an interval, until a context ends.
package wait

import (
	"context"
	"time"
)

// For waits for d. It returns the error of ctx if ctx ends first or has already ended,
// and does not wait if d is 0 or less.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Every calls f each time that interval, which must be more than 0, has passed, until
// ctx ends. The first call is after one interval. If a call takes longer than the
// interval, the calls that it delayed are dropped.
func Every(ctx context.Context, interval time.Duration, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

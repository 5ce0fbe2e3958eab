package host

import (
	"context"
	"sync"
)

// barrier blocks until all services have arrived.
type barrier struct {
	missing sync.WaitGroup
	passed  chan struct{}
}

func newBarrier(n int) *barrier {
	b := &barrier{passed: make(chan struct{})}
	b.missing.Add(n)
	go func() { b.missing.Wait(); close(b.passed) }() // ends, because every service arrives, at the latest when it ends
	return b
}

// arrival returns the function of one service: its first call arrives, and every call
// waits.
func (b *barrier) arrival() func(context.Context) {
	arrive := sync.OnceFunc(b.missing.Done)
	return func(ctx context.Context) {
		arrive()
		select {
		case <-b.passed:
		case <-ctx.Done():
		}
	}
}

// ended returns a cancelled context.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

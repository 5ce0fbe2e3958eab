package host

import (
	"context"
	"sync"
	"sync/atomic"
)

// barrier blocks until all services have arrived.
type barrier struct {
	missing atomic.Int64
	passed  chan struct{}
}

func newBarrier(n int) *barrier {
	b := &barrier{passed: make(chan struct{})}
	b.missing.Store(int64(n))
	if n == 0 {
		close(b.passed)
	}
	return b
}

// arrival returns the function with which one service arrives. Only its first call counts.
func (b *barrier) arrival() (arrive func()) {
	return sync.OnceFunc(func() {
		if b.missing.Add(-1) == 0 {
			close(b.passed)
		}
	})
}

// wait waits until all services have arrived, or ctx ends.
func (b *barrier) wait(ctx context.Context) {
	select {
	case <-b.passed:
	case <-ctx.Done():
	}
}

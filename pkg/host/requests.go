package host

import (
	"context"
	"sync"
	"time"
)

// requests counts the HTTP requests in progress, so that the services close their stores
// after the last one.
type requests struct {
	mu     sync.Mutex
	n      int
	closed bool
	none   chan struct{} // closed when n becomes 0; nil unless close waits
}

// begin counts a request. It returns false if the services may have stopped.
func (r *requests) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.n++
	return true
}

func (r *requests) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// close waits until no request is in progress or ctx ends. After that no request begins.
// Several services may call it.
func (r *requests) close(ctx context.Context) {
	for {
		r.mu.Lock()
		if r.n == 0 || ctx.Err() != nil {
			r.closed = true
			r.mu.Unlock()
			return
		}
		if r.none == nil {
			r.none = make(chan struct{})
		}
		none := r.none
		r.mu.Unlock()
		select {
		case <-none:
		case <-ctx.Done():
		}
	}
}

// Times of HTTP requests after a signal to stop.
const (
	followGrace = time.Second     // until the contexts of [UntilStop] end
	maxReport   = 2 * time.Second // for the ends of requests that the drain has cut off
)

// cutOff returns the part of a drain after which requests in progress are canceled. In the
// rest their handlers store what was done and answer with an error.
func cutOff(drain time.Duration) time.Duration { return drain - min(drain/5, maxReport) }

type stopKey struct{}

// UntilStop returns a copy of the context of a request that also ends a second after a
// signal to stop the process, for an answer that does not end by itself, such as a stream
// of events. The contexts of other requests end shortly before ANIMA_DRAIN is over. The
// caller calls the returned function when it has answered.
func UntilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop, ok := ctx.Value(stopKey{}).(context.Context)
	if !ok { // not a request of [Run]
		return ctx, cancel
	}
	detach := context.AfterFunc(stop, cancel)
	return ctx, func() { detach(); cancel() }
}

package sqldb

import (
	"context"
	"sync"
	"time"
)

// slow is how long a statement runs before its context is looked at again. Most of
// ours end before, and cost no goroutine.
const slow = 10 * time.Millisecond

// watch ends the statement of a connection when the statement's context ends.
type watch struct {
	timer *time.Timer

	mu      sync.Mutex
	stop    chan struct{}   // closed, it interrupts the connection
	stopped bool            // stop is closed
	closed  bool            // the connection is to be closed
	done    <-chan struct{} // of the context of the statement that runs; nil: none runs
	ended   chan struct{}   // closed when the statement that is waited for has ended
}

// init returns the channel that interrupts the connection.
func (w *watch) init() <-chan struct{} {
	w.stop = make(chan struct{})
	w.timer = time.AfterFunc(time.Hour, w.wait)
	w.timer.Stop()
	return w.stop
}

// begin says that a statement begins.
func (w *watch) begin(ctx context.Context) {
	done := ctx.Done()
	w.mu.Lock()
	w.done = done
	w.mu.Unlock()
	if done != nil {
		w.timer.Reset(slow)
	}
}

// end says that the statement has ended, and whether the connection has to be armed
// again.
func (w *watch) end() (rearm bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done != nil {
		w.timer.Stop()
		w.done = nil
	}
	if w.ended != nil {
		close(w.ended)
		w.ended = nil
	}
	return w.stopped && !w.closed
}

// wait waits, for a statement that is slow, until it or its context has ended.
func (w *watch) wait() {
	w.mu.Lock()
	done, ended := w.done, make(chan struct{})
	if done == nil || w.ended != nil {
		w.mu.Unlock()
		return
	}
	w.ended = ended
	w.mu.Unlock()
	select {
	case <-ended:
	case <-done:
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ended == ended {
			w.halt()
		}
	}
}

func (w *watch) halt() {
	if !w.stopped {
		w.stopped = true
		close(w.stop)
	}
}

// interrupt ends the statement that runs and all that follow.
func (w *watch) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.halt()
}

// rearm returns a new channel that interrupts the connection.
func (w *watch) rearm() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stop, w.stopped = make(chan struct{}), false
	if w.closed {
		w.halt()
	}
	return w.stop
}

package sqldb

import (
	"context"
	"sync"
	"time"
)

// slow is how long a statement runs before a goroutine waits for the end of its context.
// Most statements take less time, and need no goroutine.
const slow = 10 * time.Millisecond

// watch interrupts the statement of a connection when the context of the statement ends.
type watch struct {
	timer *time.Timer

	mu      sync.Mutex
	stop    chan struct{}   // closing it interrupts the connection
	stopped bool            // stop is closed
	closed  bool            // interrupt was called: the connection is being closed
	done    <-chan struct{} // the Done channel of the running statement's context; nil if no statement runs
	ended   chan struct{}   // closed at the end of the statement that wait waits for
}

// init creates and returns the channel that interrupts the connection.
func (w *watch) init() <-chan struct{} {
	w.stop = make(chan struct{})
	w.timer = time.AfterFunc(time.Hour, w.wait)
	w.timer.Stop()
	return w.stop
}

// begin starts the timer for a statement with the given context.
func (w *watch) begin(ctx context.Context) {
	done := ctx.Done()
	w.mu.Lock()
	w.done = done
	w.mu.Unlock()
	if done != nil {
		w.timer.Reset(slow)
	}
}

// end stops the timer at the end of the statement, and reports whether the connection was
// interrupted and has to be armed again.
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

// wait waits until a slow statement or its context has ended, and interrupts the
// connection in the second case.
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

// halt closes the channel that interrupts the connection.
func (w *watch) halt() {
	if !w.stopped {
		w.stopped = true
		close(w.stop)
	}
}

// interrupt interrupts the running statement and all later ones.
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

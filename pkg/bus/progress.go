package bus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/wait"
)

// pending is the state of a message that was taken and is not settled.
type pending struct {
	client *client // the client on which it is settled

	mu      sync.Mutex
	end     context.CancelCauseFunc // cancels the handler's context; nil before it begins
	latest  time.Time               // time of the last progress
	waits   map[*waitEnd]struct{}   // waits in progress, see [Within]
	stalled bool
}

// waitEnd is the latest end of a wait.
type waitEnd struct{ time.Time }

type pendingKey struct{}

// errStalled is the cause of the cancelled context of a handler that made no progress.
var errStalled = unavailable("the handler made no progress", "see the log for the operation that it waited for")

// begin returns the context of the message's handler, which is cancelled when the handler
// makes no progress. The caller calls the returned function when the handler has
// returned.
func (h *pending) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(context.WithValue(ctx, pendingKey{}, h))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end, h.latest = end, time.Now()
	return ctx, func() { end(nil) }
}

// checkStalled reports whether the handler has started and made no progress for patience. The
// first time, it cancels the handler's context and sets first.
func (h *pending) checkStalled(patience time.Duration, now time.Time) (stalled, first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if patience <= 0 || h.end == nil {
		return false, false
	}
	if h.stalled {
		return true, false
	}
	last := h.latest.Add(patience)
	for wait := range h.waits {
		if wait.After(last) {
			last = wait.Time
		}
	}
	if now.Before(last) {
		return false, false
	}
	h.stalled = true
	h.end(errStalled)
	return true, true
}

// InProgress records progress of the handler that was given ctx. On a route with
// [ConsumerOptions.StallTimeout], a handler without progress for that long is cancelled: its
// context ends, the ack wait of its message is no longer extended, and after AckWait
// another replica gets the message. InProgress does nothing for any other context.
func InProgress(ctx context.Context) {
	if h, ok := ctx.Value(pendingKey{}).(*pending); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.latest = time.Now()
	}
}

// Within records that the handler that was given ctx waits for at most d, until done is
// called. [ConsumerOptions.StallTimeout] does not apply during that time. Several waits may be in
// progress at the same time.
func Within(ctx context.Context, d time.Duration) (done func()) {
	h, ok := ctx.Value(pendingKey{}).(*pending)
	if !ok {
		return func() {}
	}
	wait := &waitEnd{time.Now().Add(d)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits == nil {
		h.waits = map[*waitEnd]struct{}{}
	}
	h.waits[wait] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waits, wait)
		h.latest = time.Now()
	}
}

// untrack stops extending the ack wait of a message. The caller settles the message and
// then calls settled: until then the message's client is held.
func (d *delivery) untrack(msg jetstream.Msg) (settled func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.pending[msg]
	delete(d.pending, msg)
	if h == nil { // never taken: it was received while the iterator was emptied
		return func() {}
	}
	return h.client.release
}

// keepAlive extends the ack wait of the held messages every third of AckWait, except for
// those whose handler makes no progress.
func (d *delivery) keepAlive(ctx context.Context) {
	wait.Every(ctx, d.how.AckWait/3, func() {
		for _, m := range d.working() {
			if err := m.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				d.bus.log.Warn("ack wait of a message not extended", "subject", m.Subject(), "err", err)
			}
		}
	})
}

// working returns the held messages, without those of a handler that makes no progress
// and those queued behind them.
func (d *delivery) working() []jetstream.Msg {
	d.mu.Lock()
	defer d.mu.Unlock()
	working := make([]jetstream.Msg, 0, len(d.pending))
	for m, h := range d.pending {
		stalled, first := h.checkStalled(d.how.StallTimeout, time.Now())
		if first {
			d.bus.log.Error("handler made no progress, its message will be redelivered", "subject", d.subject.Template(), "key", lastToken(m.Subject()))
		}
		if stalled && d.how.InOrder {
			d.stalled[m.Subject()] = true
		}
		if !stalled {
			working = append(working, m)
		}
	}
	return slices.DeleteFunc(working, func(m jetstream.Msg) bool { return d.stalled[m.Subject()] })
}

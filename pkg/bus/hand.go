package bus

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// hand is a message that was taken and is not settled.
type hand struct {
	line *line // to settle it on

	mu      sync.Mutex
	end     context.CancelCauseFunc // of its handler; nil before it begins
	latest  time.Time               // sign of progress of the handler
	waits   map[*until]struct{}     // what it waits for, see [Within]
	stalled bool
}

// until is when a wait ends at the latest.
type until struct{ time.Time }

type handKey struct{}

// errStalled is the cause with which the context of a handler ends that makes no
// progress.
var errStalled = &api.Error{Code: api.Unavailable, Message: "the handler made no progress", Next: "look for what it waited for in the log", RetryAfter: 1000}

// begin returns the context of the message's handler, which ends when the handler
// makes no progress. The caller calls the returned function when the handler is done.
func (h *hand) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(context.WithValue(ctx, handKey{}, h))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end, h.latest = end, time.Now()
	return ctx, func() { end(nil) }
}

// hangs says whether the handler has begun and made no progress for longer than
// patience, and ends its context the first time.
func (h *hand) hangs(patience time.Duration, now time.Time) (hangs, first bool) {
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

// Working says that the handler which was given ctx makes progress. One of a route
// with [Consuming.Patience] that does not say so for that long is taken for hanging:
// its context ends, the stream is told no longer that its message is in progress, and
// after AckWait another replica gets that. For any other context it does nothing.
func Working(ctx context.Context) {
	if h, ok := ctx.Value(handKey{}).(*hand); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.latest = time.Now()
	}
}

// Within says that the handler which was given ctx waits for something that takes d at
// most, until done is called: so long it is not taken for hanging. Several waits may
// be under way at once.
func Within(ctx context.Context, d time.Duration) (done func()) {
	h, ok := ctx.Value(handKey{}).(*hand)
	if !ok {
		return func() {}
	}
	wait := &until{time.Now().Add(d)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits == nil {
		h.waits = map[*until]struct{}{}
	}
	h.waits[wait] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waits, wait)
		h.latest = time.Now()
	}
}

// leave gives a message to another replica that came to a lane whose handler hangs. It
// may come back here first.
func (d *delivery) leave(msg jetstream.Msg) {
	defer d.forget(msg)()
	if err := msg.NakWithDelay(time.Second); err != nil {
		d.bus.log.Warn("cannot hand a message back, it comes after the ack wait", "subject", d.subject.Template(), "err", err)
	}
}

// forget says no more that a message is in good hands. The caller settles it
// and then calls the returned function: until then its line stays open.
func (d *delivery) forget(msg jetstream.Msg) (settled func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[msg]
	delete(d.held, msg)
	if h == nil { // never taken: it was on its way
		return func() {}
	}
	return h.line.release
}

// keepAlive tells the stream, every third of AckWait, that what is held is in
// good hands, unless its handler hangs.
func (d *delivery) keepAlive(ctx context.Context) {
	t := time.NewTicker(d.how.AckWait / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for _, m := range d.working() {
			if err := m.InProgress(); err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
				d.bus.log.Warn("cannot say that a message is in progress", "subject", m.Subject(), "err", err)
			}
		}
	}
}

// working is what is held, but for what a handler hangs on and what waits behind it.
func (d *delivery) working() []jetstream.Msg {
	d.mu.Lock()
	defer d.mu.Unlock()
	working := make([]jetstream.Msg, 0, len(d.held))
	for m, h := range d.held {
		hangs, first := h.hangs(d.how.Patience, time.Now())
		if first {
			d.bus.log.Error("a handler made no progress, its message goes to another replica", "subject", d.subject.Template(), "key", lastToken(m.Subject()))
		}
		if hangs && d.how.InOrder {
			d.hung[m.Subject()] = true
		}
		if !hangs {
			working = append(working, m)
		}
	}
	return slices.DeleteFunc(working, func(m jetstream.Msg) bool { return d.hung[m.Subject()] })
}

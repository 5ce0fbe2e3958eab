package provider

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// TokenTimeouts holds the limits on the wait for tokens. A zero duration is no limit.
type TokenTimeouts struct {
	First   time.Duration // from the request to the first content
	Between time.Duration // after the first content, from an event to the next one
}

type watchKey struct{}

// watch ends a call that receives no token for too long.
type watch struct {
	patience TokenTimeouts
	cancel   context.CancelCauseFunc
	passing  atomic.Bool // a piece is being passed on

	mu      sync.Mutex
	timer   *time.Timer
	begun   bool // content was received
	ended   bool
	content func() // called for the first content; nil afterwards
}

// stalledError is the cause with which [Watch] cancels a context.
type stalledError struct{ message string }

func (e *stalledError) Error() string { return e.message }

// Watch returns a context that is canceled when the adapter reports no content
// ([ContentReceived]), and after that no event ([EventReceived]), for longer than p allows.
// It calls content once, for the first content; content may be nil. The caller must call
// stop when the call is over. [StalledBy] reports whether the watch canceled the context.
func Watch(ctx context.Context, p TokenTimeouts, content func()) (watched context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{patience: p, cancel: cancel, content: content}
	w.rearm(p.First)
	return context.WithValue(ctx, watchKey{}, w), func() {
		w.mu.Lock()
		w.ended = true
		if w.timer != nil {
			w.timer.Stop()
		}
		w.mu.Unlock()
		cancel(nil)
	}
}

// EventReceived reports that an event of the answer was received. Adapters call it for each
// one. Before the first content it does not extend the wait: a provider sends the head of a
// stream at once, and may send events without content while it has not begun. Afterwards any
// event shows that the provider works: Anthropic sends pings while a model writes a long
// argument of a call. Without [Watch] it does nothing.
func EventReceived(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.begun {
			w.rearm(w.patience.Between)
		}
	}
}

// ContentReceived reports that the answer has content: text, reasoning or a piece of a tool
// call, unlike headers and events without any. Adapters call it at least for the first one.
// Without [Watch] it does nothing.
func ContentReceived(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok {
		w.mu.Lock()
		content := w.content
		w.begun, w.content = true, nil
		w.rearm(w.patience.Between)
		w.mu.Unlock()
		if content != nil {
			content()
		}
	}
}

// Passing reports whether a piece of the answer is being passed on to a caller. Meanwhile the
// call is not ended: a caller that receives slowly is no fault of the provider. Without
// [Watch] it does nothing.
func Passing(ctx context.Context, now bool) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok {
		w.passing.Store(now)
	}
}

// NotStreamed reports that the answer is not streamed, so there are no tokens to wait
// for. From then on only the deadline of the context bounds the call.
func NotStreamed(ctx context.Context) {
	if w, ok := ctx.Value(watchKey{}).(*watch); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.rearm(0)
	}
}

// rearm sets the timer. The caller must hold the lock, except before the watch is shared.
func (w *watch) rearm(d time.Duration) {
	switch {
	case d <= 0 || w.ended:
		if w.timer != nil {
			w.timer.Stop()
		}
	case w.timer == nil:
		w.timer = time.AfterFunc(d, w.expire)
	default:
		w.timer.Reset(d)
	}
}

func (w *watch) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if w.passing.Load() {
		w.rearm(w.patience.Between)
		return
	}
	e := &stalledError{fmt.Sprintf("no token received for %s", w.patience.First)}
	if w.begun {
		e.message = fmt.Sprintf("the answer stalled: no token received for %s", w.patience.Between)
	}
	w.cancel(e)
}

// StalledBy returns the error of a call that its watch ended, nil if it ended otherwise.
func StalledBy(watched context.Context, provider string) *Error {
	if e, ok := errors.AsType[*stalledError](context.Cause(watched)); ok {
		return &Error{Kind: Stalled, Provider: provider, Message: e.message}
	}
	return nil
}

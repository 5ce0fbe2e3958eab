// Package admission bounds the model calls of one router. A [Gate] lets a number of calls
// be in progress, lets others wait in order of their priority, and refuses calls when too
// many wait. A [Memory] refuses requests for which there is no memory.
//
// It decides only when a call begins. It makes no calls and has no part in the choice of
// a model. Its state is that of one process.
package admission

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Priority is the order in which waiting calls begin.
type Priority int

// The priorities. An Urgent call begins before all others, and a share of the slots is
// reserved for it, so that long calls cannot delay it. A Background call begins before
// a Normal one only if it has waited [Patience] longer.
const (
	Normal Priority = iota
	Urgent
	Background
)

// String returns "normal", "urgent" or "background".
func (p Priority) String() string { return [...]string{"normal", "urgent", "background"}[p] }

// Patience is how much longer than a Normal call a Background call waits. A finite time
// means that a permanent overload with Normal calls does not block Background calls.
const Patience = 5 * time.Second

// reservedShare is the part of the slots that only Urgent calls use: one in this many, at
// least one if there are two or more.
const reservedShare = 16

// Bounds of the time after which a refused caller is told to retry.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 30 * time.Second

	retryMemory = time.Second // of a request that [Memory] refuses
)

// Gate admits calls. Use [New] to create one. It is safe for concurrent use.
type Gate struct {
	slots, reserved, queue int
	now                    func() time.Time
	shed                   func(Priority)

	mu      sync.Mutex
	active  int
	waiting []*waiter     // in the order in which they begin
	typical time.Duration // moving average of the time that a call takes
}

// waiter is a call that waits.
type waiter struct {
	priority Priority
	due      time.Time  // order among calls that are not Urgent
	done     chan error // receives one value: nil when the call has its slot
}

// New returns a gate with a number of slots, at least 1, and of calls that may wait. now
// is the current time. shed is called for each refused call; it may be nil.
func New(slots, queue int, now func() time.Time, shed func(Priority)) *Gate {
	g := &Gate{slots: slots, queue: queue, now: now, shed: shed}
	if slots > 1 {
		g.reserved = max(1, slots/reservedShare)
	}
	return g
}

// Normal returns the number of slots of calls that are not Urgent.
func (g *Gate) Normal() int { return g.slots - g.reserved }

// Enter waits for a slot. After success the caller must call [Gate.Leave] once. The error
// is Unavailable with [api.ReasonBusy] if too many calls of at least this priority wait,
// and the context's cause if ctx ends first.
func (g *Gate) Enter(ctx context.Context, p Priority) error {
	g.mu.Lock()
	if g.hasSlot(p) && (len(g.waiting) == 0 || p == Urgent && g.waiting[0].priority != Urgent) {
		g.active++
		g.mu.Unlock()
		return nil
	}
	w := &waiter{priority: p, due: g.now(), done: make(chan error, 1)}
	if p == Background {
		w.due = w.due.Add(Patience)
	}
	at, _ := slices.BinarySearchFunc(g.waiting, w, order)
	for at < len(g.waiting) && order(g.waiting[at], w) == 0 { // after those of the same time
		at++
	}
	refused := w
	if at < g.queue {
		g.waiting = slices.Insert(g.waiting, at, w)
		refused = nil
		if last := len(g.waiting) - 1; last >= g.queue {
			refused = g.waiting[last]
			g.waiting = g.waiting[:last]
		}
	}
	if refused != nil {
		refused.done <- g.busy()
	}
	g.mu.Unlock()
	if refused != nil && g.shed != nil {
		g.shed(refused.priority)
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, w); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	} else if err := <-w.done; err == nil { // the slot came at the same time
		g.leave()
	}
	return context.Cause(ctx)
}

// Leave frees the slot of a call that took this long.
func (g *Gate) Leave(took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.typical == 0 {
		g.typical = took
	}
	g.typical += (took - g.typical) / 8
	g.leave()
}

// Load returns the number of calls in progress and of those that wait.
func (g *Gate) Load() (active, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.active, len(g.waiting)
}

// leave gives the slot to the first waiting call that may have it. The caller holds mu.
func (g *Gate) leave() {
	g.active--
	for len(g.waiting) > 0 && g.hasSlot(g.waiting[0].priority) {
		g.active++
		g.waiting[0].done <- nil
		g.waiting = slices.Delete(g.waiting, 0, 1)
	}
}

// hasSlot reports whether a call of this priority may begin. The caller holds mu.
func (g *Gate) hasSlot(p Priority) bool {
	if p == Urgent {
		return g.active < g.slots
	}
	return g.active < g.Normal()
}

// busy returns the error for a call that cannot wait. The caller holds mu.
func (g *Gate) busy() error {
	retry := min(max(g.typical*time.Duration(len(g.waiting)+1)/time.Duration(g.slots), minRetry), maxRetry)
	return &api.Error{
		Code: api.Unavailable, Reason: api.ReasonBusy,
		Message: fmt.Sprintf("the router is busy: %d model calls are in progress and %d wait", g.active, len(g.waiting)),
		Next:    "try again, or start more replicas of inference-router", RetryAfter: retry.Milliseconds(),
	}
}

// order compares waiting calls: Urgent ones first, then by the time when they are due.
func order(a, b *waiter) int {
	if (a.priority == Urgent) != (b.priority == Urgent) {
		if a.priority == Urgent {
			return -1
		}
		return 1
	}
	return a.due.Compare(b.due)
}

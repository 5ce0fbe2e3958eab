// Package health decides from the results of earlier attempts whether a model of a
// provider may be called now: a circuit breaker and a time before which the provider asks
// not to be called, for each route, and a budget of retries for each provider
// (docs/reference/inference-router.md, Attempts).
//
// It must not do I/O or read a clock: the caller supplies the time and shares the [State]
// of a route with the other replicas. Methods of [Tracker] are safe for concurrent use.
//
// failsafe-go has both parts and does not fit: its breaker reads the clock of the machine
// and has no state that can be shared, and its budget limits the share of retries among
// the executions in progress, so it does not bound the attempts of an outage by the
// number of calls.
package health

import (
	"sync"
	"time"
)

// The rules of a breaker.
const (
	MaxFailures  = 5                // consecutive failures that open it
	Window       = 60 * time.Second // within which they have to fall
	OpenFor      = 60 * time.Second // how long it is open, unless a setting has another value
	ProbeFor     = 60 * time.Second // after which a probe without a result counts as lost
	probeAgain   = 5 * time.Second  // the longest wait for the probe of another caller
	MaxNotBefore = time.Hour        // the longest wait that one answer of a provider sets for all callers
	shareWait    = time.Second      // the shortest wait, and the smallest change of it, that is worth sharing
)

// Route is what a breaker is for: one model of one provider.
type Route struct{ Provider, Model string }

// Result is what an attempt says about its route.
type Result int

// The results.
const (
	Unknown  Result = iota // nothing: it was not made, or its caller left
	Answered               // the provider answered, with a completion or a refusal
	Failed                 // a network error, a timeout or an error of the server
)

// State is the part of the health of a route that replicas share. A zero time is none.
type State struct {
	OpenUntil  time.Time // zero: the breaker is closed; past: half-open
	ProbeUntil time.Time // while half-open, the time until which one caller has the probe
	NotBefore  time.Time // the provider asks not to be called before
}

// Phase is the phase of a breaker.
type Phase int

// The phases.
const (
	Closed Phase = iota
	HalfOpen
	Open
)

// String returns "closed", "half-open" or "open".
func (p Phase) String() string {
	switch p {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
	}
	return "open"
}

// Phase returns the phase at a time.
func (s State) Phase(now time.Time) Phase {
	switch {
	case s.OpenUntil.IsZero():
		return Closed
	case now.Before(s.OpenUntil):
		return Open
	}
	return HalfOpen
}

// Blocked returns how long the breaker refuses all attempts from now on, and 0 if it may
// admit one.
func (s State) Blocked(now time.Time) time.Duration {
	switch s.Phase(now) {
	case Open:
		return s.OpenUntil.Sub(now)
	case HalfOpen:
		return min(max(0, s.ProbeUntil.Sub(now)), probeAgain)
	case Closed:
	}
	return 0
}

// Permit allows one attempt. The zero value allows none.
type Permit struct {
	Route Route
	Probe bool // the only attempt until it has ended

	term uint32 // of the breaker when it was given; 0 for none
}

// Tracker holds the health of all routes and the budgets of all providers of a process.
type Tracker struct {
	openFor time.Duration

	mu      sync.Mutex
	routes  map[Route]*breaker
	budgets map[string]*budget
}

// New returns a Tracker whose breakers are open for a time.
func New(openFor time.Duration) *Tracker {
	return &Tracker{openFor: openFor, routes: map[Route]*breaker{}, budgets: map[string]*budget{}}
}

// State returns the state of a route.
func (t *Tracker) State(r Route) State {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.routes[r]; b != nil {
		return b.State
	}
	return State{}
}

// Begin admits an attempt, which [Tracker.End] has to end. It returns false if the route
// is blocked or may not be called yet. A half-open breaker admits one attempt, the probe.
func (t *Tracker) Begin(r Route, now time.Time) (Permit, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.breaker(r)
	if now.Before(b.NotBefore) || b.Blocked(now) > 0 {
		return Permit{}, false
	}
	p := Permit{Route: r, Probe: b.Phase(now) == HalfOpen}
	if p.Probe {
		b.change(b.OpenUntil, now.Add(ProbeFor))
	}
	p.term = b.term
	return p, true
}

// End applies the result of an attempt, and the wait that the answer asks for, if any. It
// returns true if the state to share has changed. The result of an attempt that began
// before the breaker last changed is ignored, and so is a permit that has ended.
func (t *Tracker) End(p *Permit, result Result, wait time.Duration, now time.Time) (changed bool) {
	term := p.term
	if p.term = 0; term == 0 {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.breaker(p.Route)
	if at := now.Add(min(wait, MaxNotBefore)); wait > 0 && at.After(b.NotBefore) {
		b.NotBefore = at
		if changed = wait >= shareWait && at.Sub(b.shared) >= shareWait; changed {
			b.shared = at
		}
	}
	switch {
	case b.term != term:
		return changed
	case p.Probe && result == Unknown:
		b.change(b.OpenUntil, time.Time{}) // the next caller has the probe
	case result == Failed && (p.Probe || b.fail(now)):
		b.change(now.Add(t.openFor), time.Time{})
	case p.Probe:
		b.change(time.Time{}, time.Time{})
	case result == Answered:
		b.failures = 0
	}
	return changed || b.term != term
}

// Apply replaces the state of a route by that of another replica, which was stored with a
// revision. It returns false for a state that is older than the one applied or stored
// last, which it ignores. A wait that a provider asked for is not shortened.
func (t *Tracker) Apply(r Route, s State, revision uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.breaker(r)
	if revision <= b.revision {
		return false
	}
	b.revision = revision
	if s.NotBefore.After(b.NotBefore) {
		b.NotBefore, b.shared = s.NotBefore, s.NotBefore
	}
	if !s.OpenUntil.Equal(b.OpenUntil) || !s.ProbeUntil.Equal(b.ProbeUntil) {
		b.change(s.OpenUntil, s.ProbeUntil)
	}
	return true
}

// Revision returns the revision of the state of a route that was applied or stored last.
func (t *Tracker) Revision(r Route) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.breaker(r).revision
}

// Stored records the revision under which the state of a route was stored.
func (t *Tracker) Stored(r Route, revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.breaker(r)
	b.revision = max(b.revision, revision)
}

// Each calls f with the state of each route that has been called.
func (t *Tracker) Each(f func(Route, State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, b := range t.routes {
		f(r, b.State)
	}
}

// breaker returns the breaker of a route. The caller must hold the lock.
func (t *Tracker) breaker(r Route) *breaker {
	b := t.routes[r]
	if b == nil {
		b = &breaker{term: 1}
		t.routes[r] = b
	}
	return b
}

// breaker is the health of one route.
type breaker struct {
	State
	term     uint32 // increases with each change of the breaker
	failures int    // consecutive ones while closed
	times    [MaxFailures]time.Time
	shared   time.Time // the NotBefore that the other replicas have
	revision uint64    // of the state that was applied or stored last
}

// fail counts a failure and reports whether it opens the breaker.
func (b *breaker) fail(now time.Time) bool {
	b.times[b.failures%MaxFailures] = now
	b.failures++
	first := b.times[b.failures%MaxFailures] // of the last MaxFailures
	return b.failures >= MaxFailures && now.Sub(first) <= Window
}

// change changes the phase of the breaker.
func (b *breaker) change(openUntil, probeUntil time.Time) {
	b.OpenUntil, b.ProbeUntil = openUntil, probeUntil
	b.term++
	b.failures = 0
}

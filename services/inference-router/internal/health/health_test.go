package health_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/services/inference-router/internal/health"
)

var (
	start = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	route = health.Route{Provider: "p", Model: "m"}
)

// attempt makes one attempt at a time and reports whether it was admitted.
func attempt(t *health.Tracker, r health.Route, result health.Result, now time.Time) bool {
	p, ok := t.Begin(r, now)
	if ok {
		t.End(&p, result, 0, now)
	}
	return ok
}

// TestBreakerOpensAndCloses checks each rule of the breaker with the clock of the caller.
func TestBreakerOpensAndCloses(t *testing.T) {
	t.Parallel()
	type step struct {
		at     time.Duration
		result health.Result
		admit  bool
	}
	const a, f, u = health.Answered, health.Failed, health.Unknown
	const s = time.Second
	for name, steps := range map[string][]step{
		"five failures":              {{0, f, true}, {s, f, true}, {2 * s, f, true}, {3 * s, f, true}, {4 * s, f, true}, {5 * s, a, false}, {63 * s, a, false}},
		"four failures":              {{0, f, true}, {s, f, true}, {2 * s, f, true}, {3 * s, f, true}, {4 * s, a, true}},
		"an answer between":          {{0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {0, a, true}, {0, f, true}, {0, a, true}},
		"nothing between":            {{0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {0, u, true}, {0, f, true}, {0, a, false}},
		"five in a minute":           {{0, f, true}, {15 * s, f, true}, {30 * s, f, true}, {45 * s, f, true}, {60 * s, f, true}, {61 * s, a, false}},
		"five in more than a minute": {{0, f, true}, {15 * s, f, true}, {30 * s, f, true}, {45 * s, f, true}, {61 * s, f, true}, {62 * s, a, true}},
		"the last five in a minute":  {{0, f, true}, {50 * s, f, true}, {60 * s, f, true}, {70 * s, f, true}, {80 * s, f, true}, {110 * s, f, true}, {111 * s, a, false}},
		"the probe succeeds":         {{0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {60 * s, a, true}, {60 * s, f, true}, {60 * s, a, true}},
		"the probe fails":            {{0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {60 * s, f, true}, {61 * s, a, false}, {119 * s, a, false}, {120 * s, a, true}, {120 * s, a, true}},
		"the probe is not made":      {{0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {0, f, true}, {60 * s, u, true}, {60 * s, a, true}, {60 * s, f, true}, {60 * s, a, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := health.New(health.OpenFor)
			for i, st := range steps {
				if got := attempt(tr, route, st.result, start.Add(st.at)); got != st.admit {
					t.Fatalf("step %d at %s: admitted %t, want %t", i, st.at, got, st.admit)
				}
			}
		})
	}
}

// open opens the breaker of route at start.
func open(t *testing.T) *health.Tracker {
	t.Helper()
	tr := health.New(health.OpenFor)
	for range health.MaxFailures {
		attempt(tr, route, health.Failed, start)
	}
	if got := tr.State(route).Phase(start); got != health.Open {
		t.Fatalf("after %d failures the breaker is %s", health.MaxFailures, got)
	}
	return tr
}

// TestOneProbe checks that a half-open breaker admits one attempt until that has ended or
// its time is over, and that other routes are not affected.
func TestOneProbe(t *testing.T) {
	t.Parallel()
	tr := open(t)
	at := start.Add(health.OpenFor)
	probe, ok := tr.Begin(route, at)
	if !ok || !probe.Probe {
		t.Fatalf("got %+v, %t; want the probe", probe, ok)
	}
	if p, ok := tr.Begin(route, at.Add(time.Second)); ok {
		t.Errorf("a second attempt was admitted during the probe: %+v", p)
	}
	if p, ok := tr.Begin(health.Route{Provider: "p", Model: "other"}, at); !ok || p.Probe {
		t.Errorf("another route: got %+v, %t", p, ok)
	}
	late, ok := tr.Begin(route, at.Add(health.ProbeFor))
	if !ok || !late.Probe {
		t.Fatalf("after the time of the lost probe: got %+v, %t; want another probe", late, ok)
	}
	if tr.End(&probe, health.Answered, 0, at.Add(health.ProbeFor)) {
		t.Error("the result of the lost probe changed the breaker")
	}
	if !tr.End(&late, health.Answered, 0, at.Add(health.ProbeFor)) || tr.State(route).Phase(at.Add(health.ProbeFor)) != health.Closed {
		t.Errorf("after the probe's success: %+v, want it closed", tr.State(route))
	}
}

// TestLateResults checks that attempts that began before the breaker changed do not change
// it again.
func TestLateResults(t *testing.T) {
	t.Parallel()
	tr := health.New(health.OpenFor)
	var old []health.Permit
	for range 2 * health.MaxFailures {
		p, _ := tr.Begin(route, start)
		old = append(old, p)
	}
	changes := 0
	for i := range old[:health.MaxFailures+1] {
		if tr.End(&old[i], health.Failed, 0, start) {
			changes++
		}
	}
	tr.End(&old[health.MaxFailures+1], health.Answered, 0, start)
	if changes != 1 || tr.State(route).Phase(start) != health.Open {
		t.Errorf("%d changes to %+v, want one, to open", changes, tr.State(route))
	}
	at := start.Add(health.OpenFor)
	if !attempt(tr, route, health.Answered, at) {
		t.Fatal("the probe was refused")
	}
	for i := range old {
		tr.End(&old[i], health.Failed, 0, at)
	}
	if got := tr.State(route).Phase(at); got != health.Closed {
		t.Errorf("old failures after the recovery: the breaker is %s, want closed", got)
	}
}

// TestNotBefore checks that the wait that a provider asks for holds for all callers, is
// never shortened, and does not open the breaker.
func TestNotBefore(t *testing.T) {
	t.Parallel()
	tr := health.New(health.OpenFor)
	for _, wait := range []time.Duration{20 * time.Second, 5 * time.Second, 10 * time.Second, time.Second, time.Second, time.Second} {
		p, ok := tr.Begin(route, start)
		if ok {
			tr.End(&p, health.Answered, wait, start)
		}
	}
	if attempt(tr, route, health.Answered, start.Add(20*time.Second-1)) {
		t.Error("an attempt before the time was admitted")
	}
	if !attempt(tr, route, health.Answered, start.Add(20*time.Second)) {
		t.Error("an attempt at the time was refused")
	}
	p, _ := tr.Begin(route, start.Add(time.Minute))
	tr.End(&p, health.Answered, 24*time.Hour, start.Add(time.Minute))
	if got, want := tr.State(route).NotBefore, start.Add(time.Minute+health.MaxNotBefore); !got.Equal(want) {
		t.Errorf("a day: got %s, want %s", got, want)
	}
}

// TestBurstOfRefusals checks that many answers with nearly the same wait are one change to
// share.
func TestBurstOfRefusals(t *testing.T) {
	t.Parallel()
	tr := health.New(health.OpenFor)
	permits := make([]health.Permit, 100)
	for i := range permits {
		permits[i], _ = tr.Begin(route, start)
	}
	changes := 0
	for i := range permits {
		if tr.End(&permits[i], health.Answered, 20*time.Second, start.Add(time.Duration(i)*time.Millisecond)) {
			changes++
		}
	}
	if want := start.Add(20*time.Second + 99*time.Millisecond); changes != 1 || !tr.State(route).NotBefore.Equal(want) {
		t.Errorf("%d changes, not before %s; want one, and %s", changes, tr.State(route).NotBefore, want)
	}
}

// TestApply checks that the state of another replica is taken over, and an old one is not.
func TestApply(t *testing.T) {
	t.Parallel()
	tr := open(t)
	tr.Stored(route, 7)
	opened := tr.State(route)
	tr.Apply(route, health.State{}, 7)
	if got := tr.State(route); got != opened {
		t.Errorf("a state that is not newer: got %+v, want %+v", got, opened)
	}
	tr.Apply(route, health.State{NotBefore: start.Add(time.Minute)}, 8)
	tr.Apply(route, health.State{NotBefore: start.Add(time.Second)}, 9)
	if got, want := tr.State(route), (health.State{NotBefore: start.Add(time.Minute)}); got != want {
		t.Errorf("a newer state: got %+v, want %+v", got, want)
	}
	p, _ := tr.Begin(route, start.Add(time.Minute))
	tr.Apply(route, health.State{OpenUntil: start.Add(time.Hour)}, 10)
	tr.End(&p, health.Answered, 0, start.Add(time.Minute))
	if got := tr.State(route).Phase(start.Add(time.Minute)); got != health.Open {
		t.Errorf("opened by another replica during an attempt: got %s, want open", got)
	}
}

// model is the specification of a breaker by the list of all results since it last
// changed.
type model struct {
	failures  []time.Time // consecutive
	openUntil time.Time
	probing   bool
	probeEnds time.Time
}

// TestModel runs concurrent attempts in random order and compares the breaker with its
// specification.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type running struct {
			permit health.Permit
			probe  bool
			valid  bool // the breaker has not changed since it began
		}
		tr, m, now := health.New(health.OpenFor), model{}, start
		var attempts []*running
		changed := func() {
			m.failures = nil
			for _, a := range attempts {
				a.valid = false
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "seconds")) * time.Second)
			},
			"begin": func(t *rapid.T) {
				p, ok := tr.Begin(route, now)
				half := !m.openUntil.IsZero() && !now.Before(m.openUntil)
				want := m.openUntil.IsZero() || half && (!m.probing || !now.Before(m.probeEnds))
				if ok != want || ok && p.Probe != half {
					t.Fatalf("admitted %t with %+v, want %t, probe %t", ok, p, want, half)
				}
				if !ok {
					return
				}
				if half {
					changed()
					m.probing, m.probeEnds = true, now.Add(health.ProbeFor)
				}
				attempts = append(attempts, &running{p, half, true})
			},
			"end": func(t *rapid.T) {
				if len(attempts) == 0 {
					t.Skip("none is running")
				}
				i := rapid.IntRange(0, len(attempts)-1).Draw(t, "attempt")
				a := attempts[i]
				attempts = slices.Delete(attempts, i, i+1)
				result := rapid.SampledFrom([]health.Result{health.Unknown, health.Answered, health.Failed, health.Failed, health.Failed}).Draw(t, "result")
				before := m
				switch {
				case !a.valid:
				case a.probe:
					changed()
					m.probing = false
					switch result {
					case health.Answered:
						m.openUntil = time.Time{}
					case health.Failed:
						m.openUntil = now.Add(health.OpenFor)
					case health.Unknown:
					}
				case result == health.Answered:
					m.failures = nil
				case result == health.Failed:
					m.failures = append(m.failures, now)
					if n := len(m.failures); n >= health.MaxFailures && now.Sub(m.failures[n-health.MaxFailures]) <= health.Window {
						changed()
						m.openUntil = now.Add(health.OpenFor)
					}
				}
				want := a.valid && (a.probe || !before.openUntil.Equal(m.openUntil))
				if got := tr.End(&a.permit, result, 0, now); got != want {
					t.Fatalf("changed %t, want %t", got, want)
				}
				if tr.End(&a.permit, health.Failed, time.Hour, now) {
					t.Fatal("the attempt ended twice")
				}
			},
		})
	})
}

// TestBudget checks that the attempts at a provider are at most 1.1 times the calls to it
// and the burst more, in any order of calls and retries, and that a budget is not smaller
// than that.
func TestBudget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr := health.New(health.OpenFor)
		calls, retries, denied := 0, 0, int64(0)
		left := 10 * health.Burst
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "call") {
				tr.Call("p")
				calls++
				left = min(left+1, 10*health.Burst)
				continue
			}
			ok := tr.Retry("p")
			if ok != (left >= 10) {
				t.Fatalf("retry %t with %d tenths left", ok, left)
			}
			if ok && rapid.Bool().Draw(t, "not made") {
				tr.Return("p")
			} else if ok {
				retries++
				left -= 10
			} else {
				denied++
			}
		}
		if 10*retries > calls+10*health.Burst {
			t.Fatalf("%d retries of %d calls", retries, calls)
		}
		tr.Denied(func(_ string, n int64) {
			if n != denied {
				t.Fatalf("%d denied, want %d", n, denied)
			}
		})
		if !tr.Retry("another") {
			t.Fatal("the budget of one provider is used up by another")
		}
	})
}

// TestNoAllocations checks that a healthy attempt allocates nothing.
func TestNoAllocations(t *testing.T) {
	tr := health.New(health.OpenFor)
	if n := testing.AllocsPerRun(100, func() {
		_ = tr.State(route).Blocked(start)
		tr.Call("p")
		attempt(tr, route, health.Answered, start)
	}); n != 0 {
		t.Errorf("%.0f allocations, want none", n)
	}
}

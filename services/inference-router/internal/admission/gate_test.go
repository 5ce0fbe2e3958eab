package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/admission"
)

// enter begins a call on a goroutine of its own and returns the channel of its result.
func enter(ctx context.Context, g *admission.Gate, p admission.Priority) chan error {
	result := make(chan error, 1)
	go func() { result <- g.Enter(ctx, p) }()
	synctest.Wait()
	return result
}

// began reports whether the call has its slot, and fails the test for an error.
func began(t *testing.T, result chan error) bool {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-result:
		if err != nil {
			t.Fatal(err)
		}
		return true
	default:
		return false
	}
}

// TestOrder checks the order in which waiting calls begin: urgent ones first, and a
// background call after the normal calls of the next five seconds, but not after later
// ones.
func TestOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(1, 10, time.Now, nil)
		if !began(t, enter(t.Context(), g, admission.Normal)) {
			t.Fatal("the first call waits")
		}
		calls := map[string]chan error{"background": enter(t.Context(), g, admission.Background)}
		time.Sleep(admission.Patience - time.Second) //nolint:forbidigo // in a synctest bubble
		calls["early"] = enter(t.Context(), g, admission.Normal)
		time.Sleep(2 * time.Second) //nolint:forbidigo // in a synctest bubble
		calls["late"] = enter(t.Context(), g, admission.Normal)
		calls["urgent"] = enter(t.Context(), g, admission.Urgent)
		for _, want := range []string{"urgent", "early", "background", "late"} {
			g.Leave(time.Second)
			for name, c := range calls {
				if got := began(t, c); got != (name == want) {
					t.Fatalf("%s began: %t, want that %s is the only one", name, got, want)
				}
			}
			delete(calls, want)
		}
	})
}

// TestReserved checks that calls that are not urgent leave a slot free for an urgent one.
func TestReserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := admission.New(2, 10, time.Now, nil)
		first, second := enter(t.Context(), g, admission.Normal), enter(t.Context(), g, admission.Normal)
		if !began(t, first) || began(t, second) {
			t.Fatal("want one call in progress and one waiting")
		}
		if !began(t, enter(t.Context(), g, admission.Urgent)) {
			t.Fatal("an urgent call does not get the reserved slot")
		}
		g.Leave(time.Second)
		if began(t, second) {
			t.Fatal("a normal call began in the last slot")
		}
		g.Leave(time.Second)
		if !began(t, second) {
			t.Fatal("the waiting call did not begin")
		}
	})
}

// TestShed checks which calls are refused when the queue is full, and the error.
func TestShed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shed []admission.Priority
		g := admission.New(1, 2, time.Now, func(p admission.Priority) { shed = append(shed, p) })
		if err := g.Enter(t.Context(), admission.Normal); err != nil {
			t.Fatal(err)
		}
		background := enter(t.Context(), g, admission.Background)
		normal := enter(t.Context(), g, admission.Normal)
		err := g.Enter(t.Context(), admission.Background)
		if api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonBusy || api.Wire(err).RetryAfter < 100 {
			t.Errorf("a call of the lowest priority: got %v, want busy with a time to wait", err)
		}
		urgent := enter(t.Context(), g, admission.Urgent)
		if err := <-background; api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("the call that was replaced: got %v, want busy", err)
		}
		if want := []admission.Priority{admission.Background, admission.Background}; !slices.Equal(shed, want) {
			t.Errorf("refused %v, want %v", shed, want)
		}
		for _, next := range []chan error{urgent, normal} {
			g.Leave(time.Second)
			if !began(t, next) {
				t.Fatal("a waiting call did not begin")
			}
		}
		g.Leave(time.Second)
		if active, waiting := g.Load(); active != 0 || waiting != 0 {
			t.Errorf("%d calls in progress and %d waiting, want none", active, waiting)
		}
	})
}

// TestNoQueue checks a gate in which no call waits.
func TestNoQueue(t *testing.T) {
	t.Parallel()
	g := admission.New(1, 0, time.Now, nil)
	if err := g.Enter(t.Context(), admission.Normal); err != nil {
		t.Fatal(err)
	}
	if err := g.Enter(t.Context(), admission.Urgent); api.ReasonOf(err) != api.ReasonBusy {
		t.Errorf("got %v, want busy", err)
	}
}

// TestLoad makes calls of random lengths and priorities, some of which are canceled while
// they wait. The number of calls in progress never exceeds the slots, calls that are not
// urgent leave the reserved slots free, and no slot is lost.
func TestLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const slots, calls = 32, 2000
		g := admission.New(slots, 64, time.Now, nil)
		var mu sync.Mutex
		var active, others, most, refused, canceled int
		var wg sync.WaitGroup
		random := rand.New(rand.NewPCG(1, 2))
		for range calls {
			p := admission.Priority(random.IntN(3))
			length, limit := time.Duration(random.IntN(300))*time.Millisecond, time.Duration(random.IntN(800))*time.Millisecond
			time.Sleep(time.Duration(random.IntN(6)) * time.Millisecond) //nolint:forbidigo // in a synctest bubble
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				err := g.Enter(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					canceled++
					return
				case err != nil:
					refused++
					return
				}
				count := func(n int) {
					if active += n; p != admission.Urgent {
						others += n
					}
				}
				count(1)
				most = max(most, active)
				if active > slots || others > slots-slots/16 {
					t.Errorf("%d calls in progress, %d of them not urgent", active, others)
				}
				mu.Unlock()
				time.Sleep(length) //nolint:forbidigo // in a synctest bubble
				mu.Lock()
				count(-1)
				g.Leave(length)
			})
		}
		wg.Wait()
		if active, waiting := g.Load(); active != 0 || waiting != 0 {
			t.Errorf("%d calls in progress and %d waiting at the end, want none", active, waiting)
		}
		if most != slots || refused == 0 || canceled == 0 {
			t.Errorf("at most %d calls in progress, %d refused, %d canceled: the load does not reach every case", most, refused, canceled)
		}
	})
}

// TestEnterAllocations checks that a call that need not wait costs no allocation.
func TestEnterAllocations(t *testing.T) {
	g := admission.New(2, 2, time.Now, nil)
	if got := testing.AllocsPerRun(100, func() {
		if err := g.Enter(t.Context(), admission.Normal); err != nil {
			t.Error(err)
		}
		g.Leave(0)
	}); got != 0 {
		t.Errorf("got %g allocations, want none", got)
	}
}

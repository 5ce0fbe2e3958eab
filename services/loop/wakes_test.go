package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// woken is a wake queue whose handler records the wakes, and can block or fail.
type woken struct {
	t      *testing.T
	change func(bus.Entry[api.Wake])
	cancel context.CancelFunc
	q      *wakeQueue

	mu    sync.Mutex
	began []string
	fails map[string]int           // by key, the number of errors before a success
	holds map[string]chan struct{} // by key
}

// woke runs a test in which time passes only while all goroutines wait.
func woke(t *testing.T, test func(w *woken)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &woken{t: t, fails: map[string]int{}, holds: map[string]chan struct{}{}}
		ctx, cancel := context.WithCancel(t.Context())
		w.q = newWakeQueue(w.handle)
		w.change, w.cancel = func(e bus.Entry[api.Wake]) { w.q.changed(ctx, e) }, cancel
		test(w)
		cancel()
		w.q.workers.Wait()
		if len(w.q.busy) != 0 || w.q.running != 0 {
			t.Errorf("after the end %d agents are busy and %d workers run, want none", len(w.q.busy), w.q.running)
		}
	})
}

func (w *woken) handle(e bus.Entry[api.Wake]) error {
	w.mu.Lock()
	w.began = append(w.began, fmt.Sprintf("%s@%d", e.Key, e.Revision))
	w.fails[e.Key]--
	fails, hold := w.fails[e.Key] >= 0, w.holds[e.Key]
	w.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if fails {
		return errors.New("not now")
	}
	return nil
}

func (w *woken) put(key string, revision uint64) {
	w.change(bus.Entry[api.Wake]{Key: key, Revision: revision})
}

func (w *woken) del(key string, revision uint64) {
	w.change(bus.Entry[api.Wake]{Key: key, Revision: revision, Deleted: true})
}

// hold makes the handler of a key wait until it is closed.
func (w *woken) hold(key string, until chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds[key] = until
}

// busy adds two wakes of ada. The first is in progress until free is closed.
func (w *woken) busy() (free chan struct{}) {
	w.t.Helper()
	free = make(chan struct{})
	w.hold("wake.ada.a", free)
	w.put("wake.ada.a", 1)
	w.put("wake.ada.b", 2)
	w.want("wake.ada.a@1")
	return free
}

// take returns the wakes whose handling has begun since the last call.
func (w *woken) take() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.began
	w.began = nil
	return began
}

func (w *woken) want(want ...string) {
	w.t.Helper()
	if got := w.take(); !slices.Equal(got, want) {
		w.t.Errorf("handled %v, want %v", got, want)
	}
}

// TestWakesOfAnAgentHaveAnOrder checks that wakes of one agent are handled one after the
// other, those of other agents concurrently, and none twice.
func TestWakesOfAnAgentHaveAnOrder(t *testing.T) {
	t.Parallel()
	woke(t, func(w *woken) {
		free := w.busy()
		w.put("wake.ada.c", 3)
		w.put("wake.bob.a", 4)
		w.want("wake.bob.a@4")
		close(free)
		w.want("wake.ada.b@2", "wake.ada.c@3")
		if len(w.q.waiting) != 0 {
			w.t.Errorf("%v still wait, want none", w.q.waiting)
		}
	})
}

// TestWakesAtOnce checks the number of wakes that are handled concurrently.
func TestWakesAtOnce(t *testing.T) {
	t.Parallel()
	woke(t, func(w *woken) {
		free := make(chan struct{})
		const agents = 3 * wakesAtOnce
		for i := range agents {
			key := api.WakeKey(fmt.Sprint("agent-", i), "alarm")
			w.hold(key, free)
			w.put(key, uint64(i+1))
		}
		if n := len(w.take()); n != wakesAtOnce {
			w.t.Errorf("%d wakes are in progress, want %d", n, wakesAtOnce)
		}
		close(free)
		if n := len(w.take()); n != agents-wakesAtOnce {
			w.t.Errorf("%d wakes were handled later, want %d", n, agents-wakesAtOnce)
		}
	})
}

// TestWakesOfOthers checks that a wake which another replica has deleted is not handled,
// and that a key which was created again is.
func TestWakesOfOthers(t *testing.T) {
	t.Parallel()
	woke(t, func(w *woken) {
		free := w.busy()
		w.put("wake.ada.c", 3)
		w.del("wake.ada.b", 4)
		w.del("wake.ada.a", 5)
		w.put("wake.ada.a", 6)
		close(free)
		w.want("wake.ada.c@3", "wake.ada.a@6")
	})
}

// TestWakesAreRetried checks that a wake which fails is handled again after a pause, in
// which its agent's next wake waits and those of other agents do not.
func TestWakesAreRetried(t *testing.T) {
	t.Parallel()
	woke(t, func(w *woken) {
		w.fails["wake.ada.a"] = 2
		w.put("wake.ada.a", 1)
		w.put("wake.ada.b", 2)
		w.want("wake.ada.a@1")
		w.put("wake.bob.a", 3)
		w.want("wake.bob.a@3")
		<-time.After(wakeRetry)
		w.want("wake.ada.a@1")
		<-time.After(wakeRetry)
		w.want("wake.ada.a@1", "wake.ada.b@2")
	})
}

// TestWakesEnd checks that no wake is begun after the end of the service.
func TestWakesEnd(t *testing.T) {
	t.Parallel()
	woke(t, func(w *woken) {
		free := w.busy()
		w.cancel()
		w.put("wake.bob.a", 3)
		close(free)
		w.want()
	})
}

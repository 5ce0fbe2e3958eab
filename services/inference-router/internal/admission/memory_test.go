package admission_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/admission"
)

// TestMemory checks which requests a bound of ten small ones admits, and in which order
// others wait.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const small = admission.SmallRequest
		refused := 0
		m := admission.NewMemory(10*small, func() { refused++ })
		reserve := func(n int64, want bool) admission.Reservation {
			t.Helper()
			before := refused
			began := time.Now()
			r, err := m.Reserve(t.Context(), n)
			if took := time.Since(began); want && took != 0 || !want && took != admission.MemoryPatience {
				t.Errorf("%d bytes: took %s", n, took)
			}
			if (err == nil) != want || refused-before == 1 == want {
				t.Errorf("%d bytes: got error %v and %d refusals, want to be admitted: %t", n, err, refused-before, want)
			}
			if err != nil && (api.ReasonOf(err) != api.ReasonBusy || api.Wire(err).RetryAfter == 0) {
				t.Errorf("%d bytes: got %v, want busy with a time to wait", n, err)
			}
			return r
		}
		alone := reserve(20*small, true)
		reserve(small+1, false)
		uncounted := reserve(small, true)
		uncounted.Free()
		alone.Free()
		alone.Free()
		first := reserve(6*small, true)
		reserve(6*small, false)
		first.Shrink(4 * small)
		first.Shrink(5 * small)
		second := reserve(6*small, true)
		reserve(small+1, false)

		began := time.Now()
		waited := make(chan time.Duration, 2)
		for _, n := range []int64{9 * small, 2 * small} {
			go func() {
				r, err := m.Reserve(t.Context(), n)
				if err != nil {
					t.Error(err)
					return
				}
				waited <- time.Since(began)
				r.Free()
			}()
			synctest.Wait()
		}
		<-time.After(time.Second)
		second.Free() // enough for the second one that waits, whose turn it is not
		<-time.After(time.Second)
		first.Free()
		for range 2 {
			if took := <-waited; took != 2*time.Second {
				t.Errorf("a request that waits: got memory after %s, want 2s", took)
			}
		}
		whole := reserve(10*small, true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if _, err := m.Reserve(ctx, 2*small); api.ReasonOf(err) != api.ReasonBusy || time.Since(began) != time.Second {
			t.Errorf("without memory, until the context ends: got %v after %s, want busy after 1s", err, time.Since(began))
		}
		whole.Free()
	})
}

// TestMemoryPart checks that the requests of a part leave the rest to the others, also while
// they wait, and count for the whole.
func TestMemoryPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const small = admission.SmallRequest
		m := admission.NewMemory(10*small, func() {})
		part := m.Part(5 * small)
		reserve := func(m *admission.Memory, n int64) admission.Reservation {
			t.Helper()
			r, err := m.Reserve(t.Context(), n)
			if err != nil {
				t.Error(err)
			}
			return r
		}
		began := time.Now()
		first := reserve(part, 5*small)
		waited := make(chan time.Duration, 1)
		go func() {
			second := reserve(part, 2*small)
			waited <- time.Since(began)
			second.Free()
		}()
		synctest.Wait()
		other := reserve(m, 5*small)
		if took := time.Since(began); took != 0 {
			t.Errorf("a request that is not in the part waited for %s", took)
		}
		<-time.After(time.Second)
		first.Shrink(3 * small)
		if took := <-waited; took != time.Second {
			t.Errorf("a request of the part: got memory after %s, want 1s", took)
		}
		first.Free()
		whole := reserve(m, 5*small)
		if _, err := part.Reserve(t.Context(), 2*small); api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("a request of the part without memory in the whole: got %v, want busy", err)
		}
		other.Free()
		whole.Free()
		large := reserve(part, 20*small)
		if r, err := m.Reserve(t.Context(), 2*small); api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("beside a request that is larger than the whole: got %v, %v, want busy", r, err)
		}
		large.Free()
		all := reserve(m, 10*small)
		all.Free()
	})
}

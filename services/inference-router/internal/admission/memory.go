package admission

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/anima-run/anima/pkg/api"
)

// SmallRequest is the size, in bytes, up to which [Memory] does not count a request: the
// slots and the queue of the [Gate] bound the memory of those.
const SmallRequest = 64 << 10

// MemoryPatience is how long a request waits for memory.
const MemoryPatience = 10 * time.Second

// Memory bounds the total size of the requests in progress, because a request and the
// copies that a call makes of it stay in memory until the call ends. Use [NewMemory] to
// create one. It is safe for concurrent use.
type Memory struct {
	total  int64
	free   *semaphore.Weighted
	shed   func()
	within *Memory // nil: it is no part of another one
}

// NewMemory returns a bound of total bytes. shed is called for each refused request.
func NewMemory(total int64, shed func()) *Memory {
	return &Memory{total: total, free: semaphore.NewWeighted(total), shed: shed}
}

// Part returns a bound of total bytes for some of the requests of m. They also count for m,
// and a request that waits for the part delays no others.
func (m *Memory) Part(total int64) *Memory {
	part := NewMemory(total, m.shed)
	part.within = m
	return part
}

// Reservation is the part of a [Memory] that a request has. It is not safe for concurrent
// use.
type Reservation struct{ held []held }

// held is what a reservation has of one memory.
type held struct {
	of *Memory
	n  int64
}

// Reserve reserves n bytes, or the whole memory for a request that is larger. It waits for
// up to [MemoryPatience], in the order of the calls. The caller must call
// [Reservation.Free] when the call has ended. The error is Unavailable with
// [api.ReasonBusy], also if ctx ends first.
func (m *Memory) Reserve(ctx context.Context, n int64) (Reservation, error) {
	var r Reservation
	if n <= SmallRequest {
		return r, nil
	}
	ctx, cancel := context.WithTimeout(ctx, MemoryPatience)
	defer cancel()
	for at := m; at != nil; at = at.within {
		size := min(n, at.total)
		if at.free.Acquire(ctx, size) != nil {
			r.Free()
			m.shed()
			return Reservation{}, &api.Error{
				Code: api.Unavailable, Reason: api.ReasonBusy, Message: "the router is busy: the requests in progress use the memory for requests",
				Next:       "try again, start more replicas of inference-router, or give them more memory",
				RetryAfter: retryMemory.Milliseconds(),
			}
		}
		r.held = append(r.held, held{at, size})
	}
	return r, nil
}

// Shrink reduces the reservation to n bytes, if it is larger.
func (r *Reservation) Shrink(n int64) {
	for i := range r.held {
		if h := &r.held[i]; h.n > n {
			h.of.free.Release(h.n - n)
			h.n = n
		}
	}
}

// Free ends the reservation. Further calls have no effect.
func (r *Reservation) Free() { r.Shrink(0) }

package host

import (
	"runtime/metrics"
	"time"
)

const (
	// idleInterval is how often a process checks whether it is idle.
	idleInterval = 15 * time.Second
	// idleLeast is the least memory, in bytes, that an idle process returns.
	idleLeast = 2 << 20
)

// heap holds the sizes of this process's heap in bytes, as the Go runtime reports them.
type heap struct {
	allocated uint64 // total since the process started
	live      uint64 // live after the last collection
	held      uint64 // obtained from the system for objects, in use or free
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	return heap{
		allocated: samples[0].Value.Uint64(), live: samples[1].Value.Uint64(),
		held: samples[2].Value.Uint64() + samples[3].Value.Uint64(),
	}
}

// wasteful reports whether the process is idle and holds memory that it could return.
// before is its heap one interval ago. It is idle if it has allocated less than its live
// heap since then; the free memory must exceed half of the live heap, and idleLeast.
func (h heap) wasteful(before heap) bool {
	return h.allocated-before.allocated < h.live && h.held > h.live+max(h.live/2, idleLeast)
}

// returnMemory returns a function that calls release if the process has been idle since
// its previous call and has memory to return. The Go runtime collects only when the heap
// has grown by GOGC, which does not happen in an idle process, and keeps the memory of its
// largest heap for long: a loop process with sleeping agents would hold three times the
// memory that it needs.
func returnMemory(release func()) func() {
	before := readHeap()
	return func() {
		now := readHeap()
		if now.wasteful(before) {
			release()
		}
		before = now
	}
}

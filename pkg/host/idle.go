package host

import (
	"context"
	"runtime/metrics"
	"time"
)

const (
	// idleInterval is how often a process checks whether it is idle.
	idleInterval = 15 * time.Second
	// idleLeast is the memory, in bytes, for which an idle process collects garbage.
	idleLeast = 2 << 20
)

// heap is what the Go runtime says of this process's heap, in bytes.
type heap struct {
	allocated uint64 // since the process started
	live      uint64 // found by the last collection
	held      uint64 // taken from the system for objects, in use or not
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

// wasteful says whether a process whose heap was before one interval ago is idle and holds
// memory that it does not need: it has allocated less than what it has in use, and half of
// that could be returned.
func (h heap) wasteful(before heap) bool {
	return h.allocated-before.allocated < h.live && h.held > h.live+max(h.live/2, idleLeast)
}

// returnMemory calls release at each tick that finds the process idle with memory to return,
// until ctx ends. Go itself collects when the heap has grown by GOGC, which an idle heap does
// not, and keeps the memory of its largest heap for long: a loop process whose agents sleep
// would hold three times what it needs.
func returnMemory(ctx context.Context, ticks <-chan time.Time, release func()) {
	for before := readHeap(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		now := readHeap()
		if now.wasteful(before) {
			release()
		}
		before = now
	}
}

package host

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestWasteful(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	before := heap{allocated: 100 * mib}
	for name, tt := range map[string]struct {
		now  heap
		want bool
	}{
		"idle, much is free":        {heap{allocated: 101 * mib, live: 10 * mib, held: 30 * mib}, true},
		"idle, little is free":      {heap{allocated: 101 * mib, live: 10 * mib, held: 14 * mib}, false},
		"idle, small, much is free": {heap{allocated: 100 * mib, live: 1 * mib, held: 6 * mib}, true},
		"idle, small":               {heap{allocated: 100 * mib, live: 1 * mib, held: 3 * mib}, false},
		"busy":                      {heap{allocated: 111 * mib, live: 10 * mib, held: 30 * mib}, false},
	} {
		if got := tt.now.wasteful(before); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

// TestReturnMemory creates 64 MiB of garbage, which must be released once.
func TestReturnMemory(t *testing.T) { //nolint:paralleltest // other tests allocate too
	const size = 64 << 20
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no other collection may free it
	before := readHeap()
	released := 0
	check := returnMemory(func() { released++; debug.FreeOSMemory() })
	block := make([]byte, size)
	block[0] = 1
	with := readHeap()
	runtime.KeepAlive(block)
	for range 4 {
		check()
	}
	if grown := with.allocated - before.allocated; grown < size || with.held < size {
		t.Errorf("allocated %d bytes more, and %d held: want at least %d", grown, with.held, size)
	}
	if released != 1 {
		t.Errorf("released %d times, want once", released)
	}
	if after := readHeap(); after.held > size/2 {
		t.Errorf("%d bytes are held after the release, want less than %d", after.held, size/2)
	}
}

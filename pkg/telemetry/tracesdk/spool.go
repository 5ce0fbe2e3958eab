package tracesdk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// The file is mapped into memory: a write is a copy to memory, and the kernel keeps the
// copied bytes when the process is killed. Spans need not survive a power failure, and do
// not.
//
//	0         magic, time of the last write (ns), number of sources
//	4 KiB     sources, one after the other: resources and scopes of spans
//	64 KiB    slots of 2 KiB: state, length, source, encoded span
//
// A span that ends is written to another slot than at its start. The first slot is freed
// afterwards, so that the span is always in the file.
const (
	spoolMagic   = "animaspans1\n"
	spoolSources = 4 << 10
	spoolSlots   = 64 << 10
	slotSize     = 2 << 10
	slotHeader   = 12
	slots        = 8192
	spoolSize    = spoolSlots + slots*slotSize // 16 MiB on disk; only pages in use take memory
	maxSources   = 1024

	lastWriteOffset = 16 // of the header's fields
	sourcesOffset   = 24

	noSlot = slots // the slot of a span that is not stored
)

// spool is the file of this process. Its methods are safe for concurrent use.
type spool struct {
	file *os.File
	mem  []byte

	mu      sync.Mutex
	free    []uint32 // free slots, last used first, so that few pages are touched
	sources int
	used    int // bytes of sources
}

// openSpool creates a file in dir. It returns the names of the other files, which belong to
// running and to crashed processes.
func openSpool(dir string) (s *spool, others []string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	others = spoolFiles(dir)
	f, err := os.CreateTemp(dir, "*"+spoolSuffix)
	if err != nil {
		return nil, others, err
	}
	s = &spool{file: f}
	if err = lockFile(f); err == nil {
		s.mem, err = mapFile(f, spoolSize)
	}
	if err != nil {
		return nil, others, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close(), os.Remove(f.Name()))
	}
	copy(s.mem, spoolMagic)
	for i := range uint32(slots) {
		s.free = append(s.free, slots-1-i)
	}
	return s, others, nil
}

func uint32At(mem []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&mem[at])) }
func int64At(mem []byte, at int) *int64   { return (*int64)(unsafe.Pointer(&mem[at])) }

func offsetOf(slot uint32) int { return spoolSlots + int(slot)*slotSize }

// put writes a span, encoded as data, to a free slot. If none is free, the span is not
// stored in this state. A span that is longer than a slot is stored in its short form, and
// stored is nil.
func (s *spool) put(v *span, data []byte, state uint32, end time.Time) (slot uint32, stored []byte) {
	whole := len(data) <= slotSize-slotHeader
	if !whole {
		if data = v.append(nil, end, true); len(data) > slotSize-slotHeader {
			return noSlot, nil
		}
	}
	if slot = s.take(); slot == noSlot {
		return noSlot, nil
	}
	at := offsetOf(slot)
	binary.LittleEndian.PutUint32(s.mem[at+4:], uint32(len(data)))
	binary.LittleEndian.PutUint16(s.mem[at+8:], v.tracer.source.number)
	stored = s.mem[at+slotHeader : at+slotHeader+len(data)]
	copy(stored, data)
	atomic.StoreUint32(uint32At(s.mem, at), state)
	now := end
	if state == stateStarted || state == stateRoot {
		now = v.began
	}
	atomic.StoreInt64(int64At(s.mem, lastWriteOffset), now.UnixNano())
	if !whole {
		stored = nil
	}
	return slot, stored
}

// spanAt returns the span in a slot; false if there is none. Its data is memory of the
// file.
func spanAt(mem []byte, slot uint32) (storedSpan, bool) {
	at := offsetOf(slot)
	state, size := atomic.LoadUint32(uint32At(mem, at)), binary.LittleEndian.Uint32(mem[at+4:])
	if state == stateFree || size > slotSize-slotHeader {
		return storedSpan{}, false
	}
	return storedSpan{
		source: binary.LittleEndian.Uint16(mem[at+8:]), state: state, data: mem[at+slotHeader : at+slotHeader+int(size)],
	}, true
}

func (s *spool) take() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return noSlot
	}
	slot := s.free[n-1]
	s.free = s.free[:n-1]
	return slot
}

// release frees a slot. It does nothing for noSlot, also if s is nil.
func (s *spool) release(slot uint32) {
	if slot == noSlot {
		return
	}
	atomic.StoreUint32(uint32At(s.mem, offsetOf(slot)), stateFree)
	s.mu.Lock()
	s.free = append(s.free, slot)
	s.mu.Unlock()
}

// register stores a source and returns its number, by which spans refer to it. If there
// is no room for it, its spans are not stored.
func (s *spool) register(src *source) (uint16, bool) {
	var b []byte
	for _, part := range [][]byte{src.resource, src.scope, []byte(src.schema)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.sources
	if n == maxSources || spoolSources+s.used+len(b) > spoolSlots {
		return 0, false
	}
	copy(s.mem[spoolSources+s.used:], b)
	s.used += len(b)
	s.sources++
	atomic.StoreUint32(uint32At(s.mem, sourcesOffset), uint32(s.sources))
	return uint16(n), true
}

// close closes the spool. The file is kept for the next process if it contains spans that
// were not sent. The memory stays mapped, because a span may be ending concurrently. It is
// called once.
func (s *spool) close() error {
	s.mu.Lock()
	empty := len(s.free) == slots
	s.mu.Unlock()
	var err error
	if empty {
		err = os.Remove(s.file.Name())
	}
	// An explicit unlock, because the mapping keeps the file open and locked.
	return errors.Join(err, unlockFile(s.file), s.file.Close())
}

package tracesdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
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
)

// spool is the file of this process. Its methods are safe for concurrent use.
type spool struct {
	file *os.File
	mem  []byte

	mu      sync.Mutex
	free    []uint32 // free slots, last used first, so that few pages are touched
	sources int
	used    int // bytes of sources

	shards [64]shard
}

// shard maps a part of the open spans to their slots.
type shard struct {
	mu    sync.Mutex
	slots map[trace.SpanID]uint32
}

// openSpool creates a file in dir and reads the files of crashed processes.
func openSpool(dir string, work attribute.Key) (s *spool, all []orphans, damaged int, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, 0, err
	}
	for _, name := range spoolFiles(dir) {
		o, bad, err := readOrphans(name, work)
		if err != nil {
			return nil, nil, 0, err
		}
		damaged += bad
		if o != nil {
			all = append(all, *o)
		}
	}
	f, err := os.CreateTemp(dir, "*"+spoolSuffix)
	if err != nil {
		return nil, all, damaged, err
	}
	s = &spool{file: f}
	if err = s.prepare(); err != nil {
		return nil, all, damaged, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close(), os.Remove(f.Name()))
	}
	return s, all, damaged, nil
}

func (s *spool) prepare() error {
	fd := int(s.file.Fd())
	// The kernel releases the lock at the end of the process, also after a crash.
	if err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	// Without reserved disk space, access to a mapped page could raise SIGBUS.
	if err := syscall.Fallocate(fd, 0, 0, spoolSize); err != nil {
		return err
	}
	mem, err := syscall.Mmap(fd, 0, spoolSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	s.mem = mem
	copy(mem, spoolMagic)
	for i := range uint32(slots) {
		s.free = append(s.free, slots-1-i)
	}
	for i := range s.shards {
		s.shards[i].slots = map[trace.SpanID]uint32{}
	}
	return nil
}

func uint32At(mem []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&mem[at])) }
func int64At(mem []byte, at int) *int64   { return (*int64)(unsafe.Pointer(&mem[at])) }

func offsetOf(slot uint32) int { return spoolSlots + int(slot)*slotSize }

func (s *spool) shard(id trace.SpanID) *shard { return &s.shards[id[7]%64] }

// started stores a span at its start.
func (s *spool) started(v *span, state uint32) {
	buf := scratch.Get().(*[]byte)
	b := v.append((*buf)[:0], false)
	if slot, _ := s.put(v.tracer.source.number, b, state, v.began, v.append); slot != noSlot {
		s.opened(v.start.SpanID, slot)
	}
	*buf = b[:0]
	scratch.Put(buf)
}

// ending stores a root as it will be sent.
func (s *spool) ending(v *span, end time.Time) {
	encode := func(b []byte, short bool) []byte { return appendTime(v.append(b, short), spanEnd, end) }
	if slot, _ := s.put(v.tracer.source.number, encode(nil, false), stateEnding, end, encode); slot != noSlot {
		s.opened(v.start.SpanID, slot)
	}
}

// ended stores a span, encoded as b, until its slot is released. data is the stored copy;
// nil means that the span was not stored, or only in its short form.
func (s *spool) ended(source uint16, id trace.SpanID, b []byte, now time.Time, encode func([]byte, bool) []byte) (slot uint32, data []byte) {
	slot, data = s.put(source, b, stateEnded, now, encode)
	if slot != noSlot {
		s.forget(id)
	}
	return slot, data
}

// noSlot is the slot of a span that is not stored.
const noSlot = slots

// opened records the slot of a span that has not ended, and releases its previous slot.
func (s *spool) opened(id trace.SpanID, slot uint32) {
	sh := s.shard(id)
	sh.mu.Lock()
	before, ok := sh.slots[id]
	sh.slots[id] = slot
	sh.mu.Unlock()
	if ok {
		s.release(before)
	}
}

// put writes a span to a free slot. If none is free, the span is not stored in this
// state. A span that is longer than a slot is stored in its short form, and stored is nil.
func (s *spool) put(source uint16, data []byte, state uint32, now time.Time, encode func(b []byte, short bool) []byte) (slot uint32, stored []byte) {
	whole := len(data) <= slotSize-slotHeader
	if !whole {
		if data = encode(nil, true); len(data) > slotSize-slotHeader {
			return noSlot, nil
		}
	}
	if slot = s.take(); slot == noSlot {
		return noSlot, nil
	}
	at := offsetOf(slot)
	binary.LittleEndian.PutUint32(s.mem[at+4:], uint32(len(data)))
	binary.LittleEndian.PutUint16(s.mem[at+8:], source)
	stored = s.mem[at+slotHeader : at+slotHeader+len(data)]
	copy(stored, data)
	atomic.StoreUint32(uint32At(s.mem, at), state)
	atomic.StoreInt64(int64At(s.mem, lastWriteOffset), now.UnixNano())
	if !whole {
		stored = nil
	}
	return slot, stored
}

// forget frees the slot of a span that is no longer open.
func (s *spool) forget(id trace.SpanID) {
	if slot, ok := s.closed(id); ok {
		s.release(slot)
	}
}

// closed removes a span from the open ones and returns its slot.
func (s *spool) closed(id trace.SpanID) (uint32, bool) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot, ok := sh.slots[id]
	delete(sh.slots, id)
	return slot, ok
}

// abandon removes an open span. After [Ending] it is kept and returned as a pending root.
func (s *spool) abandon(src *source, id trace.SpanID, work attribute.Key) (pendingRoot, bool) {
	slot, ok := s.closed(id)
	if !ok {
		return pendingRoot{}, false
	}
	at := offsetOf(slot)
	if atomic.LoadUint32(uint32At(s.mem, at)) == stateEnding {
		size := binary.LittleEndian.Uint32(s.mem[at+4:])
		found := storedSpan{state: stateEnding, data: bytes.Clone(s.mem[at+slotHeader : at+slotHeader+int(size)])}
		from := storedSource{appendResource(nil, src.resource), appendScope(nil, src.scope), src.resource.SchemaURL()}
		if o, _ := restore([]storedSource{from}, []storedSpan{found}, time.Time{}, work); len(o.pending) == 1 {
			o.pending[0].remove = func() { s.release(slot) }
			return o.pending[0], true
		}
	}
	s.release(slot)
	return pendingRoot{}, false
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

func (s *spool) release(slot uint32) {
	atomic.StoreUint32(uint32At(s.mem, offsetOf(slot)), stateFree)
	s.mu.Lock()
	s.free = append(s.free, slot)
	s.mu.Unlock()
}

// register stores a source and returns its number, by which spans refer to it. If there
// is no room for it, its spans are not stored.
func (s *spool) register(src *source) (uint16, bool) {
	var b []byte
	for _, part := range [][]byte{appendResource(nil, src.resource), appendScope(nil, src.scope), []byte(src.resource.SchemaURL())} {
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
	return errors.Join(err, syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN), s.file.Close())
}

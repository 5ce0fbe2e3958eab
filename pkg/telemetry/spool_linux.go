package telemetry

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

	"go.opentelemetry.io/otel/trace"
)

// The file is mapped into memory: a write is a copy to memory, and the kernel keeps the
// copied bytes when the process is killed. Spans need not survive a power failure, and do
// not.
//
//	0         magic, time of the last write (ns), number of sources
//	4 KiB     sources, one after the other: resources and scopes of spans
//	64 KiB    places of 2 KiB: state, length, source, encoded span
//
// A span that ends is written to another place than at its start. The first place is
// freed afterwards, so that the span is always in the file.
const (
	spoolMagic   = "animaspans1\n"
	spoolSources = 4 << 10
	spoolPlaces  = 64 << 10
	placeSize    = 2 << 10
	placeHead    = 12
	places       = 8192
	spoolSize    = spoolPlaces + places*placeSize // 16 MiB on disk; only pages in use take memory
	maxSources   = 1024

	atLast  = 16 // offsets of the header's fields
	atCount = 24
)

// spool is the file of this process. Its methods are safe for concurrent use.
type spool struct {
	file *os.File
	mem  []byte

	mu      sync.Mutex
	closed  bool
	free    []uint32 // free places, last used first, so that few pages are touched
	sources int
	used    int // bytes of sources

	shards [64]shard
}

// shard maps a part of the open spans to their places.
type shard struct {
	mu sync.Mutex
	at map[trace.SpanID]uint32
}

// openSpool creates a file in dir and takes over the files of crashed processes.
func openSpool(dir string) (s *spool, all []left, damaged int, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, 0, err
	}
	for _, name := range spoolFiles(dir) {
		l, bad, err := takeOver(name)
		if err != nil {
			return nil, nil, 0, err
		}
		damaged += bad
		if l != nil {
			all = append(all, *l)
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
	for i := range uint32(places) {
		s.free = append(s.free, places-1-i)
	}
	for i := range s.shards {
		s.shards[i].at = map[trace.SpanID]uint32{}
	}
	return nil
}

func word(mem []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&mem[at])) }
func long(mem []byte, at int) *int64  { return (*int64)(unsafe.Pointer(&mem[at])) }

func (s *spool) shard(id trace.SpanID) *shard { return &s.shards[id[7]%64] }

// started stores a span at its start.
func (s *spool) started(from uint16, v *span, state uint32) {
	buf := scratch.Get().(*[]byte)
	b := v.append((*buf)[:0], false)
	if place, _ := s.put(from, b, state, v.began, v.append); place != nowhere {
		s.opened(v.start.SpanID, place)
	}
	*buf = b[:0]
	scratch.Put(buf)
}

// ending stores a root as it will be sent.
func (s *spool) ending(from uint16, v *span, end time.Time) {
	write := func(b []byte, lean bool) []byte { return appendTime(v.append(b, lean), spanEnd, end) }
	if place, _ := s.put(from, write(nil, false), stateEnding, end, write); place != nowhere {
		s.opened(v.start.SpanID, place)
	}
}

// ended stores a span, encoded as b, until its place is released. data is the stored
// copy; nil means that the span was not stored, or only in its lean form.
func (s *spool) ended(from uint16, id trace.SpanID, b []byte, now time.Time, write func([]byte, bool) []byte) (place uint32, data []byte) {
	place, data = s.put(from, b, stateEnded, now, write)
	if place != nowhere {
		s.forget(id)
	}
	return place, data
}

// nowhere is the place of a span that is not stored.
const nowhere = places

// opened records the place of a span that has not ended, and releases its previous place.
func (s *spool) opened(id trace.SpanID, place uint32) {
	sh := s.shard(id)
	sh.mu.Lock()
	before, was := sh.at[id]
	sh.at[id] = place
	sh.mu.Unlock()
	if was {
		s.release(before)
	}
}

// put writes a span to a free place. If none is free, the span is not stored in this
// state. A span that is longer than a place is stored in its lean form, and kept is nil.
func (s *spool) put(from uint16, data []byte, state uint32, now time.Time, write func(b []byte, lean bool) []byte) (place uint32, kept []byte) {
	whole := len(data) <= placeSize-placeHead
	if !whole {
		if data = write(nil, true); len(data) > placeSize-placeHead {
			return nowhere, nil
		}
	}
	if place = s.take(); place == nowhere {
		return nowhere, nil
	}
	at := spoolPlaces + int(place)*placeSize
	binary.LittleEndian.PutUint32(s.mem[at+4:], uint32(len(data)))
	binary.LittleEndian.PutUint16(s.mem[at+8:], from)
	kept = s.mem[at+placeHead : at+placeHead+len(data)]
	copy(kept, data)
	atomic.StoreUint32(word(s.mem, at), state)
	atomic.StoreInt64(long(s.mem, atLast), now.UnixNano())
	if !whole {
		kept = nil
	}
	return place, kept
}

// forget frees the place of a span that is no longer open.
func (s *spool) forget(id trace.SpanID) {
	if place, ok := s.gone(id); ok {
		s.release(place)
	}
}

func (s *spool) gone(id trace.SpanID) (uint32, bool) {
	sh := s.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	place, ok := sh.at[id]
	delete(sh.at, id)
	return place, ok
}

// abandoned removes an open span. After [Ending] it is kept and returned as a doubt.
func (s *spool) abandoned(of *source, id trace.SpanID) (doubt, bool) {
	place, ok := s.gone(id)
	if !ok {
		return doubt{}, false
	}
	at := spoolPlaces + int(place)*placeSize
	if atomic.LoadUint32(word(s.mem, at)) == stateEnding {
		size := binary.LittleEndian.Uint32(s.mem[at+4:])
		found := leftSpan{state: stateEnding, data: bytes.Clone(s.mem[at+placeHead : at+placeHead+int(size)])}
		from := leftSource{appendResource(nil, of.resource), appendScope(nil, of.scope), of.resource.SchemaURL()}
		if l, _ := restore([]leftSource{from}, []leftSpan{found}, time.Time{}); len(l.doubts) == 1 {
			l.doubts[0].done = func() { s.release(place) }
			return l.doubts[0], true
		}
	}
	s.release(place)
	return doubt{}, false
}

func (s *spool) take() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.free)
	if n == 0 {
		return nowhere
	}
	place := s.free[n-1]
	s.free = s.free[:n-1]
	return place
}

func (s *spool) release(place uint32) {
	atomic.StoreUint32(word(s.mem, spoolPlaces+int(place)*placeSize), stateFree)
	s.mu.Lock()
	s.free = append(s.free, place)
	s.mu.Unlock()
}

// register stores a source and returns its number, by which spans refer to it. If there
// is no room for it, its spans are not stored.
func (s *spool) register(of *source) (uint16, bool) {
	var b []byte
	for _, part := range [][]byte{appendResource(nil, of.resource), appendScope(nil, of.scope), []byte(of.resource.SchemaURL())} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.sources
	if n == maxSources || spoolSources+s.used+len(b) > spoolPlaces {
		return 0, false
	}
	copy(s.mem[spoolSources+s.used:], b)
	s.used += len(b)
	s.sources++
	atomic.StoreUint32(word(s.mem, atCount), uint32(s.sources))
	return uint16(n), true
}

// close closes the spool. The file is kept for the next process if it contains spans that
// were not sent. The memory stays mapped, because a span may be ending concurrently.
func (s *spool) close() error {
	s.mu.Lock()
	was, empty := s.closed, len(s.free) == places
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	var err error
	if empty {
		err = os.Remove(s.file.Name())
	}
	// An explicit unlock, because the mapping keeps the file open and locked.
	return errors.Join(err, syscall.Flock(int(s.file.Fd()), syscall.LOCK_UN), s.file.Close())
}

// takeOver reads the file of a crashed process. It returns nil if the file is in use, was
// taken over by another process, or is not a spool. The file stays locked until its spans
// are sent.
func takeOver(name string) (*left, int, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil // another process has sent its spans
	}
	if err != nil {
		return nil, 0, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil, 0, f.Close()
	}
	gone := func() { _, _ = os.Remove(name), f.Close() } // if the removal fails, the spans are sent again
	// Another process may have sent its spans and removed it before the lock was
	// acquired.
	if now, err := os.Stat(name); err != nil {
		return nil, 0, f.Close()
	} else if had, err := f.Stat(); err != nil || !os.SameFile(now, had) {
		return nil, 0, f.Close()
	}
	mem := make([]byte, spoolSize)
	if n, err := f.ReadAt(mem, 0); err != nil || n != len(mem) || string(mem[:len(spoolMagic)]) != spoolMagic {
		if now := time.Now(); youngerThan(f, now, time.Minute) {
			return nil, 0, f.Close() // it is being created
		}
		gone()
		return nil, 1, nil
	}
	sources := readSources(mem)
	var found []leftSpan
	for i := range places {
		at := spoolPlaces + i*placeSize
		state, size := binary.LittleEndian.Uint32(mem[at:]), binary.LittleEndian.Uint32(mem[at+4:])
		if state == stateFree || size > placeSize-placeHead {
			continue
		}
		found = append(found, leftSpan{
			source: binary.LittleEndian.Uint16(mem[at+8:]), state: state, data: mem[at+placeHead : at+placeHead+int(size)],
		})
	}
	l, damaged := restore(sources, found, time.Unix(0, *long(mem, atLast)))
	var parts atomic.Int64
	parts.Store(int64(1 + len(l.doubts)))
	l.done = func() {
		if parts.Add(-1) == 0 {
			gone()
		}
	}
	for i := range l.doubts {
		l.doubts[i].done = l.done
	}
	return &l, damaged, nil
}

func youngerThan(f *os.File, now time.Time, d time.Duration) bool {
	st, err := f.Stat()
	return err == nil && now.Sub(st.ModTime()) < d
}

func readSources(mem []byte) []leftSource {
	var all []leftSource
	rest := mem[spoolSources:spoolPlaces]
	for range min(binary.LittleEndian.Uint32(mem[atCount:]), maxSources) {
		var parts [3][]byte
		for i := range parts {
			if len(rest) < 4 {
				return all
			}
			n := int(binary.LittleEndian.Uint32(rest))
			if n > len(rest)-4 {
				return all
			}
			parts[i], rest = rest[4:4+n], rest[4+n:]
		}
		all = append(all, leftSource{resource: parts[0], scope: parts[1], schema: string(parts[2])})
	}
	return all
}

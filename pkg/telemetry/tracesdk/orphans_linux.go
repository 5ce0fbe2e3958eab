package tracesdk

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// readOrphans reads the file of a crashed process. It returns nil if the file is in use,
// is read by another process, or is not a spool. The file stays locked until its spans are
// sent.
func readOrphans(name string, work attribute.Key) (o *orphans, damaged int, err error) {
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
	remove := func() { _, _ = os.Remove(name), f.Close() } // if the removal fails, the spans are sent again
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
		remove()
		return nil, 1, nil
	}
	sources := readSources(mem)
	var found []storedSpan
	for i := range uint32(slots) {
		at := offsetOf(i)
		state, size := binary.LittleEndian.Uint32(mem[at:]), binary.LittleEndian.Uint32(mem[at+4:])
		if state == stateFree || size > slotSize-slotHeader {
			continue
		}
		found = append(found, storedSpan{
			source: binary.LittleEndian.Uint16(mem[at+8:]), state: state, data: mem[at+slotHeader : at+slotHeader+int(size)],
		})
	}
	all, damaged := restore(sources, found, time.Unix(0, *int64At(mem, lastWriteOffset)), work)
	var parts atomic.Int64
	parts.Store(int64(1 + len(all.pending)))
	all.remove = func() {
		if parts.Add(-1) == 0 {
			remove()
		}
	}
	for i := range all.pending {
		all.pending[i].remove = all.remove
	}
	return &all, damaged, nil
}

func youngerThan(f *os.File, now time.Time, d time.Duration) bool {
	st, err := f.Stat()
	return err == nil && now.Sub(st.ModTime()) < d
}

func readSources(mem []byte) []storedSource {
	var all []storedSource
	rest := mem[spoolSources:spoolSlots]
	for range min(binary.LittleEndian.Uint32(mem[sourcesOffset:]), maxSources) {
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
		all = append(all, storedSource{resource: parts[0], scope: parts[1], schema: string(parts[2])})
	}
	return all
}

package tracesdk

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// spoolFiles returns the spool files in a folder.
func spoolFiles(dir string) []string {
	all, _ := filepath.Glob(filepath.Join(dir, "*"+spoolSuffix)) // the error is only for a malformed pattern
	return all
}

const spoolSuffix = ".spans"

// maxFiles is the number of files that are kept while the collector is away: 512 MiB.
const maxFiles = 32

// removeOldest removes the oldest files of exited processes if there are more than
// maxFiles. It returns the others, the oldest first.
func removeOldest(names []string) (kept []string, removed int) {
	written := map[string]time.Time{}
	for _, name := range names {
		if st, err := os.Stat(name); err == nil { // otherwise another process has sent its spans
			written[name] = st.ModTime()
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(written), func(a, b string) int { return written[a].Compare(written[b]) }) {
		if removed < len(written)-maxFiles && removeExited(name) {
			removed++
			continue
		}
		kept = append(kept, name)
	}
	return kept, removed
}

// removeExited removes a file unless a process uses it.
func removeExited(name string) bool {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // nothing was written
	return lockFile(f) == nil && os.Remove(name) == nil
}

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
	if lockFile(f) != nil {
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
		if st, err := f.Stat(); err == nil && time.Since(st.ModTime()) < time.Minute {
			return nil, 0, f.Close() // it is being created
		}
		remove()
		return nil, 1, nil
	}
	sources := readSources(mem)
	var found []storedSpan
	for i := range uint32(slots) {
		if v, ok := spanAt(mem, i); ok {
			found = append(found, v)
		}
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

func readSources(mem []byte) []*source {
	var all []*source
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
		all = append(all, &source{resource: parts[0], scope: parts[1], schema: string(parts[2])})
	}
	return all
}

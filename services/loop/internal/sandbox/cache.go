package sandbox

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Stamp is the state of a file. A write, a rename or a change of the mode changes it,
// even if the writer sets the times of the file back. The zero Stamp is the state of a
// missing file.
type Stamp struct {
	dev, ino          uint64
	size              int64
	mode              uint32
	changed, modified int64 // Unix nanoseconds
}

// settled is the minimum time since the last change of a file for its stamp to be relied
// upon. Two writes within one tick of the kernel's clock have the same stamp, and the
// longest tick is 10 ms (CONFIG_HZ=100).
const settled = 100 * time.Millisecond

// maxCached is the maximum number of values of one Cache. Values that are removed are
// loaded again.
const maxCached = 4096

// Cache holds values that were computed from files of workspaces, as long as these files
// are unchanged. A lookup costs one lstat(2) per file and opens none. Values of a
// workspace on a network file system are not cached. The zero value is empty and ready to
// use. Cache is safe for concurrent use.
type Cache[T any] struct {
	mu   sync.Mutex
	kept map[string]*cached[T] // by workspace and name
	size int64
	// Max is the limit of the sum of the sizes of the values, in bytes. Zero means 8 MiB.
	Max int64

	now func() time.Time // nil means time.Now
}

type cached[T any] struct {
	value  T
	size   int64
	paths  []string // absolute
	stamps []Stamp
}

// Made is a value that was computed from files.
type Made[T any] struct {
	Value T
	Size  int // approximate, in bytes
	// Paths are the files and directories, relative to the workspace, that the value
	// depends on; Absent are those that were missing. If both are empty, the value is not
	// cached.
	Paths, Absent []string
}

// Get returns the cached value of a workspace and name if its files are unchanged, and
// otherwise the result of load. An error of load is returned and not cached. Concurrent
// callers may load the same value; all callers share it.
func (c *Cache[T]) Get(workspace, name string, load func() (Made[T], error)) (T, error) {
	key := workspace + "\x00" + name
	c.mu.Lock()
	k := c.kept[key]
	c.mu.Unlock()
	if k != nil && k.stands() {
		return k.value, nil
	}
	began := time.Now()
	if c.now != nil {
		began = c.now()
	}
	made, err := load()
	if err != nil {
		return made.Value, err
	}
	next := &cached[T]{value: made.Value, size: int64(made.Size) + 256}
	steady := len(made.Paths)+len(made.Absent) > 0 && isLocal(workspace)
	for i, p := range slices.Concat(made.Paths, made.Absent) {
		p = filepath.Join(workspace, p)
		s, ok := stampOf(p)
		// A file whose last change is older than this is in the state that load read.
		steady = steady && ok && (s == Stamp{}) == (i >= len(made.Paths)) && s.changed < began.Add(-settled).UnixNano()
		next.paths, next.stamps = append(next.paths, p), append(next.stamps, s)
	}
	if !steady {
		next = nil
	}
	c.put(key, next)
	return made.Value, nil
}

// stands reports whether the files are unchanged.
func (k *cached[T]) stands() bool {
	for i, p := range k.paths {
		if s, ok := stampOf(p); !ok || s != k.stamps[i] {
			return false
		}
	}
	return true
}

// put replaces the cached value of key; nil removes it.
func (c *Cache[T]) put(key string, k *cached[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.kept[key]; old != nil {
		c.size -= old.size
		delete(c.kept, key)
	}
	most := cmp.Or(c.Max, 8<<20)
	if k == nil || k.size > most {
		return
	}
	for other, o := range c.kept { // remove values in any order; values in use are loaded again
		if c.size+k.size <= most && len(c.kept) < maxCached {
			break
		}
		c.size -= o.size
		delete(c.kept, other)
	}
	if c.kept == nil {
		c.kept = map[string]*cached[T]{}
	}
	c.kept[key] = k
	c.size += k.size
}

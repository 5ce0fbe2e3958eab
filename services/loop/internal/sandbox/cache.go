package sandbox

import (
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Stamp tells two states of a file apart: a write, a rename or a change of its rights
// gives it another, whatever times the writer sets. The zero Stamp is that of a file
// which is not there.
type Stamp struct {
	dev, ino          uint64
	size              int64
	mode              uint32
	changed, modified int64 // Unix nanoseconds
}

// settled is how long ago a file must have changed for its stamp to be relied upon. Two
// writes within one tick of the kernel's clock give one stamp, and that clock ticks every
// 10 ms at the slowest (CONFIG_HZ=100).
const settled = 100 * time.Millisecond

// maxCached bounds the values of one Cache; what is left out is made again.
const maxCached = 4096

// Cache keeps what was made of files of workspaces, for as long as the files stay as they
// were: looking it up costs a stat(2) for each of them, and opens none. A workspace on a
// file system of a network is not cached. The zero value is empty and ready. It is safe
// for concurrent use.
type Cache[T any] struct {
	mu   sync.Mutex
	kept map[string]*cached[T] // by workspace and name
	size int64
	// Max bounds what the values hold together, by the sizes that are said of them. 0: 8
	// MiB.
	Max int64

	now func() time.Time // nil: time.Now
}

type cached[T any] struct {
	value  T
	size   int64
	paths  []string // absolute
	stamps []Stamp
}

// Made is a value that was made of files.
type Made[T any] struct {
	Value T
	Size  int // in bytes, about
	// Paths of the files and directories below the workspace that it depends on, and of
	// those that were not there. Without any, it is not kept.
	Paths, Absent []string
}

// Get returns the value with a name that was made of files of a workspace, or what
// load makes now. An error of load is returned and not kept. Callers share the value.
func (c *Cache[T]) Get(workspace, name string, load func() (Made[T], error)) (T, error) {
	key := workspace + "\x00" + name
	c.mu.Lock()
	k := c.kept[key]
	c.mu.Unlock()
	if k != nil && k.stands() {
		return k.value, nil
	}
	clock := c.now
	if clock == nil {
		clock = time.Now
	}
	began := clock()
	made, err := load()
	if err != nil {
		return made.Value, err
	}
	next := &cached[T]{value: made.Value, size: int64(made.Size) + 256}
	steady := len(made.Paths)+len(made.Absent) > 0 && isLocal(workspace)
	for i, p := range slices.Concat(made.Paths, made.Absent) {
		p = filepath.Join(workspace, p)
		s, ok := stampOf(p)
		// One that changed neither since the beginning nor shortly before is as it was read.
		steady = steady && ok && (s == Stamp{}) == (i >= len(made.Paths)) && s.changed < began.Add(-settled).UnixNano()
		next.paths, next.stamps = append(next.paths, p), append(next.stamps, s)
	}
	if !steady {
		next = nil
	}
	c.put(key, next)
	return made.Value, nil
}

// stands says whether the files are as they were.
func (k *cached[T]) stands() bool {
	for i, p := range k.paths {
		if s, ok := stampOf(p); !ok || s != k.stamps[i] {
			return false
		}
	}
	return true
}

// put keeps a value, or removes what is kept if it is nil.
func (c *Cache[T]) put(key string, k *cached[T]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.kept[key]; old != nil {
		c.size -= old.size
		delete(c.kept, key)
	}
	if k == nil {
		return
	}
	most := c.Max
	if most == 0 {
		most = 8 << 20
	}
	if k.size > most {
		return
	}
	for other, o := range c.kept { // any of them: those in use come back
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

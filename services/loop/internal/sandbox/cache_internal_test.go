package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reading is a file of a workspace that is read through a cache.
type reading struct {
	t     *testing.T
	dir   string
	cache Cache[string]
	loads int
}

func newReading(t *testing.T) *reading {
	t.Helper()
	dir := t.TempDir()
	if !isLocal(dir) {
		t.Logf("%s is on a file system that is not cached", dir)
	}
	r := &reading{t: t, dir: dir}
	r.cache.now = func() time.Time { return time.Now().Add(time.Hour) } // all writes are older than settled
	return r
}

// write writes the file, and repeats it until the stamp has changed.
func (r *reading) write(text string) {
	r.t.Helper()
	name := filepath.Join(r.dir, "f")
	before, _ := stampOf(name)
	for {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
		if now, _ := stampOf(name); now != before || !isLocal(r.dir) {
			return
		}
	}
}

func (r *reading) get() string {
	r.t.Helper()
	v, err := r.cache.Get(r.dir, "f", func() (Made[string], error) {
		r.loads++
		data, err := os.ReadFile(filepath.Join(r.dir, "f"))
		if errors.Is(err, os.ErrNotExist) {
			return Made[string]{Absent: []string{"f"}}, nil
		}
		return Made[string]{Value: string(data), Size: len(data), Paths: []string{"f"}}, err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// want reads the text twice and checks the number of loads.
func (r *reading) want(what, text string, loads int) {
	r.t.Helper()
	before := r.loads
	for range 2 {
		if got := r.get(); got != text {
			r.t.Errorf("%s: got %q, want %q", what, got, text)
		}
	}
	if !isLocal(r.dir) {
		return
	}
	if n := r.loads - before; n != loads {
		r.t.Errorf("%s: %d loads, want %d", what, n, loads)
	}
}

func TestCache(t *testing.T) {
	t.Parallel()
	r := newReading(t)
	name := filepath.Join(r.dir, "f")
	r.want("not there", "", 1)
	r.want("still not there", "", 0)
	r.write("one")
	r.want("made", "one", 1)
	r.want("as it was", "one", 0)
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	r.write("two") // same length and, after Chtimes, same modification time
	if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	r.want("changed, with its old time", "two", 1)
	if err := os.WriteFile(name+".new", []byte("six"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
	r.want("replaced", "six", 1)
	if err := os.Rename(name, name+".target"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("f.target", name); err != nil {
		t.Fatal(err)
	}
	r.want("a link is not kept", "six", 2)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	r.want("removed", "", 1)
}

// TestCacheOfAFreshFile tests that a file which was changed less than settled ago is not
// cached: it could change again within the same tick of the clock.
func TestCacheOfAFreshFile(t *testing.T) {
	t.Parallel()
	r := newReading(t)
	r.cache.now = func() time.Time { // half of settled after the last change
		s, _ := stampOf(filepath.Join(r.dir, "f"))
		return time.Unix(0, s.changed).Add(settled / 2)
	}
	r.write("one")
	r.want("fresh", "one", 2)
	for _, text := range []string{"two", "six", "ten"} {
		if err := os.WriteFile(filepath.Join(r.dir, "f"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := r.get(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}

func TestCacheKeepsNoMoreThanItsBound(t *testing.T) {
	t.Parallel()
	r := newReading(t)
	r.cache.Max = 10_000
	get := func(name string, size int) {
		t.Helper()
		if _, err := r.cache.Get(r.dir, name, func() (Made[string], error) {
			r.loads++
			return Made[string]{Value: strings.Repeat("x", size), Size: size, Absent: []string{name}}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		get(name, 3000)
	}
	get("large", 20_000)
	var sum int64
	for _, k := range r.cache.kept {
		sum += k.size
	}
	if isLocal(r.dir) && (sum != r.cache.size || sum > 10_000 || len(r.cache.kept) != 3) {
		t.Errorf("%d values of %d bytes are kept, counted as %d, want 3", len(r.cache.kept), sum, r.cache.size)
	}
	if r.loads != 27 {
		t.Errorf("%d loads, want 27", r.loads)
	}
}

func TestCacheKeepsNoError(t *testing.T) {
	t.Parallel()
	r := newReading(t)
	want := errors.New("broken")
	for range 2 {
		if _, err := r.cache.Get(r.dir, "f", func() (Made[string], error) {
			r.loads++
			return Made[string]{Absent: []string{"f"}}, want
		}); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if r.loads != 2 {
		t.Errorf("%d loads, want 2", r.loads)
	}
}

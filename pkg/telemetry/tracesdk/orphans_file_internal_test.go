//go:build linux

package tracesdk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestRemoveOldest checks that of too many files the oldest ones are removed, and none of a
// process that is running.
func TestRemoveOldest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var names []string
	for i := range maxFiles + 3 { // the names are not in the order of the times
		name := filepath.Join(dir, fmt.Sprintf("%d%s", 1000-i, spoolSuffix))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i-1000) * time.Hour)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	running, err := os.Open(names[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = running.Close() })
	if err := lockFile(running); err != nil {
		t.Fatal(err)
	}
	want := append([]string{names[1]}, names[4:]...)
	for _, removes := range []int{3, 0} {
		kept, removed := removeOldest(spoolFiles(dir))
		if removed != removes || !slices.Equal(kept, want) {
			t.Errorf("removed %d files, kept %q; want %d and %q", removed, kept, removes, want)
		}
	}
	if left := spoolFiles(dir); len(left) != len(want) {
		t.Errorf("%d files are left, want %d", len(left), len(want))
	}
}

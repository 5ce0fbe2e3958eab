package loop

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// TestRemoveFolderInUse tests that a folder is removed although files are written to it
// until shortly after the removal has begun.
func TestRemoveFolderInUse(t *testing.T) {
	t.Parallel()
	for range 20 {
		root := t.TempDir()
		folder := filepath.Join(root, "ada", "notes")
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		begun := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			for i := range 3000 {
				_ = os.WriteFile(filepath.Join(folder, strconv.Itoa(i)), nil, 0o600) // fails once the folder is removed
				if i == 100 {
					close(begun)
				}
			}
		})
		<-begun
		if err := removeFolder(t.Context(), filepath.Join(root, "ada")); err != nil {
			t.Error(err)
		}
		writer.Wait()
		if _, err := os.Stat(filepath.Join(root, "ada")); !os.IsNotExist(err) {
			t.Errorf("the folder: %v, want none", err)
		}
	}
}

package loop

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
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

// TestRemoveReadOnlyFolder tests that a folder is removed although folders in it are
// read-only, and that a link out of it is not followed.
func TestRemoveReadOnlyFolder(t *testing.T) {
	t.Parallel()
	const unprivileged = 65534
	root := t.TempDir()
	outside, folder := filepath.Join(root, "outside"), filepath.Join(root, "ada", "go", "pkg", "mod\xff")
	for _, dir := range []string{outside, folder} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "go.mod"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // root may write to every folder
		if err := os.Chmod(filepath.Dir(root), 0o711); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{root, filepath.Join(root, "ada"), filepath.Join(root, "ada", "go"), filepath.Dir(folder), folder} {
			if err := os.Chown(dir, unprivileged, unprivileged); err != nil {
				t.Fatal(err)
			}
		}
	}
	for path, mode := range map[string]os.FileMode{outside: 0o500, folder: 0o500, filepath.Dir(folder): 0o000} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	removed := make(chan error)
	go func() {
		if os.Geteuid() == 0 {
			runtime.LockOSThread() // the thread ends with the goroutine
			if err := syscall.Setfsuid(unprivileged); err != nil {
				removed <- err
				return
			}
		}
		removed <- removeFolder(t.Context(), filepath.Join(root, "ada"))
	}()
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "ada")); !os.IsNotExist(err) {
		t.Errorf("the folder: %v, want none", err)
	}
	if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("the folder outside: %v, %v, want it unchanged", info, err)
	}
}

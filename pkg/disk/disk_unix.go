//go:build unix

package disk

import (
	"fmt"
	"os"
	"syscall"
)

// Of returns the space of the file system that dir is on.
func Of(dir string) (Space, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return Space{}, fmt.Errorf("room on the disk of %s: %w", dir, err)
	}
	size := int64(s.Bsize) //nolint:unconvert // its type differs between systems
	return Space{Free: int64(s.Bavail) * size, Total: int64(s.Blocks) * size}, nil
}

type inode struct{ dev, ino uint64 }

// used returns the disk space of a file in bytes; 0 if another name of it is in linked.
func used(info os.FileInfo, linked map[inode]bool) int64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.Size()
	}
	if st.Nlink > 1 && !info.IsDir() {
		id := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // its type differs between systems
		if linked[id] {
			return 0
		}
		linked[id] = true
	}
	return st.Blocks * 512
}

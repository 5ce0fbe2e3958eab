package tracesdk

import (
	"os"
	"syscall"
)

// canSpool reports whether this system has the spool. On others a process that is killed
// loses the spans that it has not sent.
const canSpool = true

// lockFile locks a file, or returns an error if another process has locked it. The kernel
// releases the lock at the end of the process, also after a crash.
func lockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

func unlockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// mapFile maps a file of size bytes into memory.
func mapFile(f *os.File, size int) ([]byte, error) {
	// Without reserved disk space, access to a mapped page could raise SIGBUS.
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(size)); err != nil {
		return nil, err
	}
	return syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}

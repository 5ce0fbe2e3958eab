package embednats

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrInUse is in the chain of the error of [Start] if another process uses the folder.
var ErrInUse = errors.New("in use")

// lockDir creates dir and locks it for one server: two servers on the same files would
// destroy them. The kernel releases the lock when the process ends in any way.
// [unlock] releases it earlier.
func lockDir(dir string) (_ *os.File, err error) {
	if dir == "" {
		return nil, errors.New("nats folder: none given")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("nats folder: %w; name one that this user may write", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "server.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("nats folder: %w; name one that this user may write", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		pid, readErr := io.ReadAll(io.LimitReader(f, 32))
		return nil, errors.Join(fmt.Errorf("nats folder %s is %w by process %s: stop it, or name another folder",
			dir, ErrInUse, strings.TrimSpace(string(pid))), readErr)
	}
	if err != nil {
		return nil, fmt.Errorf("nats folder %s: lock: %w", dir, err)
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("nats folder: %w", err)
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		return nil, fmt.Errorf("nats folder: %w", err)
	}
	return f, nil
}

// unlock releases the lock of [lockDir]. To close the file is not enough: a child process
// that this one starts at the same time has a copy of it until it executes its program.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// Package netns runs functions and programs inside a named network namespace, as `ip
// netns add` creates. It needs root, and must not create or delete namespaces.
package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Path returns the path to which the namespace name is bound.
func Path(name string) string { return filepath.Join("/run/netns", name) }

// Exists reports whether the namespace name exists.
func Exists(name string) bool {
	_, err := os.Stat(Path(name))
	return err == nil
}

// Do calls f on a thread inside the namespace name. Sockets that f opens and programs
// that it starts remain in the namespace; goroutines that it starts do not run in it.
func Do(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread is never unlocked and therefore ends with this goroutine, so that no
		// other goroutine can run inside the namespace.
		runtime.LockOSThread()
		if err := enter(name); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// Exec replaces this program by argv inside the namespace name. It returns only on an
// error.
func Exec(name string, argv, env []string) error {
	runtime.LockOSThread()
	if err := enter(name); err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, env)
}

// Dialer returns a function for http.Transport that dials from the namespace name.
// Addresses must be numeric.
func Dialer(name string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var c net.Conn
		err := Do(name, func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
}

func enter(name string) error {
	f, err := os.Open(Path(name))
	if err != nil {
		return fmt.Errorf("network namespace %s: %w; is the lab up?", name, err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", name, err)
	}
	return nil
}

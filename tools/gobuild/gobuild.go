// Package gobuild compiles programs from pinned modules once on a machine, into a cache
// outside of the clone. The path of a program must contain a hash of everything that it
// is built from.
package gobuild

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Cache returns the path of a file or folder in the cache, ANIMA_CACHE or ~/.cache/anima.
func Cache(names ...string) (string, error) {
	root := os.Getenv("ANIMA_CACHE")
	if root == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("%w; set ANIMA_CACHE to a folder for built programs", err)
		}
		root = filepath.Join(home, ".cache", "anima")
	}
	return filepath.Abs(filepath.Join(append([]string{root}, names...)...))
}

// Flags returns flags of go build that keep the paths and times of this machine out of a
// program.
func Flags() []string { return []string{"-trimpath", "-buildvcs=false", "-mod=readonly"} }

// Go returns a go command that runs in dir, outside of the workspace and without cgo.
func Go(ctx context.Context, dir string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=")
	return c
}

// Once calls build with a temporary name for the program bin, unless bin exists, and
// reports whether it did. Processes exclude each other by a file lock beside bin.
func Once(bin string, build func(file string) error) (built bool, err error) {
	if _, err := os.Stat(bin); err == nil {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		return false, err
	}
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(bin), "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }() // releases the lock
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintln(os.Stderr, "waiting for another build of", filepath.Base(bin))
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			return false, err
		}
	}
	if _, err := os.Stat(bin); err == nil { // another process has built it meanwhile
		return false, nil
	}
	if err := build(bin + ".new"); err != nil {
		return false, err
	}
	return true, os.Rename(bin+".new", bin)
}

// Compile builds a package of the module in dir into file, two packages at a time or as
// many as the variable P says, and prints the time at intervals. more are further flags.
// The error contains the end of the output.
func Compile(ctx context.Context, dir, pkg, file string, more ...string) error {
	parallel := os.Getenv("P")
	if parallel == "" {
		parallel = "2"
	}
	args := append([]string{"build", "-v", "-p", parallel}, Flags()...)
	c := Go(ctx, dir, append(append(args, more...), "-o", file, pkg)...)
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	ended := make(chan error, 1)
	go func() { ended <- c.Run() }()
	began, tick := time.Now(), time.NewTicker(15*time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err == nil {
				return nil
			}
			lines := strings.Split(strings.TrimSpace(said.String()), "\n")
			return fmt.Errorf("%w\n%s", err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
		case <-tick.C:
			fmt.Fprintf(os.Stderr, "building %s: %.0f s\n", strings.TrimSuffix(filepath.Base(file), ".new"), time.Since(began).Seconds())
		}
	}
}

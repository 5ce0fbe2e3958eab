// Package disktest provides a test with a small disk that the test can fill. It is for
// tests only.
package disktest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// child is the variable that marks the process with the disk; its value is the name of
// the test.
const child = "ANIMA_DISKTEST_CHILD"

// Run runs f in a separate process, with a folder that is an empty file system of the
// given size. The process executes this test binary again in a mount namespace, and as
// root in a user namespace if this user may not mount. The test fails on a machine that
// allows neither. TestMain of the test binary runs as usual.
func Run(t *testing.T, bytes int64, f func(t *testing.T, dir string)) {
	t.Helper()
	if name, _ := os.LookupEnv(child); name == t.Name() {
		dir := t.TempDir()
		if err := mount(dir, bytes); err != nil {
			t.Fatalf("mount a disk of %d bytes: %v", bytes, err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }) // the namespace ends with the process
		f(t, dir)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), child+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a process with a small disk (which needs root, or user namespaces): %v\n%s", err, out)
	}
}

func mount(dir string, bytes int64) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size="+strconv.FormatInt(bytes, 10))
}

// Fill uses all free space of dir's file system and returns a function that releases it.
func Fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, ".full")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1 << 20, 4 << 10} {
		for err == nil {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, io.ErrShortWrite) {
			t.Fatalf("fill the disk: %v", err)
		}
		err = nil
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

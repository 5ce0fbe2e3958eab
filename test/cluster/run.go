package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/anima-run/anima/test/cluster/internal/netns"
)

// inside runs c in the lab's network with in as its input, and returns its output.
func inside(c *exec.Cmd, in []byte) ([]byte, error) {
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(in), &out, &errs
	err := netns.Do(labName, c.Run)
	if err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

// command runs a program of this machine and returns its trimmed output.
func command(ctx context.Context, argv ...string) (string, error) {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, text)
	}
	return text, nil
}

// daemon describes a process that continues after this program ends.
type daemon struct {
	name  string // of its record and its log
	netns string
	argv  []string
	env   []string // in addition to this program's
	flags uintptr  // new namespaces, CLONE_NEW…
}

// start starts d unless it is running, and records it.
func (l *lab) start(d daemon) error {
	if _, alive := l.procs().Get(d.name); alive {
		return nil
	}
	log, err := os.OpenFile(l.path("log", d.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// The daemon must not inherit other file descriptors, such as that of a file lock,
	// which would be held until the daemon ends.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}
	// The process is not bound to a context, because it must continue after this program
	// ends.
	c := exec.Command(d.argv[0], d.argv[1:]...) //nolint:noctx // continues after this program
	c.Env = append(os.Environ(), append(d.env, "ANIMA_LAB="+l.dir)...)
	c.Stdout, c.Stderr, c.Dir = log, log, l.dir
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: d.flags}
	if err := netns.Do(d.netns, c.Start); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}
	if err := l.procs().Write(d.name, c.Process.Pid); err != nil {
		return fmt.Errorf("%w; see %s", err, log.Name())
	}
	return c.Process.Release()
}

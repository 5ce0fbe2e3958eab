// Package proc records the processes that the lab has started, and ends them. It must not
// end other processes: a record has the process's start time and the boot id of the
// machine, so that a reused process id is detected.
package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Record identifies one process uniquely, also over reboots.
type Record struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/PID/stat
	Boot  string `json:"boot"`  // the kernel's boot id
}

// Dir is a folder of records, in files called NAME.json.
type Dir string

// Of returns the record of the running process pid.
func Of(pid int) (Record, error) {
	start, err := startTime(pid)
	if err != nil {
		return Record{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Record{}, err
	}
	return Record{PID: pid, Start: start, Boot: strings.TrimSpace(string(boot))}, nil
}

// Alive reports whether the process is running. A zombie process is not.
func (r Record) Alive() bool {
	now, err := Of(r.PID)
	return err == nil && now == r
}

// Write stores the record of pid under name.
func (d Dir) Write(name string, pid int) error {
	r, err := Of(pid)
	if err != nil {
		return fmt.Errorf("%s ended at once: %w", name, err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return err
	}
	return os.WriteFile(d.path(name), append(raw, '\n'), 0o644)
}

// Get returns the record of name, and whether its process is running.
func (d Dir) Get(name string) (Record, bool) {
	var r Record
	raw, err := os.ReadFile(d.path(name))
	if err != nil || json.Unmarshal(raw, &r) != nil {
		return Record{}, false
	}
	return r, r.Alive()
}

// Names returns the names of the records, sorted.
func (d Dir) Names() ([]string, error) {
	es, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range es {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Stop sends sig to the process of name, waits up to grace for its end, then sends
// SIGKILL, and removes the record. It is not an error if the process has ended.
func (d Dir) Stop(ctx context.Context, name string, sig syscall.Signal, grace time.Duration) error {
	r, alive := d.Get(name)
	if alive {
		if err := r.stop(ctx, sig, grace); err != nil {
			return fmt.Errorf("stop %s (process %d): %w", name, r.PID, err)
		}
	}
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r Record) stop(ctx context.Context, sig syscall.Signal, grace time.Duration) error {
	// The handle is opened before the check: it refers to this process even if the
	// process id is reused in between.
	p, err := os.FindProcess(r.PID)
	if err != nil {
		return err
	}
	defer func() { _ = p.Release() }()
	if !r.Alive() {
		return nil
	}
	for _, s := range []syscall.Signal{sig, syscall.SIGKILL} {
		if err := p.Signal(s); errors.Is(err, os.ErrProcessDone) {
			return nil
		} else if err != nil {
			return err
		}
		if r.gone(ctx, grace) {
			return nil
		}
	}
	return errors.New("it did not end")
}

// gone waits up to d for the end of the process; d is at least one second.
func (r Record) gone(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, max(d, time.Second))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for r.Alive() {
		select {
		case <-ctx.Done():
			return !r.Alive()
		case <-tick.C:
		}
	}
	return true
}

func (d Dir) path(name string) string { return filepath.Join(string(d), name+".json") }

func startTime(pid int) (uint64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may contain any
	// character.
	i := strings.LastIndexByte(string(raw), ')')
	f := strings.Fields(string(raw[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(f[19], 10, 64)
}

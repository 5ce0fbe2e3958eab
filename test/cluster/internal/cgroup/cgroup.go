// Package cgroup creates and removes the lab's control groups in a hierarchy of version 1
// or a hybrid one. It must not change groups other than those below the given name.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// controllers lists the controllers that kubelet and runc require.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd"}

// Root is the folder in which the hierarchies are mounted: /sys/fs/cgroup.
type Root string

// Missing returns the hierarchies of version 1 that kubelet needs and that are not
// mounted.
func (r Root) Missing() []string {
	var out []string
	for _, c := range controllers {
		// The root of a mounted hierarchy has this file; an empty folder does not.
		if _, err := os.Stat(filepath.Join(string(r), c, "cgroup.procs")); err != nil {
			out = append(out, c)
		}
	}
	return out
}

// Make creates the group name in every hierarchy. A new group of cpuset gets its parent's
// processors and memory nodes, because processes cannot be added to it without them.
func (r Root) Make(name string) error {
	for _, c := range controllers {
		at := filepath.Join(string(r), c)
		for part := range strings.SplitSeq(name, "/") {
			parent := at
			at = filepath.Join(at, part)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("control group %s: %w", at, err)
			}
			if c != "cpuset" {
				continue
			}
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				have, err := os.ReadFile(filepath.Join(at, f))
				if err == nil && len(bytes.TrimSpace(have)) > 0 {
					continue
				}
				v, err := os.ReadFile(filepath.Join(parent, f))
				if err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(at, f), v, 0o644); err != nil {
					return fmt.Errorf("control group %s: %w", at, err)
				}
			}
		}
	}
	return nil
}

// Remove removes the group name and all groups below it from every hierarchy. It waits up
// to d until the processes in them have ended.
func (r Root) Remove(ctx context.Context, name string, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		left := r.Left(name)
		slices.Reverse(left) // deepest first
		var last error
		for _, g := range left {
			if err := os.Remove(g); err != nil && !errors.Is(err, fs.ErrNotExist) {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("control groups %s are still in use: %w", name, last)
		case <-tick.C:
		}
	}
}

// Left returns the existing groups of that name and below, parents first, in every
// hierarchy of either version.
func (r Root) Left(name string) []string {
	var out []string
	es, err := os.ReadDir(string(r))
	if err != nil {
		return nil
	}
	for _, e := range es {
		_ = filepath.WalkDir(filepath.Join(string(r), e.Name(), name), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, p)
			}
			return nil
		})
	}
	return out
}

package cgroup

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// fake returns a hierarchy of ordinary folders with hand-written files in the place of
// the kernel's.
func fake(t *testing.T) Root {
	t.Helper()
	dir := t.TempDir()
	for _, c := range controllers {
		if err := os.MkdirAll(filepath.Join(dir, c), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, c, "cgroup.procs"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for f, v := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		if err := os.WriteFile(filepath.Join(dir, "cpuset", f), []byte(v), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Root(dir)
}

func TestMissing(t *testing.T) {
	t.Parallel()
	r := fake(t)
	if got := r.Missing(); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
	if err := os.Remove(filepath.Join(string(r), "pids", "cgroup.procs")); err != nil {
		t.Fatal(err)
	}
	if got, want := r.Missing(), []string{"pids"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMakeFillsCpusetFromTheTop(t *testing.T) {
	t.Parallel()
	r := fake(t)
	for range 2 { // the second call finds existing groups
		if err := r.Make("lab/node1"); err != nil {
			t.Fatal(err)
		}
	}
	for f, want := range map[string]string{"cpuset/lab/cpuset.cpus": "0-1\n", "cpuset/lab/node1/cpuset.mems": "0\n"} {
		got, err := os.ReadFile(filepath.Join(string(r), f))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q %v, want %q", f, got, err, want)
		}
	}
	if got, want := len(r.Left("lab")), 2*len(controllers); got != want {
		t.Errorf("groups: got %d, want %d", got, want)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	r := Root(t.TempDir())
	for _, g := range []string{"cpu/lab/node1/pod", "unified/lab/node1", "cpu/other"} {
		if err := os.MkdirAll(filepath.Join(string(r), g), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Remove(t.Context(), "lab", time.Second); err != nil {
		t.Fatal(err)
	}
	if got := r.Left("lab"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if got := r.Left("other"); len(got) != 1 {
		t.Errorf("a group of another name was removed")
	}
}

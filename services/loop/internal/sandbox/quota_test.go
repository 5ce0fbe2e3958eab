package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/disk/disktest"
)

// TestQuotaEndsTheCommand tests that a command that exceeds the quota is killed with its
// children before its normal end, and that the next command is not started.
func TestQuotaEndsTheCommand(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		quota   Quota
		command string
	}{
		"bytes":          {Quota{Bytes: 8 * disk.MiB}, `i=0; while :; do i=$((i+1)); head -c 1048576 /dev/zero > f$i; done`},
		"a child's":      {Quota{Bytes: 8 * disk.MiB}, `(setsid sh -c 'i=0; while :; do i=$((i+1)); head -c 1048576 /dev/zero > f$i; done') & wait`},
		"files":          {Quota{Files: 200}, `i=0; while :; do i=$((i+1)); : > f$i; done`},
		"one large file": {Quota{Bytes: 8 * disk.MiB}, `head -c 67108864 /dev/zero > f; for i in 1 2 3; do head -c 6291456 /dev/zero > g$i; done; sleep 1000`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, k kernel) {
				dir := t.TempDir()
				res := sh(t, k, Spec{Dir: dir, Command: tt.command, Timeout: 5 * time.Minute, Quota: tt.quota})
				if !errors.Is(res.Stopped, ErrQuota) || res.ExitCode != -1 || res.TimedOut {
					t.Errorf("got %+v, want it stopped by %v", res, ErrQuota)
				}
				_, err := Run(t.Context(), Spec{Dir: dir, Command: "echo ran > ran", AllowUnsandboxed: true, Quota: tt.quota})
				if _, ran := os.Stat(filepath.Join(dir, "ran")); !errors.Is(err, ErrQuota) || ran == nil {
					t.Errorf("over its quota: %v, %v; want a command that was not begun", err, ran)
				}
			})
		})
	}
	res := sh(t, thisKernel(false), Spec{Command: "head -c 1048576 /dev/zero > f; echo done", Quota: Quota{Bytes: 8 * disk.MiB, Files: 10}})
	if res.Stopped != nil || res.ExitCode != 0 || res.Stdout != "done\n" {
		t.Errorf("within its quota: %+v", res)
	}
}

// TestOverQuotaOnlyRemoves tests that a command which may remove files runs in a workspace
// that exceeds its quota, that it can add nothing, and that the next command is not
// restricted when the files fit again.
func TestOverQuotaOnlyRemoves(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		dir := t.TempDir()
		for name, size := range map[string]int{"large": 6 * disk.MiB, "keep": 4, "d/script": 0} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o700)); err != nil {
				t.Fatal(err)
			}
		}
		spec := complete(t, k, Spec{Dir: dir, Command: "true", Quota: Quota{Bytes: 4 * disk.MiB}})
		if _, err := run(t.Context(), spec, k); !errors.Is(err, ErrQuota) {
			t.Errorf("a command that may not remove files: %v, want %v", err, ErrQuota)
		}
		spec.MayRemove = true
		if !k.caps.Sandboxed() {
			if _, err := run(t.Context(), spec, k); !errors.Is(err, ErrQuota) {
				t.Errorf("without a sandbox: %v, want %v", err, ErrQuota)
			}
			return
		}
		before := tree(t, dir)
		for _, command := range []string{
			"echo x > new", "echo x >> keep", ": > keep", "mkdir m", "ln keep l", "ln -s keep l", "mv keep l", "mkfifo p", "head -c 9 large > d/new",
		} {
			spec.Command = command
			if res, err := run(t.Context(), spec, k); err != nil || res.ExitCode == 0 || !errors.Is(res.OverQuota, ErrQuota) {
				t.Errorf("%q: got %+v, %v, want a failure and the quota", command, res, err)
			}
		}
		if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
			t.Errorf("the commands changed the folder (-before +after):\n%s", diff)
		}
		spec.Command = "cat keep > /dev/null && d/script && rm -r large d && ls"
		if res, err := run(t.Context(), spec, k); err != nil || res.ExitCode != 0 || res.Stdout != "keep\n" || !errors.Is(res.OverQuota, ErrQuota) {
			t.Errorf("removal: got %+v, %v", res, err)
		}
		spec.Command = "echo x > new && cat new"
		if res, err := run(t.Context(), spec, k); err != nil || res.ExitCode != 0 || res.Stdout != "x\n" || res.OverQuota != nil {
			t.Errorf("with space again: got %+v, %v", res, err)
		}
	})
}

// tree returns the files below a folder with their sizes.
func tree(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all[path] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestReserveEndsTheCommand tests that no command can use the reserve of the disk.
func TestReserveEndsTheCommand(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 128*disk.MiB, func(t *testing.T, dir string) {
		r, err := disk.NewReserve(dir, 64*disk.MiB)
		if err != nil {
			t.Fatal(err)
		}
		work := filepath.Join(dir, "work")
		if err := os.Mkdir(work, 0o700); err != nil {
			t.Fatal(err)
		}
		spec := Spec{Dir: work, Command: "i=0; while :; do i=$((i+1)); head -c 262144 /dev/zero > f$i; done", Timeout: 5 * time.Minute, AllowUnsandboxed: true, Room: r.Check}
		res, err := Run(t.Context(), spec)
		if err != nil || api.ReasonOf(res.Stopped) != api.ReasonNoSpace {
			t.Errorf("got %+v, %v, want it stopped with the reason %s", res, err, api.ReasonNoSpace)
		}
		if s, err := r.Space(); err != nil || s.Free < 8*disk.MiB {
			t.Errorf("%d bytes are left of the reserve, %v", s.Free, err)
		}
		if _, err := Run(t.Context(), spec); err == nil {
			t.Error("the next command was begun")
		}
	})
}

// TestQuotaOfAProcess tests that the quota applies to a process that Start started.
func TestQuotaOfAProcess(t *testing.T) {
	t.Parallel()
	p, err := Start(t.Context(), Spec{
		Dir: t.TempDir(), Command: "i=0; while :; do i=$((i+1)); head -c 1048576 /dev/zero > f$i; done",
		AllowUnsandboxed: true, Quota: Quota{Bytes: 4 * disk.MiB},
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if res, err := p.Stop(0); err != nil || !errors.Is(res.Stopped, ErrQuota) {
		t.Errorf("got %+v, %v, want it stopped by %v", res, err, ErrQuota)
	}
}

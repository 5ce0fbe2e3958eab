package disk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/disk/disktest"
)

func TestReserve(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 32*disk.MiB, func(t *testing.T, dir string) {
		for _, tt := range []struct{ given, want int64 }{{0, 32 * disk.MiB / 10}, {disk.MiB, disk.MiB}, {-1, 0}} {
			r, err := disk.NewReserve(dir, tt.given)
			if err != nil || r.Bytes() != tt.want {
				t.Errorf("a reserve of %d: %d, %v, want %d", tt.given, r.Bytes(), err, tt.want)
			}
		}
		r, err := disk.NewReserve(dir, 4*disk.MiB)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.Check(), r.CheckStranger()); err != nil {
			t.Errorf("with an empty disk: %v", err)
		}
		large := filepath.Join(dir, "large")
		if err := os.WriteFile(large, make([]byte, 26*disk.MiB), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.Check(); err != nil {
			t.Errorf("with more than the reserve: %v", err)
		}
		if err := r.CheckStranger(); api.ReasonOf(err) != api.ReasonNoSpace {
			t.Errorf("a stranger, with less than twice the reserve: %v, want %s", err, api.ReasonNoSpace)
		}
		if err := os.Remove(large); err != nil {
			t.Fatal(err)
		}
		free := disktest.Fill(t, dir)
		if err := r.Check(); api.CodeOf(err) != api.Unavailable || api.ReasonOf(err) != api.ReasonNoSpace {
			t.Errorf("with a full disk: %v, want Unavailable, %s", err, api.ReasonNoSpace)
		}
		if err := disk.Write(dir, disk.MiB); err == nil {
			t.Error("a full disk was written to")
		}
		free()
		if err := r.Check(); err != nil {
			t.Errorf("with space again: %v", err)
		}
		if err := disk.Write(dir, disk.MiB); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
	})
}

func TestSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", "b/c", "b/d"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	bytes, files, err := disk.Size(dir, 0, 0)
	if err != nil || bytes < 3<<20 || bytes > 3<<20+64<<10 || files != 6 {
		t.Errorf("%d bytes in %d files, %v; want 3 MiB and little more, in 6", bytes, files, err)
	}
	if bytes, _, err = disk.Size(dir, 1<<20, 0); err != nil || bytes <= 1<<20 || bytes >= 3<<20 {
		t.Errorf("stopped at %d bytes, %v, want soon after 1 MiB", bytes, err)
	}
}

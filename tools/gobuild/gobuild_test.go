package gobuild

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestOnce lets concurrent callers build one program.
func TestOnce(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "key", "program")
	var builds, builders atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			built, err := Once(bin, func(file string) error {
				builds.Add(1)
				return os.WriteFile(file, []byte("program"), 0o755)
			})
			if err != nil {
				t.Error(err)
			}
			if built {
				builders.Add(1)
			}
		})
	}
	all.Wait()
	if builds.Load() != 1 || builders.Load() != 1 {
		t.Errorf("%d builds, reported by %d callers, want 1", builds.Load(), builders.Load())
	}
	if got, err := os.ReadFile(bin); err != nil || string(got) != "program" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestOnceFails(t *testing.T) {
	t.Parallel()
	bin, fault := filepath.Join(t.TempDir(), "program"), errors.New("does not compile")
	if built, err := Once(bin, func(string) error { return fault }); built || !errors.Is(err, fault) {
		t.Errorf("got %t, %v", built, err)
	}
	if _, err := os.Stat(bin); err == nil {
		t.Error("a failed build left a program")
	}
}

func TestCompile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\n", "main.go": "package main\n\nfunc main() {}\n", "bad/bad.go": "package main\n\nfunc main() { missing() }\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "program")
	if err := Compile(t.Context(), dir, ".", out, "-ldflags", "-s -w"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(out); err != nil {
		t.Error(err)
	}
	if err := Compile(t.Context(), dir, "./bad", out); err == nil || !strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("got %v, want the message of the compiler", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Compile(ended, dir, ".", out); err == nil {
		t.Error("no error after the end of the context")
	}
}

func TestCache(t *testing.T) {
	t.Setenv("ANIMA_CACHE", "/somewhere")
	if got, err := Cache("a", "b"); err != nil || got != "/somewhere/a/b" {
		t.Errorf("got %q, %v", got, err)
	}
	t.Setenv("ANIMA_CACHE", "")
	t.Setenv("HOME", "/home/me")
	if got, err := Cache("a"); err != nil || got != "/home/me/.cache/anima/a" {
		t.Errorf("got %q, %v", got, err)
	}
}

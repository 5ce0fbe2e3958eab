package sandbox

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, path := range []string{"a.txt", "d/e/../f.txt", filepath.Join(root, "g", "h")} {
		for _, content := range []string{"", "one", strings.Repeat("x", MaxFile)} {
			if err := WriteFile(root, path, []byte(content)); err != nil {
				t.Fatalf("write %s: %v", path, err)
			}
			if got, err := ReadFile(root, path, 0); string(got) != content || err != nil {
				t.Errorf("%s has %d bytes, error %v; want the %d written", path, len(got), err, len(content))
			}
		}
	}
	if left, err := filepath.Glob(filepath.Join(root, ".write-*")); len(left) > 0 {
		t.Errorf("left behind %v, %v", left, err)
	}
}

func TestWriteKeepsTheMode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	script := filepath.Join(root, "s.sh")
	if err := os.WriteFile(script, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(root, "s.sh", []byte("#!/bin/sh")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(script); err != nil || info.Mode() != 0o700 {
		t.Errorf("mode %v, error %v; want -rwx------", info.Mode(), err)
	}
}

func TestFileFaults(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := errors.Join(
		os.WriteFile(secret, []byte("hunter2"), 0o600),
		os.WriteFile(filepath.Join(root, "file"), make([]byte, 100), 0o600),
		os.WriteFile(filepath.Join(root, "big"), make([]byte, MaxFile+1), 0o600),
		os.Mkdir(filepath.Join(root, "dir"), 0o700),
		os.Symlink(outside, filepath.Join(root, "out")),
		os.Symlink(secret, filepath.Join(root, "secret")),
		os.Symlink("dir/../file", filepath.Join(root, "in")),
		os.Symlink("../"+filepath.Base(outside), filepath.Join(root, "up")),
		syscall.Mkfifo(filepath.Join(root, "pipe"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	short, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(short) })
	var lc net.ListenConfig
	socket, err := lc.Listen(t.Context(), "unix", filepath.Join(short, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })

	for _, tt := range []struct {
		root, path  string
		read, write error
	}{
		{root, "../x", ErrOutside, ErrOutside},
		{root, "dir/../../x", ErrOutside, ErrOutside},
		{root, secret, ErrOutside, ErrOutside},
		{root, "/no-such-directory/x", ErrOutside, ErrOutside},
		{root, "out/secret", ErrOutside, ErrOutside},
		{root, "up/secret", ErrOutside, ErrOutside},
		{root, "", fs.ErrInvalid, fs.ErrInvalid},
		{root, "a\x00b", fs.ErrInvalid, fs.ErrInvalid},
		{root, ".", ErrIsDir, ErrIsDir},
		{root, root, ErrIsDir, ErrIsDir},
		{root, "dir", ErrIsDir, ErrIsDir},
		{root, "file/x", ErrNotADir, ErrNotADir},
		{root, "none", fs.ErrNotExist, nil},
		{root, "none2/none", fs.ErrNotExist, nil},
		{root, "big", ErrTooLarge, nil},
		{root, "pipe", ErrIrregular, nil},
		{short, "socket", ErrIrregular, nil},
		{root, "secret", ErrOutside, nil}, // WriteFile replaces the link
		{root, "in", nil, nil},
		{filepath.Join(root, "nowhere"), "x", fs.ErrNotExist, fs.ErrNotExist},
	} {
		if _, err := ReadFile(tt.root, tt.path, 0); !errors.Is(err, tt.read) {
			t.Errorf("read %q: error %v, want %v", tt.path, err, tt.read)
		}
		if err := WriteFile(tt.root, tt.path, []byte("new")); !errors.Is(err, tt.write) {
			t.Errorf("write %q: error %v, want %v", tt.path, err, tt.write)
		}
	}
	if got, err := os.ReadFile(secret); string(got) != "hunter2" {
		t.Errorf("the file outside has %q, %v; want it untouched", got, err)
	}
	if got, err := os.ReadDir(outside); len(got) != 1 {
		t.Errorf("outside there is %v, %v; want the secret alone", got, err)
	}
	if _, err := ReadFile(root, "file", 99); !errors.Is(err, ErrTooLarge) {
		t.Errorf("reading 100 bytes with a limit of 99: error %v, want %v", err, ErrTooLarge)
	}
	if err := WriteFile(root, "x", make([]byte, MaxFile+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("writing too much: error %v, want %v", err, ErrTooLarge)
	}
	_, err = ReadFile(root, "none3", 0)
	if want := "none3: no such file in the workspace: file does not exist"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestWriteIsWhole(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	long := strings.Repeat("y", 100_000)
	if err := WriteFile(root, "f", []byte("x")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if got, err := ReadFile(root, "f", 0); err != nil || (string(got) != "x" && string(got) != long) {
				t.Errorf("read %d bytes, error %v; want one whole content", len(got), err)
				return
			}
		}
	})
	for range 50 {
		for _, content := range []string{long, "x"} {
			if err := WriteFile(root, "f", []byte(content)); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	wg.Wait()
}

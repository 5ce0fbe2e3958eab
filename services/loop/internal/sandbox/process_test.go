package sandbox

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// begin starts a command, which must start.
func begin(t *testing.T, k kernel, spec Spec) *Process {
	t.Helper()
	p, err := start(t.Context(), complete(t, k, spec), k)
	if err != nil {
		t.Fatalf("start %q: %v", spec.Command, err)
	}
	return p
}

func TestProcessAnswersUntilItsInputEnds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		p := begin(t, k, Spec{Command: `while read -r l; do echo "got $l"; done; echo bye >&2; exit 7`})
		out := bufio.NewReader(p.Stdout)
		for _, word := range []string{"one", "two"} {
			if _, err := io.WriteString(p.Stdin, word+"\n"); err != nil {
				t.Fatal(err)
			}
			if got, err := out.ReadString('\n'); got != "got "+word+"\n" || err != nil {
				t.Errorf("answer %q, %v; want %q", got, err, "got "+word)
			}
		}
		for range 2 {
			if res, err := p.Stop(time.Minute); err != nil || res.ExitCode != 7 || res.Stderr != "bye\n" {
				t.Errorf("ended with %+v, %v; want exit code 7 and bye", res, err)
			}
		}
	})
}

func TestStopEndsEverything(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		// The child has its own session, ignores the signals that it can ignore, and
		// keeps the output open.
		p := begin(t, k, Spec{Command: `trap "" TERM HUP; setsid sh -c 'trap "" TERM HUP; echo up; sleep 1000' & cat; sleep 1000`})
		if got, err := bufio.NewReader(p.Stdout).ReadString('\n'); got != "up\n" {
			t.Fatalf("read %q, %v", got, err)
		}
		res, err := p.Stop(0)
		if err != nil || res.ExitCode != 137 {
			t.Errorf("ended with %+v, %v; want exit code 137", res, err)
		}
		select {
		case <-p.Done():
		default:
			t.Error("Done is open after Stop")
		}
	})
}

func TestProcessEndsByItself(t *testing.T) {
	t.Parallel()
	p := begin(t, thisKernel(false), Spec{Command: "echo last; exit 3"})
	<-p.Done()
	if got, err := io.ReadAll(p.Stdout); string(got) != "last\n" || err != nil {
		t.Errorf("read %q, %v; want what was written before the end", got, err)
	}
	if res, err := p.Stop(0); res.ExitCode != 3 || err != nil {
		t.Errorf("ended with %+v, %v; want exit code 3", res, err)
	}
}

func TestProcessOutlivesTheContextOfItsStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, Spec{Dir: t.TempDir(), Command: "cat", AllowUnsandboxed: true})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.WriteString(p.Stdin, "x\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := bufio.NewReader(p.Stdout).ReadString('\n'); got != "x\n" {
		t.Errorf("read %q, %v; want it to go on", got, err)
	}
	if res, err := p.Stop(time.Minute); err != nil || res.ExitCode != 0 {
		t.Errorf("ended with %+v, %v; want exit code 0", res, err)
	}
	if _, err := Start(ctx, Spec{Dir: t.TempDir(), Command: "cat", AllowUnsandboxed: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("started with a context that had ended: %v", err)
	}
}

func TestProcessIsHeld(t *testing.T) {
	t.Parallel()
	if !thisKernel(false).caps.Sandboxed() {
		t.Skip("this kernel cannot hold commands")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, k kernel) {
		p := begin(t, k, Spec{Command: "env | sort; cat " + secret, Env: []string{"TOKEN=it's mine"}})
		got, err := io.ReadAll(p.Stdout)
		if err != nil {
			t.Fatal(err)
		}
		res, err := p.Stop(time.Minute)
		if err != nil || res.ExitCode != 1 || strings.Contains(string(got)+res.Stderr, "hunter2") {
			t.Errorf("ended with %+v, %v, wrote %q; want it to be refused the file", res, err, got)
		}
		var names []string
		for line := range strings.Lines(string(got)) {
			name, _, _ := strings.Cut(line, "=")
			names = append(names, name)
		}
		want := []string{"GIT_CONFIG_NOSYSTEM", "HOME", "LANG", "PATH", "PWD", "SHELL", "TERM", "TMPDIR", "TOKEN"}
		if !slices.Equal(names, want) || !strings.Contains(string(got), "TOKEN=it's mine\n") {
			t.Errorf("environment %q, want %q", got, want)
		}
	})
}

func TestSpecRefusesVariables(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{{"hunter2"}, {"=hunter2"}, {"A B=hunter2"}, {"A=hunter2\x00"}, {"PATH=hunter2"}, {"A=1", "A=hunter2"}} {
		_, err := Run(t.Context(), Spec{Dir: t.TempDir(), Command: "true", Env: env})
		if !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error %v, want %v without the value", env, err, ErrInvalid)
		}
	}
}

func TestFinds(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]bool{"sh": true, "no-such-program": false, "": false, "../bin/sh": false, "/bin/sh": false} {
		if got := Finds(program); got != want {
			t.Errorf("Finds(%q) = %t, want %t", program, got, want)
		}
	}
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	outside := t.TempDir()
	if err := errors.Join(
		WriteFile(root, "d/a/x", []byte("old")), WriteFile(root, "d/b", nil), WriteFile(root, "new/x", []byte("new")),
		os.Symlink(outside, filepath.Join(root, "d", "link")), os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	if got, more, err := ReadDir(root, "d", 10); !slices.Equal(got, []string{"a/", "b"}) || more || err != nil {
		t.Errorf("ReadDir = %q, %t, %v; want a/ and b", got, more, err)
	}
	if got, more, err := ReadDir(root, "d", 1); len(got) > 1 || !more || err != nil {
		t.Errorf("ReadDir of one = %q, %t, %v; want to hear of more", got, more, err)
	}
	if err := Replace(root, "new", "d/a"); err != nil {
		t.Fatal(err)
	}
	if err := Replace(root, "d/a", "e/f/g"); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFile(root, "e/f/g/x", 0); string(got) != "new" || err != nil {
		t.Errorf("moved %q, %v; want what was new", got, err)
	}
	if err := Replace(root, "d/link", "moved"); !errors.Is(err, ErrNotADir) {
		t.Errorf("Replace of a link: %v, want %v", err, ErrNotADir)
	}
	for _, path := range []string{"../x", outside, "d/link/../../.."} {
		if err := Replace(root, "d", path); !errors.Is(err, ErrOutside) {
			t.Errorf("Replace to %s: %v, want %v", path, err, ErrOutside)
		}
		if err := RemoveAll(root, path); !errors.Is(err, ErrOutside) {
			t.Errorf("RemoveAll of %s: %v, want %v", path, err, ErrOutside)
		}
	}
	if err := RemoveAll(root, "."); err == nil {
		t.Error("the workspace itself was removed")
	}
	if err := errors.Join(RemoveAll(root, "d"), RemoveAll(root, "not-there")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

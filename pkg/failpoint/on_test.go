//go:build failpoint

package failpoint_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// child is set in the program that is to crash; its value is again in a program that
// re-arms itself.
const (
	child = "ANIMA_FAILPOINT_CHILD"
	again = "again"
)

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	for range 3 {
		err := failpoint.Do(context.Background(), failpoint.LoopPersist, func(context.Context) error {
			_, err := os.Stdout.WriteString("step ")
			return err
		})
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			_, _ = os.Stdout.WriteString("late ")
			if os.Getenv(child) == again {
				_ = os.WriteFile(strings.TrimPrefix(os.Getenv("ANIMA_FAILPOINT"), "@"), []byte("loop.persist:timeout"), 0o600)
			}
		case api.CodeOf(err) == api.Unavailable:
			_, _ = os.Stdout.WriteString("away ")
		}
	}
	defer func() { _, _ = os.Stdout.WriteString("end") }()
}

// TestDies runs a program that takes a step three times.
func TestDies(t *testing.T) {
	t.Parallel()
	for spec, c := range map[string]struct {
		want   string
		killed bool
	}{
		"":                         {"step step step end", false},
		"loop.persist:before":      {"", true},
		"loop.persist:before:2":    {"step ", true},
		"loop.persist:after:2":     {"step step ", true},
		"loop.persist:timeout:2":   {"step step late step end", false},
		"loop.persist:before:4":    {"step step step end", false},
		"loop.accept:before":       {"step step step end", false},
		"loop.persist:after:1:1ms": {"step ", true},
		"loop.nowhere:before":      {"", false},
		"loop.persist:sometimes":   {"", false},
	} {
		for _, inFile := range []bool{false, true} {
			value, file := spec, filepath.Join(t.TempDir(), "armed")
			if inFile {
				if err := os.WriteFile(file, []byte(spec+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				value = "@" + file
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = []string{child + "=1", "ANIMA_FAILPOINT=" + value}
			out, err := cmd.Output()
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if got := string(out); strings.TrimSuffix(got, "end") != strings.TrimSuffix(c.want, "end") {
				t.Errorf("%q in a file %t: got %q, want %q", spec, inFile, got, c.want)
			}
			if killed := status.Signaled() && status.Signal() == syscall.SIGKILL; killed != c.killed {
				t.Errorf("%q in a file %t: ended with %v, want killed %t", spec, inFile, err, c.killed)
			}
			if _, err := os.Stat(file); inFile && c.killed && err == nil {
				t.Errorf("%q: the file is still there, and the next process crashes too", spec)
			}
		}
	}
}

// TestArmedAgain re-arms a program that keeps running, with the same specification.
func TestArmedAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "armed")
	if err := os.WriteFile(file, []byte("loop.persist:timeout"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{child + "=" + again, "ANIMA_FAILPOINT=@" + file}
	out, err := cmd.Output()
	if want := "step late step late step late end"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// TestBroken checks that no safeguard is disabled unless ANIMA_MUTATION names it.
func TestBroken(t *testing.T) {
	t.Parallel()
	for _, m := range []failpoint.Mutation{failpoint.NoExpectedSequence, failpoint.NoMessageID, failpoint.AnswerBeforeCommit} {
		if failpoint.Broken(m) {
			t.Errorf("%s is disabled, want no safeguard disabled", m)
		}
	}
}

package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRun(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		dir := t.TempDir()
		for command, want := range map[string]Result{
			"echo out; echo err >&2; exit 3": {ExitCode: 3, Stdout: "out\n", Stderr: "err\n"},
			"kill -9 $$":                     {ExitCode: 137},
			"pwd; echo $HOME":                {Stdout: dir + "\n" + dir + "\n"},
			"cat; echo end":                  {Stdout: "end\n"},
			"f=$(mktemp) && echo x > $f && cat $f && rm $f":                      {Stdout: "x\n"},
			"echo x > a && mkdir d && mv a d/ && ln d/a e && cat e && rm -r d e": {Stdout: "x\n"},
			"printf 'echo ran' > s && chmod +x s && ./s; rm s":                   {Stdout: "ran\n"},
			"echo x > /dev/null; head -c 2 /dev/zero | wc -c":                    {Stdout: "2\n"},
			"echo seen > /dev/stderr":                                            {Stderr: "seen\n"},
			"no-such-program 2> /dev/null":                                       {ExitCode: 127},
		} {
			got := sh(t, k, Spec{Dir: dir, Command: command})
			got.Held = Capabilities{}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%q (-want +got):\n%s", command, diff)
			}
		}
	})
}

func TestRunTellsWhatHeld(t *testing.T) {
	t.Parallel()
	res, err := Run(t.Context(), Spec{Dir: t.TempDir(), Command: "true", AllowUnsandboxed: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := Probe(t.Context()); res.Held != want {
		t.Errorf("held by %+v, want what Probe says, %+v", res.Held, want)
	}
}

func TestRefusesWithoutLandlock(t *testing.T) {
	t.Parallel()
	for abi := range min(3, landlockABI()+1) {
		k := thisKernel(false)
		k.caps.LandlockABI = abi
		spec, err := Spec{Dir: t.TempDir(), Command: "echo ran > ran"}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t.Context(), spec, k); !errors.Is(err, ErrUnavailable) {
			t.Errorf("landlock %d: error %v, want %v", abi, err, ErrUnavailable)
		}
		if _, err := os.Stat(filepath.Join(spec.Dir, "ran")); err == nil {
			t.Errorf("landlock %d: the refused command ran", abi)
		}
		spec.AllowUnsandboxed = true
		if res, err := run(t.Context(), spec, k); err != nil || res.ExitCode != 0 || res.Held.LandlockABI != abi {
			t.Errorf("landlock %d, allowed: %+v, error %v; want exit code 0", abi, res, err)
		}
	}
}

func TestRefusesInvalid(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]Spec{
		"no command":     {Dir: dir},
		"NUL":            {Dir: dir, Command: "a\x00b"},
		"long command":   {Dir: dir, Command: strings.Repeat("x", maxCommand+1)},
		"no directory":   {Command: "true"},
		"relative":       {Dir: ".", Command: "true"},
		"everything":     {Dir: "/", Command: "true"},
		"missing":        {Dir: filepath.Join(dir, "none"), Command: "true"},
		"a file":         {Dir: file, Command: "true"},
		"negative limit": {Dir: dir, Command: "true", MaxOutput: -1},
	} {
		if _, err := Run(t.Context(), spec); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: error %v, want %v", name, err, ErrInvalid)
		}
	}
	long := Spec{Dir: dir, Command: "true #" + strings.Repeat("\x01", maxCommand-6), AllowUnsandboxed: true}
	if res, err := Run(t.Context(), long); err != nil || res.ExitCode != 0 {
		t.Errorf("the longest command: %+v, error %v; want exit code 0", res, err)
	}
}

// holding returns commands that leave a process of some kind running, which writes to the
// pipe "held" and keeps it open until it ends.
func holding() map[string]string {
	return map[string]string{
		"deaf child":       `trap "" TERM INT HUP; exec 9>held; echo >&9; sleep 1000`,
		"grandchild":       `(trap "" TERM; (exec 9>held; echo >&9; sleep 1000) & wait) & wait`,
		"daemon":           `setsid sh -c 'trap "" TERM HUP; exec 9>held; echo >&9; sleep 1000' & wait`,
		"daemon's orphan":  `setsid sh -c '(setsid sh -c "exec 9>held >/dev/null 2>&1; echo >&9; sleep 1000" &)'; sleep 1000`,
		"busy with output": `exec 9>held; echo >&9; while :; do echo x; done`,
	}
}

// eachHolding runs a test as each does, for each command of holding.
func eachHolding(t *testing.T, test func(t *testing.T, k kernel, command string)) {
	each(t, func(t *testing.T, k kernel) {
		for name, command := range holding() {
			t.Run(name, func(t *testing.T) { t.Parallel(); test(t, k, command) })
		}
	})
}

// pipe creates the pipe "held" in dir. held waits until a process has the pipe open, free
// until none has.
func pipe(t *testing.T, dir string) (held, free func()) {
	t.Helper()
	path := filepath.Join(dir, "held")
	if err := syscall.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	// A writer in this process prevents EOF before a process has the pipe open, and lets
	// the open succeed without another process.
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	read := func(patience time.Duration) (int, error) {
		if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return r.Read(make([]byte, 1))
	}
	held = func() {
		t.Helper()
		if n, err := read(30 * time.Second); n != 1 {
			t.Fatalf("no process holds the pipe: %v", err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	free = func() {
		t.Helper()
		if n, err := read(20 * time.Second); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("reading the pipe gave %d bytes, error %v; want its end, since all processes have ended", n, err)
		}
	}
	return held, free
}

func TestCancelEndsEveryProcess(t *testing.T) {
	t.Parallel()
	eachHolding(t, func(t *testing.T, k kernel, command string) {
		spec, err := Spec{Dir: t.TempDir(), Command: command, Timeout: time.Minute, AllowUnsandboxed: true}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		held, free := pipe(t, spec.Dir)
		why := errors.New("the run was cancelled")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		returned := make(chan error, 1)
		go func() {
			_, err := run(ctx, spec, k)
			returned <- err
		}()
		held()
		cancel(why)
		select {
		case err := <-returned:
			if !errors.Is(err, why) {
				t.Errorf("error %v, want %v", err, why)
			}
		case <-time.After(20 * time.Second): // 2 s on an idle machine
			t.Error("Run has not returned 20 s after the cancel")
			if err := <-returned; err == nil {
				t.Error("and then as if nothing had been")
			}
		}
		free()
	})
}

func TestCancelOfAStoppedSupervisorEndsEveryProcess(t *testing.T) {
	t.Parallel()
	eachHolding(t, func(t *testing.T, k kernel, command string) {
		spec := complete(t, k, Spec{Command: command})
		if err := k.prepare(spec); err != nil {
			t.Fatal(err)
		}
		held, free := pipe(t, spec.Dir)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		spaces := k.best(ctx)
		cmd := again(ctx, "supervise", spaces)
		wait, err := launch(cmd, spec.order(k.caps.with(spaces)), func() {})
		if err != nil {
			t.Fatal(err)
		}
		held()
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		cancel()
		if rep, err := wait(); err == nil {
			t.Errorf("the stopped supervisor reported %+v", rep)
		}
		free()
	})
}

func TestTimeoutEndsEveryProcess(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		dir := t.TempDir()
		held, free := pipe(t, dir)
		// Three seconds are enough to start the daemon on a busy machine.
		res := sh(t, k, Spec{Dir: dir, Command: "echo begun; " + holding()["daemon"], Timeout: 3 * time.Second})
		held()
		free()
		if !res.TimedOut || res.ExitCode != -1 || res.Stdout != "begun\n" {
			t.Errorf("got %+v, want a timeout, exit code -1 and the output so far", res)
		}
	})
}

// TestExpire checks that the timeout of a command begins after its start, which has a
// limit of its own, and that nothing expires after the end.
func TestExpire(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		start, end time.Duration // of the command; 0: never
		want       error
		after      time.Duration
	}{
		"slow start":    {5 * time.Second, 0, errTimedOut, 6 * time.Second},
		"never started": {0, 0, errNotStarted, StartTimeout},
		"ended":         {5 * time.Second, 5500 * time.Millisecond, nil, 5500 * time.Millisecond},
		"cancelled":     {0, 3 * time.Second, nil, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				started := make(chan struct{})
				if c.start > 0 {
					time.AfterFunc(c.start, func() { close(started) })
				}
				if c.end > 0 {
					time.AfterFunc(c.end, cancel)
				}
				began := time.Now()
				if err := expire(ctx, started, time.Second); !errors.Is(err, c.want) || time.Since(began) != c.after {
					t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), c.want, c.after)
				}
			})
		})
	}
}

func TestEndLeavesNoProcess(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		dir := t.TempDir()
		held, free := pipe(t, dir)
		res := sh(t, k, Spec{Dir: dir, Command: `mkfifo up; setsid sh -c 'trap "" TERM HUP; exec 9>held; echo >&9; echo > up; sleep 1000' & read x < up; exit 7`})
		if res.ExitCode != 7 {
			t.Errorf("got %+v, want exit code 7", res)
		}
		held()
		free()
	})
}

func TestDeathOfTheOwnerLeavesNoProcess(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{false, true} {
		for name, command := range holding() {
			t.Run(fmt.Sprintf("%s, bare %v", name, bare), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				held, free := pipe(t, dir)
				cmd := owner(t, false)
				order, err := json.Marshal(owned{Dir: dir, Command: command, Bare: bare})
				if err != nil {
					t.Fatal(err)
				}
				cmd.Stdin = bytes.NewReader(order)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				held()
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err == nil {
					t.Error("the killed owner ended well")
				}
				free()
			})
		}
	}
}

func TestOutputIsCut(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		res := sh(t, k, Spec{Command: "echo first; seq 100000; echo last; echo warn >&2", MaxOutput: 40})
		want := "first\n1\n2\n3\n4\n5\n6\n7\n\n… 588866 bytes left out …\n"
		if !strings.HasPrefix(res.Stdout, want) || !strings.HasSuffix(res.Stdout, "\n100000\nlast\n") || !res.Truncated || res.Stderr != "warn\n" {
			t.Errorf("got %+v, want stdout to begin with %q", res, want)
		}
	})
}

func TestOutput(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		writes []string
		want   string
	}{
		{nil, ""},
		{[]string{"abc"}, "abc"},
		{[]string{"abcdefgh"}, "abcdefgh"},
		{[]string{"a", "bcde", "fgh"}, "abcdefgh"},
		{[]string{"abcdefghi"}, "abcd\n… 1 bytes left out …\nfghi"},
		{[]string{"abcdefg", "hij", "kl"}, "abcd\n… 4 bytes left out …\nijkl"},
		{[]string{"abcdefghijklmnop", "q"}, "abcd\n… 9 bytes left out …\nnopq"},
	} {
		o := newOutput(8, nil)
		for _, w := range tt.writes {
			if n, err := o.Write([]byte(w)); n != len(w) || err != nil {
				t.Errorf("Write(%q) = %d, %v", w, n, err)
			}
		}
		if got := o.String(); got != tt.want {
			t.Errorf("after %q: got %q, want %q", tt.writes, got, tt.want)
		}
	}
}

func TestRunsTogether(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, k kernel) {
		var wg sync.WaitGroup
		for i := range 6 {
			dir := t.TempDir()
			wg.Go(func() {
				want := fmt.Sprintf("%d\n", i)
				if res := sh(t, k, Spec{Dir: dir, Command: "sleep 0.1 & wait; echo " + want}); res.Stdout != want || res.ExitCode != 0 {
					t.Errorf("got %+v, want %q", res, want)
				}
			})
		}
		wg.Wait()
	})
}

func BenchmarkRun(b *testing.B) {
	spec := Spec{Dir: b.TempDir(), Command: "true", AllowUnsandboxed: true}
	for b.Loop() {
		if _, err := Run(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
	}
}

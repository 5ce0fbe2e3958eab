//go:build failpoint

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Do calls the step f. If p is armed, it injects the fault of p's mode.
func Do(ctx context.Context, p Point, f func(context.Context) error) error {
	mode, linger := trigger.pass(p)
	switch mode {
	case Before:
		kill(linger)
	case Stop:
		halt()
	}
	err := f(ctx)
	switch mode {
	case After:
		kill(linger)
	case Timeout:
		return late(p)
	}
	return err
}

// Value calls the step f and returns its result. If p is armed, it injects the fault of
// p's mode. With an error the result is the zero value.
func Value[T any](ctx context.Context, p Point, f func(context.Context) (T, error)) (v T, err error) {
	err = Do(ctx, p, func(ctx context.Context) (err error) { v, err = f(ctx); return err })
	if err != nil {
		var none T
		v = none
	}
	return v, err
}

// Broken reports whether the safeguard m is disabled. It exists only in builds with the
// tag failpoint; code that calls it belongs in files with that tag.
func Broken(m Mutation) bool { return os.Getenv("ANIMA_MUTATION") == m.String() }

// trigger holds the armed point of this process and the number of passes so far.
var trigger arming

type arming struct {
	mu    sync.Mutex
	spec  string // the specification that count belongs to
	count int
	spent bool
}

func (a *arming) pass(p Point) (Mode, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if path := os.Getenv("ANIMA_FAILPOINT_PASSES"); path != "" {
		note(path, p)
	}
	spec := os.Getenv("ANIMA_FAILPOINT")
	file, inFile := strings.CutPrefix(spec, "@")
	if inFile {
		data, err := os.ReadFile(file)
		if err != nil { // no file: no point is armed
			a.spec = ""
			return "", 0
		}
		spec = strings.TrimSpace(string(data))
	}
	if spec != a.spec {
		a.spec, a.count, a.spent = spec, 0, false
	}
	if spec == "" || a.spent {
		return "", 0
	}
	name, mode, n, linger := parse(spec)
	if name != p.String() {
		return "", 0
	}
	if a.count++; a.count != n {
		return "", 0
	}
	a.spent = true
	if inFile {
		a.spec = "" // the same specification in a new file arms the point again
		switch err := os.Remove(file); {
		case errors.Is(err, os.ErrNotExist):
			return "", 0 // another process with the same file has fired
		case err != nil:
			panic(err)
		}
	}
	return mode, linger
}

// parse reads name:mode[:n[:linger]]. An invalid specification ends the process with
// status 2: a test that arms no point would pass.
func parse(spec string) (name string, mode Mode, n int, linger time.Duration) {
	parts := strings.Split(spec, ":")
	known := slices.ContainsFunc(table[:], func(i Info) bool { return i.Name == parts[0] })
	n = 1
	var err error
	if len(parts) > 2 {
		n, err = strconv.Atoi(parts[2])
	}
	if len(parts) > 3 && err == nil {
		linger, err = time.ParseDuration(parts[3])
	}
	if len(parts) > 1 {
		mode = Mode(parts[1])
	}
	if !known || mode != Stop && !slices.Contains(Modes(), mode) || err != nil || n < 1 || len(parts) > 4 {
		fmt.Fprintf(os.Stderr, "failpoint: %q is not name:mode[:n[:linger]]\n", spec)
		os.Exit(2)
	}
	return parts[0], mode, n, linger
}

func note(path string, p Point) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	_, err = f.WriteString(p.String() + "\n")
	if cerr := f.Close(); err != nil || cerr != nil {
		panic(fmt.Sprint(err, cerr))
	}
}

func kill(linger time.Duration) {
	time.Sleep(linger)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// halt stops the process and returns after SIGCONT. The signal is sent to this thread: one
// to the process may be delivered to another thread, much later on a busy machine.
func halt() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = syscall.Tgkill(syscall.Getpid(), syscall.Gettid(), syscall.SIGSTOP) // of this process: never fails
}

// late returns the error of a step whose answer did not arrive in time.
func late(p Point) error {
	if p.Info().Call {
		return &api.Error{
			Code: api.Unavailable, Message: p.String() + " was not answered in time", Next: "try again", RetryAfter: 100,
		}
	}
	return fmt.Errorf("%s: %w", p, context.DeadlineExceeded)
}

//go:build failpoint

package failpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Enabled says whether this build can be made to die.
const Enabled = true

// Do takes the step f, unless p is armed.
func Do(ctx context.Context, p Point, f func(context.Context) error) error {
	mode, linger := trigger.pass(p)
	switch mode {
	case Before:
		die(linger)
	case Stop:
		halt()
	}
	err := f(ctx)
	switch mode {
	case After:
		die(linger)
	case Timeout:
		return late(p)
	}
	return err
}

// Value takes the step f, which has a result, unless p is armed.
func Value[T any](ctx context.Context, p Point, f func(context.Context) (T, error)) (v T, err error) {
	err = Do(ctx, p, func(ctx context.Context) (err error) { v, err = f(ctx); return err })
	if err != nil {
		var none T
		v = none
	}
	return v, err
}

// Broken says whether a safety is left out.
func Broken(m Mutation) bool { return os.Getenv("ANIMA_MUTATION") == m.String() }

// trigger is what the environment asks for.
var trigger arming

type arming struct {
	mu    sync.Mutex
	spec  string // that passes are counted for
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
		if err != nil { // nothing is armed
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
		a.spec = "" // the same words in another file are another death
		switch err := os.Remove(file); {
		case errors.Is(err, os.ErrNotExist):
			return "", 0 // another process that reads it was first
		case err != nil:
			panic(err)
		}
	}
	return mode, linger
}

// parse reads name:mode[:n[:linger]]. What cannot be meant ends the process: a
// test that arms nothing would be green.
func parse(spec string) (name string, mode Mode, n int, linger time.Duration) {
	parts := strings.Split(spec, ":")
	known := false
	for _, i := range table {
		known = known || i.Name == parts[0]
	}
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
	switch mode {
	case Before, After, Timeout, Stop:
	default:
		known = false
	}
	if !known || err != nil || n < 1 || len(parts) > 4 {
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

func die(linger time.Duration) {
	time.Sleep(linger)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// halt returns when the process goes on. The signal may reach another thread
// first, so this one waits a little for it.
func halt() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	time.Sleep(5 * time.Millisecond)
}

// late is the error of a step whose answer did not come in time.
func late(p Point) error {
	if p.Info().Call {
		return &api.Error{
			Code: api.Unavailable, Message: p.String() + " was not answered in time", Next: "try again", RetryAfter: 100,
		}
	}
	return fmt.Errorf("%s: %w", p, context.DeadlineExceeded)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// verdict is the result of a mutant.
type verdict string

const (
	killed    verdict = "killed"
	survived  verdict = "SURVIVED"
	tolerated verdict = "accepted"
	invalid   verdict = "does not compile"
)

// runner tests mutants one after the other.
type runner struct {
	root, work string
	timeout    time.Duration
}

// sound runs the tests of a mutant on the unchanged file. It returns an error if they
// fail, because they would fail for every mutant.
func (r runner) sound(ctx context.Context, m mutant) error {
	var err error
	if m.source, err = os.ReadFile(filepath.Join(r.root, m.file)); err != nil {
		return err
	}
	v, err := r.test(ctx, m)
	if err == nil && v != survived {
		err = fmt.Errorf("go test %s fails without a mutant: %s", strings.Join(m.tests, " "), v)
	}
	return err
}

// test runs a mutant's tests with an overlay that replaces its file.
func (r runner) test(ctx context.Context, m mutant) (verdict, error) {
	broken, overlay := filepath.Join(r.work, "mutant.go"), filepath.Join(r.work, "overlay.json")
	if err := os.WriteFile(broken, m.source, 0o600); err != nil {
		return "", err
	}
	data, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, m.file): broken}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		return "", err
	}
	args := append([]string{"test", "-overlay", overlay, "-failfast", "-timeout", r.timeout.String()}, m.tests...)
	late, cancel := context.WithTimeout(ctx, r.timeout+2*time.Minute) // the timeout of the tests excludes the compilation
	defer cancel()
	cmd := exec.CommandContext(late, "go", args...)
	cmd.WaitDelay = 10 * time.Second // a process that a test has left behind may hold the pipe open
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "GOWORK=") // the tests belong to the workspace, this program does not
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // the tests passed
		return survived, nil
	case late.Err() != nil:
		return killed, nil
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return invalid, nil
	}
	if _, ended := errors.AsType[*exec.ExitError](err); !ended {
		return "", fmt.Errorf("go test: %w", err)
	}
	return killed, nil
}

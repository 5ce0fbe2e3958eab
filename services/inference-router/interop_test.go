//go:build interop

package router_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestNodeClients makes the calls of TestSurfaces with the official clients for Node.
// It needs node and npm, and installs the clients from the package registry.
func TestNodeClients(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		data, err := os.ReadFile(filepath.Join("testdata", "interop", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	for protocol, words := range surfaceWords {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			open := func(base, key string) caller {
				return nodeCaller{dir: dir, protocol: protocol, env: append(os.Environ(), "BASE_URL="+base, "API_KEY="+key)}
			}
			testSurface(t, words, open)
			testShape(t, open)
		})
	}
}

// nodeCaller makes each call in a process of its own.
type nodeCaller struct {
	dir, protocol string
	env           []string
}

// nodeError is an error of a client for Node.
type nodeError struct {
	text, word string
	status     int
}

func (e *nodeError) Error() string { return e.text }

func (n nodeCaller) plain(ctx context.Context, model, text string) (said, error) {
	return n.call(ctx, "plain", model, text, nil)
}

func (n nodeCaller) stream(ctx context.Context, model, text string, first func()) (said, error) {
	return n.call(ctx, "stream", model, text, first)
}

func (n nodeCaller) call(ctx context.Context, kind, model, text string, first func()) (said, error) {
	node := exec.CommandContext(ctx, "node", "client.mjs", n.protocol, kind, model, text)
	node.Dir, node.Env, node.Stderr = n.dir, n.env, os.Stderr
	node.Cancel = func() error { return node.Process.Signal(syscall.SIGTERM) }
	node.WaitDelay = time.Minute
	out, err := node.StdoutPipe()
	if err != nil {
		return said{}, err
	}
	if err := node.Start(); err != nil {
		return said{}, err
	}
	var last []byte
	begun := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() != "first" {
			last = []byte(lines.Text())
			continue
		}
		if begun = true; first != nil {
			first()
		}
	}
	if err := node.Wait(); err != nil && ctx.Err() == nil {
		return said{}, err
	}
	var got struct {
		Text, Finish  string
		Calls         []string
		Input, Output int64

		Error   string
		Aborted bool
		Status  int
		Type    string
	}
	if err := json.Unmarshal(last, &got); err != nil {
		return said{}, fmt.Errorf("the client printed %q: %w", last, err)
	}
	switch {
	case got.Aborted:
		return said{}, context.Canceled
	case got.Error != "":
		return said{}, &nodeError{text: got.Error, word: got.Type, status: got.Status}
	case kind == "stream" && !begun:
		return said{}, errors.New("the answer came without pieces")
	}
	return said{text: got.Text, finish: got.Finish, calls: got.Calls, input: got.Input, output: got.Output}, nil
}

func (n nodeCaller) status(err error) (int, string) {
	if e, ok := errors.AsType[*nodeError](err); ok {
		return e.status, e.word
	}
	return 0, err.Error()
}

// Package toolstest runs tools in tests.
package toolstest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// At is the time of the calls of a [Bench].
const At = 1_790_000_000_123_456 // 2026-09-21T14:13:20.123456Z

// Bench runs tools as the agent ada, in a temporary workspace.
type Bench struct {
	Tools map[string]engine.Tool
	Agent engine.Agent
}

// New returns a bench without tools.
func New(t *testing.T) Bench {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ada")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return Bench{map[string]engine.Tool{}, engine.Agent{ID: "ada", Name: "Ada", Workspace: dir}}
}

// Keyed calls a tool with an idempotency key. The arguments must be valid.
func (b Bench) Keyed(t *testing.T, key, name, args string) (engine.Output, error) {
	t.Helper()
	c := engine.Call{
		Agent: b.Agent, Session: "ada-main", Turn: "r1.1", Key: key, Args: json.RawMessage(args), At: At, By: api.Principal{Kind: api.Creator},
	}
	if err := b.Tools[name].Check(c.Args); err != nil {
		t.Fatalf("%s refuses %s: %v", name, args, err)
	}
	return b.Tools[name].Run(t.Context(), c)
}

// Call is [Bench.Keyed] with the key r1.1.0.
func (b Bench) Call(t *testing.T, name, args string) (engine.Output, error) {
	t.Helper()
	return b.Keyed(t, "r1.1.0", name, args)
}

// Text returns the text of a call, which must succeed.
func (b Bench) Text(t *testing.T, name, args string) string {
	t.Helper()
	out, err := b.Call(t, name, args)
	if err != nil {
		t.Fatalf("%s %s: %v", name, args, err)
	}
	return out.Text
}

// Has checks that a text, the answer of what, contains each of want.
func Has(t *testing.T, what, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s said %q, which lacks %q", what, text, w)
		}
	}
}

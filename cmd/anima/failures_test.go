package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestFailuresNameTheNextCommand runs every command with names that do not exist, with
// and without a running anima, and checks that each error names the next step.
func TestFailuresNameTheNextCommand(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	nothing := &machine{t: t, env: map[string]string{"HOME": t.TempDir()}}
	parser := u.app(nil, &bytes.Buffer{}, &bytes.Buffer{}).parser(t.Context(), func(int) {})
	own := map[string]bool{"up": true, "init": true, "demo": true, "chat": true, "completion": true, "doctor": true} // these start something or read from a terminal
	failed := 0
	for _, leaf := range parser.Model.Leaves(true) {
		args := words(leaf)
		if own[args[0]] {
			continue
		}
		for name, m := range map[string]*machine{"running": u.machine, "not running": nothing} {
			r := m.run("", args...)
			if r.code == exitOK {
				continue
			}
			failed++
			lines := strings.Split(strings.TrimSpace(r.err), "\n")
			last := lines[len(lines)-1]
			if len(lines) < 2 || !strings.Contains(last, "anima ") && !strings.Contains(last, "docs/") && !strings.Contains(last, "--") {
				t.Errorf("%s: anima %q: exit %d, %q, want a last line that names what to do next", name, args, r.code, r.err)
			}
		}
	}
	if failed < 60 {
		t.Errorf("%d commands failed, want 60 at least: does this test still reach them?", failed)
	}
}

// words returns a command line for the leaf, with arguments that no object has.
func words(leaf *kong.Node) []string {
	var args []string
	for n := leaf; n.Parent != nil; n = n.Parent {
		args = append([]string{n.Name}, args...)
	}
	for _, p := range leaf.Positional {
		value := map[string]string{"amount": "5", "index": "0", "url": "nats://127.0.0.1:1", "args": "{}"}[p.Name]
		switch {
		case p.Enum != "":
			value, _, _ = strings.Cut(p.Enum, ",")
		case value == "":
			value = "ghost"
		}
		args = append(args, value)
	}
	return args
}

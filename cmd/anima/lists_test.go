package main

import "testing"

// TestListsOfAnUnknownAgent checks that a list of an agent that does not exist is not shown as
// an empty one, and that the list of an agent without entries is.
func TestListsOfAnUnknownAgent(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up("--empty")
	if r := m.run("---\nname: Idle\n---\nBe idle.\n", "agent", "apply", "-"); r.code != exitOK {
		t.Fatal(r.err)
	}
	for _, args := range [][]string{
		{"session", "list"},
		{"turn", "list"},
		{"goal", "list"},
		{"heartbeat", "list"},
		{"heartbeat", "history"},
		{"policy", "decisions"},
		{"ledger", "entries"},
		{"payment", "list"},
		{"key", "list"},
		{"budget", "approvals"},
	} {
		m.fails(exitNotFound, "", append(args, "Ghost"), "no such agent", "anima agent list")
		m.cli(append(args, "Idle")...)
		m.cli(args...)
	}
	m.fails(exitUsage, "", []string{"turn", "list", "--after", "zzz"}, `"zzz" is not a position in this list`)
}

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestPrintIsPlain prints answers with texts of sellers, providers and agents that would
// control the terminal, or add cells and rows to a table.
func TestPrintIsPlain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := &app{Out: &out}
	err := a.print(nil, func(w io.Writer) {
		writePayment(w, api.Payment{
			State: api.PaymentSettled, Status: 200, ContentType: "text/\x1b[2J", Reason: "because\nstate\tfree", Body: []byte("\x1b]0;title\x07über \xff\u202e\u2069\na\tbc\n\td\n"),
		})
		writeModels(w, api.Models{Models: []api.Model{{ID: "m\x1b[1A\nfree-model", Provider: "p", Why: "no\tyes"}}, Faults: []string{"https://x: \u009b31m"}})
	})
	if err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, bad := range []string{"\x1b", "\x07", "\u009b", "\xff", "\u202e", "\u2069", "\nfree-model", "\nstate"} {
		if strings.Contains(got, bad) {
			t.Errorf("got %q, want it without %q", got, bad)
		}
	}
	if !strings.Contains(got, "über \uFFFD\uFFFD\uFFFD\na\tbc\n\td\n") {
		t.Errorf("got %q, want the letters, lines and tabs of the answer", got)
	}
	out.Reset()
	const body = "a\tbc\n\td\n"
	if err := a.print(nil, func(w io.Writer) {
		writePayment(w, api.Payment{State: api.PaymentSettled, Status: 200, Body: []byte(body)})
	}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(out.String(), "answer  200 , 8 bytes\n\n"+body+"\n") {
		t.Errorf("got %q, want the tabs of the answer, and none elsewhere", out.String())
	}
	if got, want := line(" a\tb\nc", 10), "a b"; got != want {
		t.Errorf("line: got %q, want %q", got, want)
	}
}

// TestToolNamesArePlain prints a session that has a call of a tool whose name has control
// characters. Names are those of the model, or of an imported transcript.
func TestToolNamesArePlain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	r := m.run(`{"role":"user","content":"paint","timestamp":"2026-11-21T08:00:00.000Z"}
{"role":"assistant","content":"","timestamp":"2026-11-21T08:00:01.000Z","tool_calls":[{"id":"1","name":"red\u001b[31m","arguments":"{}"}]}
{"role":"tool","content":"done","timestamp":"2026-11-21T08:00:02.000Z","tool_call_id":"1"}
`, "session", "import", "lucky", "-", "-o", "json")
	var v api.Imported
	one(t, r.out, &v)
	turns := asked[api.Turns](m, "turn", "list", "lucky").Turns
	if len(turns) != 1 || len(turns[0].Calls) != 1 || !strings.Contains(turns[0].Calls[0].Tool, "\x1b") {
		t.Fatalf("the turns are %+v, want one with a call of the tool", turns)
	}
	for _, args := range [][]string{{"turn", "show", turns[0].ID}, {"session", "transcript", v.Session}} {
		if out := m.cli(args...); !strings.Contains(out, "red") || strings.Contains(out, "\x1b") {
			t.Errorf("anima %v: got %q, want the name of the tool without control characters", args, out)
		}
	}
}

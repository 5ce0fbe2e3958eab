package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// demoMachine returns a machine with invalid settings, none of which the demo may use.
func demoMachine(t *testing.T) *machine {
	m := newMachine(t)
	m.env["ANIMA_NATS_REPLICAS"] = "3"
	m.env["ANIMA_HTTP_ADDR"] = "256.0.0.1:1"
	m.env["OPENAI_API_KEY"] = "a-key-that-must-not-be-used"
	return m
}

func TestDemo(t *testing.T) {
	t.Parallel()
	out := demoMachine(t).cli("demo")
	for _, want := range []string{
		"Two agents are created", "→ exec", "← exec ok", "send_message ok", "policy denied", "woken by its alarm", "Penny pays $5.00 on ", "tier low_compute → high", "$1.00 of USDC left on the chain and in the ledger", "Refused by policy",
		"sums and chain right, 0 holds open", "trace of the first turn: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
	if strings.ContainsAny(out, "\x1b\r") {
		t.Errorf("the output is no terminal and gets control characters:\n%q", out)
	}
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{w: &out, live: true}
	p.head("One")
	p.waiting("the first")
	p.waiting("the second")
	p.line("came")
	p.clear()
	const want = "\nOne\n  … the first\r\x1b[K  … the second\r\x1b[K  came\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestDemoJSON(t *testing.T) {
	t.Parallel()
	r := demoMachine(t).run("", "demo", "-o", "json")
	if r.code != exitOK {
		t.Fatalf("exit %d\n%s", r.code, r.err)
	}
	var s summary
	one(t, r.out, &s)
	var paid, left api.Micros
	for _, turn := range s.Turns {
		if len(turn.Trace) != 32 || turn.Cost <= 0 {
			t.Errorf("a turn without trace or cost: %+v", turn)
		}
		paid += turn.Cost
	}
	for _, b := range s.Balances {
		left += b.Available
	}
	if len(s.Purchases) != 1 || s.Purchases[0].Credits != 5*api.Dollar || s.Purchases[0].OnChain != api.Dollar || s.Purchases[0].Transaction == "" {
		t.Errorf("purchases: got %+v, want one for 5 dollars", s.Purchases)
	}
	if paid+left != 7*api.Dollar+pennyCredits || !s.Ledger.OK || len(s.Denied) != 2 || s.Trace != s.Turns[0].Trace {
		t.Errorf("got %+v", s)
	}
	if !strings.Contains(r.err, "You ask Lucky to work") {
		t.Errorf("no progress on standard error:\n%s", r.err)
	}
}

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

func TestSessionGet(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.cli("session", "send", "lucky", "hello")
	v := asked[sessionView](m, "session", "get", "lucky-main")
	if v.ID != "lucky-main" || v.Next != nil || v.Step == nil || v.Step.Kind != api.EntryEnd || v.Step.Turn != 1 || v.Lock != nil {
		t.Errorf("after a run: got %+v, want no message left, no owner, and the end as the last step", v)
	}
	for _, command := range []string{"get", "events", "transcript", "reset"} { // the session is required
		if text := m.fails(exitNotFound, "", []string{"session", command, "ghost"}, "no such session", "anima session list"); strings.Contains(text, "leave") {
			t.Errorf("session %s: got %q, want no advice to leave the session out", command, text)
		}
	}
	m.fails(exitNotFound, "", []string{"session", "send", "lucky", "hi", "--session", "ghost"}, "no such session", "leave the session out")
}

func TestSessionGetSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	v := sessionView{
		Session: api.Session{ID: "lucky-main", Agent: "lucky"},
		Lock:    &api.Lock{Owner: "r1", Run: "run-1"},
		Next:    &api.Run{Run: "run-1", Kind: api.RunMessage, AcceptedAt: now.Add(-90 * time.Second).UnixMicro()},
		Step:    &journalStep{Run: "run-1", Turn: 2, Kind: "intent", At: now.Add(-time.Minute).UnixMicro()},
	}
	var out strings.Builder
	v.text(&out, now)
	for _, want := range []string{"run by\treplica r1, run run-1", "next\trun run-1, a message of 1m30s ago", "last step\tintent, turn 2 of run run-1, 1m0s ago"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q", out.String(), want)
		}
	}
	out.Reset()
	(&sessionView{Session: api.Session{Terminated: 1, Reason: "done"}}).text(&out, now)
	if want := "terminated\t1970-01-01T00:00:00Z: done\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("of a terminated session: got\n%s\nwant %q", out.String(), want)
	}
	out.Reset()
	(&sessionView{}).text(&out, now)
	if !strings.Contains(out.String(), "run by\tno replica\nnext\tnothing\nlast step\t-\n") {
		t.Errorf("of an idle session: got\n%s", out.String())
	}
}

func TestLedgerTransfer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.run("---\nname: Nova\n---\nBe.\n", "agent", "apply", "-")
	for range 2 { // a repeated id moves the money once
		if out := m.cli("ledger", "transfer", "Lucky", "nova", "0.25", "--id", "monday"); !strings.Contains(out, "lucky has given $0.25 to nova") {
			t.Errorf("got %q", out)
		}
	}
	if b := asked[[]api.Balance](m, "ledger", "balance", "nova"); len(b) != 1 || b[0].Available != 250_000 {
		t.Errorf("nova has %+v, want $0.25", b)
	}
	m.fails(exitDenied, "", []string{"ledger", "transfer", "nova", "lucky", "1"})
	m.fails(exitNotFound, "", []string{"ledger", "transfer", "lucky", "ghost", "1"}, "ghost")
	m.fails(exitUsage, "", []string{"ledger", "transfer", "lucky", "nova", "0"}, "above zero")
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/host"
)

// examined runs the doctor, checks its exit code and returns the findings that are not
// ok.
func examined(m *machine, code int) (bad []host.Finding) {
	m.t.Helper()
	r := m.run("", "doctor", "-o", "json")
	if r.code != code {
		m.t.Fatalf("anima doctor: exit %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	var all []host.Finding
	one(m.t, r.out, &all)
	checks := map[string]bool{}
	for _, f := range all {
		checks[f.Check] = true
		if f.Level != host.LevelOK {
			bad = append(bad, f)
		}
	}
	for _, want := range []string{"disk", "secrets"} {
		if !checks[want] {
			m.t.Errorf("nothing is said of %s: %+v", want, all)
		}
	}
	return bad
}

// TestDoctor checks that the doctor finds no fault in an intact anima, running and
// stopped, and one fault with a remedy for each thing that the test breaks.
func TestDoctor(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.fails(exitNotFound, "", []string{"doctor"}, "no data folder", "--data")
	u := m.up()
	m.cli("session", "send", "lucky", "hello")
	if bad := examined(m, exitOK); len(bad) > 0 {
		t.Errorf("while it runs: %+v", bad)
	}
	for _, want := range []string{"ledger: ", "transactions on", "loop: database and streams agree", "models: ", "the clocks agree"} {
		if out := m.cli("doctor"); !strings.Contains(out, want) {
			t.Errorf("doctor prints %q, want it to say %q", out, want)
		}
	}
	// With a token that the server refuses.
	endpoints := filepath.Join(m.data(), endpointFile)
	right, err := os.ReadFile(endpoints)
	if err != nil {
		t.Fatal(err)
	}
	write(t, endpoints, strings.Replace(string(right), u.token, "wrong", 1))
	if r := m.run("", "doctor"); r.code != exitFailed || !strings.Contains(r.out, "a process uses "+m.data()) || !strings.Contains(r.out, "Authorization Violation") || strings.Contains(r.out, "none is running") {
		t.Errorf("with a wrong token: exit %d\n%s%s", r.code, r.out, r.err)
	}
	write(t, endpoints, string(right))
	// As if the databases were where only the environment of anima up says.
	file := treasuryFile(m.data())
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	if bad := examined(m, exitOK); len(bad) > 0 {
		t.Errorf("without the file of the ledger: %+v", bad)
	}
	if err := os.Rename(file+".away", file); err != nil {
		t.Fatal(err)
	}
	u.stop()
	if bad := examined(m, exitOK); len(bad) > 0 {
		t.Errorf("after its end: %+v", bad)
	}
	for _, tt := range []struct {
		hurt  func(data string) error
		check string
		says  string
	}{
		{func(data string) error { return os.Chmod(filepath.Join(data, "token"), 0o644) }, "secrets", "can be used by other users"},
		{func(data string) error {
			return os.WriteFile(filepath.Join(data, providerFile), []byte("{}"), 0o644) //nolint:gosec // readable by others on purpose
		}, "secrets", providerFile + " can be used by other users"},
		{func(data string) error { return os.Remove(filepath.Join(data, "social", "social.db")) }, "social", "is missing"},
		{func(data string) error {
			return os.RemoveAll(filepath.Join(data, "nats", "jetstream", "$G", "streams", "LOOP_EVT"))
		}, "loop", "the stream LOOP_EVT is missing or empty"},
		{func(data string) error { return os.RemoveAll(filepath.Join(data, "nats")) }, "nats", "the folder of the streams is missing"},
	} {
		if err := tt.hurt(m.data()); err != nil {
			t.Fatal(err)
		}
		found := false
		bad := examined(m, exitFailed)
		for _, f := range bad {
			found = found || f.Check == tt.check && f.Level == host.LevelFault && strings.Contains(f.Text, tt.says) && f.Next != ""
		}
		if !found {
			t.Errorf("got %+v, want a fault of %s that says %q and what to do", bad, tt.check, tt.says)
		}
	}
}

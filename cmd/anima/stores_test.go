package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// copied copies a file or folder of a data folder that is not in use.
func copied(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestLostStores: a start with a store that is missing, empty or older than others
// know it is refused with what to do; accepted, it starts, also the next time.
func TestLostStores(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose func(t *testing.T, data, before string)
		says string
	}{
		"treasury's database is empty": {func(t *testing.T, data, _ string) {
			if err := os.RemoveAll(filepath.Join(data, "treasury")); err != nil {
				t.Fatal(err)
			}
		}, "the database of treasury is empty or was made anew"},
		"loop's database is an older copy": {func(t *testing.T, data, before string) {
			copied(t, filepath.Join(before, "loop"), filepath.Join(data, "loop"))
		}, "the database of loop is an older copy"},
		"there are no streams": {func(t *testing.T, data, _ string) {
			if err := os.RemoveAll(filepath.Join(data, "nats")); err != nil {
				t.Fatal(err)
			}
		}, "missing or empty"},
		"the streams are an older copy": {func(t *testing.T, data, before string) {
			copied(t, filepath.Join(before, "nats"), filepath.Join(data, "nats"))
		}, "is an older copy or cut off"},
		"one stream is cut off": {func(t *testing.T, data, before string) {
			const at = "nats/jetstream/$G/streams/LOOP_EVT"
			copied(t, filepath.Join(before, at), filepath.Join(data, at))
		}, "the stream LOOP_EVT is an older copy or cut off"},
		"a stream is of another installation": {func(t *testing.T, data, _ string) {
			other := newMachine(t)
			u := other.up()
			other.cli("session", "send", "lucky", "hello", "--no-wait")
			u.stop()
			copied(t, filepath.Join(other.data(), "nats"), filepath.Join(data, "nats"))
		}, "belongs to installation"},
		"the folder's id is gone": {func(t *testing.T, data, _ string) {
			if err := os.Remove(filepath.Join(data, "installation")); err != nil {
				t.Fatal(err)
			}
		}, "belongs to installation"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			first := m.up()
			m.cli("session", "send", "lucky", "hello") // the copy's streams are not empty
			first.stop()
			before := filepath.Join(t.TempDir(), "before")
			copied(t, m.data(), before)
			u := m.up()
			m.cli("session", "send", "lucky", "hello")
			u.stop()
			tt.lose(t, m.data(), before)

			said := m.fails(exitConflict, "", []string{"up"}, "do not agree", "backup", "--accept-loss")
			if !strings.Contains(said, tt.says) {
				t.Errorf("up says %q, want it to say %q", said, tt.says)
			}
			m.fails(exitConflict, "", []string{"up"}, "do not agree") // saying so has mended nothing
			u = m.up("--accept-loss")
			u.ready(http.StatusOK)
			u.stop()
			m.up()
		})
	}
}

// TestLostJournal: a run that had begun when the streams were lost ends, and says why.
func TestLostJournal(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env["ANIMA_DRAIN"] = "10ms"
	u := m.up()
	acc := asked[api.Accepted](m, "session", "send", "lucky", "slow", "--no-wait")
	m.watch("lucky-main", "loop_execute")
	u.stop()
	if err := os.RemoveAll(filepath.Join(m.data(), "nats")); err != nil {
		t.Fatal(err)
	}
	m.fails(exitConflict, "", []string{"up"}, "missing or empty")
	m.up("--accept-loss")
	if end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello"); !end.Success { // behind it
		t.Errorf("the next message ends as %+v", end)
	}
	got := asked[api.RunState](m, "run", "get", acc.Run, "--session", "lucky-main")
	if got.Status != api.RunEnded || got.Success || !strings.Contains(got.Error, "was lost") || got.Fate == "" {
		t.Errorf("the run that was under way is %+v, want it ended with its cause", got)
	}
}

package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

// atWork sends a message and waits until the first tool call of its run has begun.
func atWork(t *testing.T, w *world, agent, text string) api.Accepted {
	t.Helper()
	acc := call[api.Accepted](t, w, api.SendMessage{Agent: agent, Content: text})
	await(t, w, api.ToolStart{Session: acc.Session}, func(e api.ToolStart) bool { return e.Run == acc.Run })
	return acc
}

// running returns the processes of a program.
func running(t *testing.T, program string) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range all {
		if data, err := os.ReadFile(path); err == nil && strings.HasSuffix(strings.Split(string(data), "\x00")[0], program) {
			out = append(out, path)
		}
	}
	return out
}

// nothingHeld checks that the agent has no hold.
func nothingHeld(t *testing.T, w *world, a api.Agent) {
	t.Helper()
	if b := call[api.Balance](t, w, api.GetBalance{Agent: a.ID}); b.Held != 0 {
		t.Errorf("%s is still held", b.Held)
	}
}

// cancelled checks that after a cancellation the command's processes end, that no other
// tool starts, and that the run stays cancelled when it is redelivered or cancelled
// again.
func cancelled(t *testing.T, w *world) {
	a := born(t, w, "Quitter", api.Dollar)
	program := "sleep-" + filepath.Base(filepath.Dir(w.data)) // not that of the other world of TestStories
	acc := atWork(t, w, a.ID, "hang "+strings.TrimPrefix(program, "sleep-"))
	for deadline := time.Now().Add(time.Minute); len(running(t, program)) < 2; {
		if time.Now().After(deadline) {
			t.Fatalf("the command did not begin: %+v", turnsOf(t, w, acc.Run))
		}
		<-time.After(10 * time.Millisecond) // the start of a process sends no signal
	}
	if st := call[api.RunState](t, w, api.GetRun{Run: acc.Run, Session: acc.Session}); st.Status != api.RunRunning || st.Cancelled {
		t.Errorf("before: %+v", st)
	}
	asked := time.Now()
	st := call[api.RunState](t, w, api.CancelRun{Run: acc.Run, Session: acc.Session, Reason: "enough"})
	if !st.Cancelled {
		t.Errorf("cancel answers %+v", st)
	}
	end := ended(t, w, acc.Session, acc.Run)
	t.Logf("ended %v after it was asked to", time.Since(asked))
	if end.Success || end.Outcome != api.OutcomeConsumed {
		t.Errorf("ended %+v", end)
	}
	if left := running(t, program); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if _, err := os.Stat(filepath.Join(w.data, "loop", "workspaces", a.ID, "after.txt")); err == nil {
		t.Error("a tool ran after the cancel")
	}
	turns := turnsOf(t, w, acc.Run)
	if len(turns) != 1 || turns[0].Calls[0].Outcome != api.OutcomeUnknown || turns[0].Calls[1].Outcome != api.OutcomeError {
		t.Errorf("kept %+v", turns)
	}
	st = call[api.RunState](t, w, api.CancelRun{Run: acc.Run})
	if st.Status != api.RunEnded || st.Reason != api.ReasonCancelled || !strings.Contains(st.Error, "enough") {
		t.Errorf("afterwards: %+v", st)
	}
	refused[api.RunState](t, w, api.CancelRun{Run: "none", Session: acc.Session}, api.NotFound)
	if end := send(t, w, a.ID, "recall"); !end.Success {
		t.Errorf("the next run: %+v", end)
	}
	nothingHeld(t, w, a)
}

// interrupts checks that the run in progress is cancelled, the queued message is dropped
// and the interrupting message is run.
func interrupts(t *testing.T, w *world) {
	a := born(t, w, "Rash", api.Dollar)
	first := atWork(t, w, a.ID, "hang")
	second := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall"})
	third := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall", Mode: api.ModeInterrupt})
	var fates []string
	for _, run := range []string{first.Run, second.Run, third.Run} {
		e := ended(t, w, a.Session, run)
		fates = append(fates, string(e.Outcome)+" "+strconv.FormatBool(e.Success))
	}
	if diff := cmp.Diff([]string{"consumed false", "dropped false", "consumed true"}, fates); diff != "" {
		t.Errorf("fates (-want +got):\n%s", diff)
	}
	if n := len(turnsOf(t, w, second.Run)); n != 0 {
		t.Errorf("the dropped message had %d turns", n)
	}
	nothingHeld(t, w, a)
}

// steers checks that the message becomes an input of the next turn of the run in
// progress.
func steers(t *testing.T, w *world) {
	a := born(t, w, "Helm", api.Dollar)
	first := atWork(t, w, a.ID, "slow tool")
	second := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "steered, please", Mode: api.ModeSteer})
	end := ended(t, w, a.Session, first.Run)
	if !end.Success || end.Response != "steered: steered, please" {
		t.Errorf("ended %+v", end)
	}
	merged := ended(t, w, a.Session, second.Run)
	if merged.Outcome != api.OutcomeMerged || merged.Into != first.Run || !merged.Success {
		t.Errorf("the message became %+v", merged)
	}
	if st := call[api.RunState](t, w, api.GetRun{Run: second.Run}); st.Outcome != api.OutcomeMerged || st.Into != first.Run || st.Turns != 0 {
		t.Errorf("it is now %+v", st)
	}
	// Without a run in progress it is handled as an ordinary message.
	alone := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "steered alone", Mode: api.ModeSteer})
	if e := ended(t, w, a.Session, alone.Run); e.Outcome != api.OutcomeConsumed || e.Response != "steered: steered alone" {
		t.Errorf("alone it became %+v", e)
	}
	nothingHeld(t, w, a)
}

// collects checks that the queued messages of this mode become the input of one run.
func collects(t *testing.T, w *world) {
	a := born(t, w, "Collector", api.Dollar)
	first := atWork(t, w, a.ID, "slow tool")
	var runs []string
	for _, text := range []string{"recall one", "two", "three"} {
		runs = append(runs, call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: text, Mode: api.ModeCollect}).Run)
	}
	ended(t, w, a.Session, first.Run)
	if e := ended(t, w, a.Session, runs[0]); e.Outcome != api.OutcomeConsumed || e.Response != "said: recall one\n\ntwo\n\nthree" {
		t.Errorf("the first became %+v", e)
	}
	for _, run := range runs[1:] {
		if e := ended(t, w, a.Session, run); e.Outcome != api.OutcomeMerged || e.Into != runs[0] {
			t.Errorf("%s became %+v", run, e)
		}
	}
	nothingHeld(t, w, a)
}

// terminated checks that a terminated session runs nothing and accepts nothing, and that
// its transcript is kept.
func terminated(t *testing.T, w *world) {
	a := born(t, w, "Closed", api.Dollar)
	side := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall", Session: "new"})
	ended(t, w, side.Session, side.Run)
	run := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "hang", Session: side.Session})
	await(t, w, api.ToolStart{Session: side.Session}, func(e api.ToolStart) bool { return e.Run == run.Run })
	waits := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall", Session: side.Session})
	for range 2 {
		s := call[api.Session](t, w, api.TerminateSession{Session: side.Session, Reason: "done with it"})
		if s.Terminated == 0 || s.Reason != "done with it" {
			t.Errorf("terminated: %+v", s)
		}
	}
	if e := ended(t, w, side.Session, run.Run); e.Success {
		t.Errorf("what ran ended %+v", e)
	}
	if e := ended(t, w, side.Session, waits.Run); e.Outcome != api.OutcomeDropped {
		t.Errorf("what waited became %+v", e)
	}
	refused[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall", Session: side.Session}, api.Conflict)
	refused[api.Session](t, w, api.TerminateSession{Session: "none"}, api.NotFound)
	if lines := call[api.Transcript](t, w, api.GetTranscript{Session: side.Session}).Lines; len(lines) < 2 {
		t.Errorf("the transcript has %d lines", len(lines))
	}
	if s := call[api.Session](t, w, api.TerminateSession{Session: a.Session}); s.Terminated == 0 {
		t.Errorf("the main session: %+v", s)
	}
	if next := call[api.Agent](t, w, api.GetAgent{Agent: a.ID}); next.Session == a.Session {
		t.Errorf("the main session is over and still %s", next.Session)
	}
	if end := send(t, w, a.ID, "recall"); !end.Success {
		t.Errorf("the new main session: %+v", end)
	}
}

// explains checks that every sleep and every wake has a reason.
func explains(t *testing.T, w *world) {
	a := born(t, w, "Dreamer", api.Dollar)
	run := atWork(t, w, a.ID, "hang")
	if g := call[api.Agent](t, w, api.SleepAgent{Agent: a.ID, Reason: "it is late"}); g.ID != a.ID {
		t.Errorf("sleep answers %+v", g)
	}
	if e := ended(t, w, a.Session, run.Run); e.Success {
		t.Errorf("what ran ended %+v", e)
	}
	x := call[api.Explanation](t, w, api.ExplainAgent{Agent: a.ID})
	if x.Agent.State != api.StateSleeping || x.Next != "sleeps until a message or a wake comes" || x.Since == 0 {
		t.Errorf("explained: %+v", x)
	}
	var got []string
	for i := len(x.History) - 1; i >= 0; i-- {
		c := x.History[i]
		got = append(got, string(c.Previous)+">"+string(c.State))
		if c.Reason == "" || c.At == 0 {
			t.Errorf("a change without a reason: %+v", c)
		}
	}
	if diff := cmp.Diff([]string{"setup>sleeping", "sleeping>waking", "waking>running", "running>sleeping"}, got[:min(4, len(got))]); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	refused[api.Agent](t, w, api.SleepAgent{Agent: a.ID, Until: 1}, api.Invalid)
	refused[api.Explanation](t, w, api.ExplainAgent{Agent: "unknown"}, api.NotFound)
	if end := send(t, w, a.ID, "recall"); !end.Success {
		t.Errorf("woken by a message: %+v", end)
	}
}

// TestExpires checks the expiry of messages that wait behind a long run.
func TestExpires(t *testing.T) {
	t.Parallel()
	w := oneProcess(t, map[string]string{"ANIMA_LOOP_QUEUE_TIMEOUT": "500ms"})
	a := born(t, w, "Patient", api.Dollar)
	first := atWork(t, w, a.ID, "slow tool")
	late := call[api.Accepted](t, w, api.SendMessage{Agent: a.ID, Content: "recall"})
	e := ended(t, w, a.Session, late.Run)
	if e.Success || e.Outcome != api.OutcomeExpired {
		t.Errorf("the message became %+v", e)
	}
	if st := call[api.RunState](t, w, api.GetRun{Run: first.Run, Session: a.Session}); st.Status == api.RunEnded {
		t.Error("it expired only after the run before had ended")
	}
	if e := ended(t, w, a.Session, first.Run); !e.Success {
		t.Errorf("the run before: %+v", e)
	}
	if st := call[api.RunState](t, w, api.GetRun{Run: late.Run}); st.Outcome != api.OutcomeExpired || st.Reason != api.ReasonExpired || st.Turns != 0 {
		t.Errorf("it is now %+v", st)
	}
	nothingHeld(t, w, a)
}

package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// alive returns a world with an autonomous agent.
func alive(answers ...api.Completion) *enginetest.World {
	a := ada
	a.Autonomous = true
	return enginetest.New(newStore(a), enginetest.Say(answers...))
}

// always returns a script with the same answer to every request.
func always(c api.Completion, err error) enginetest.Script {
	return func(api.Complete) (api.Completion, error) { return c, err }
}

// woken returns the run of wake number n.
func woken(n int) api.Run {
	cmd := command
	cmd.Run, cmd.Kind, cmd.Content = fmt.Sprintf("run%d", n), api.RunWake, "slept enough"
	cmd.By = api.Principal{Kind: api.HeartbeatKind}
	return cmd
}

// TestEndings tests all reasons for which a run sets its agent to sleeping, with the
// durations of docs/reference/loop.md, Sleep.
func TestEndings(t *testing.T) {
	t.Parallel()
	refusal := func(code api.Code, reason string, after int64) enginetest.Script {
		return always(api.Completion{}, &api.Error{Code: code, Reason: reason, Message: "no", RetryAfter: after})
	}
	for _, tt := range []struct {
		name   string
		script enginetest.Script
		turns  int // the agent's limit; 0: 25
		why    string
		sleeps time.Duration
		state  api.AgentState
	}{
		{"nothing to do", always(says("fine"), nil), 0, "nothing to do", time.Minute, api.StateSleeping},
		{"the limit of turns", enginetest.Say(asks("", "put"), asks("", "pay")), 2, "the limit of 2 turns a run", 2 * time.Minute, api.StateSleeping},
		{"the same again and again", always(asks("", "put"), nil), 0, "called put 6 times in a row, after a warning", time.Minute, api.StateSleeping},
		{"no model", refusal(api.Unavailable, api.ReasonNoModel, 0), 0, "no", 5 * time.Minute, api.StateSleeping},
		{"budget", refusal(api.Denied, api.ReasonLimit, 0), 0, "no", time.Minute, api.StateSleeping},
		{"budget until a time", refusal(api.Denied, api.ReasonLimit, 1_800_000), 0, "no", 30 * time.Minute, api.StateSleeping},
		{"cannot pay", refusal(api.Denied, api.ReasonInsufficient, 0), 0, "no", 0, api.StateCritical},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := ada
			a.Autonomous = true
			if tt.turns > 0 {
				a.MaxTurns = tt.turns
			}
			w := enginetest.New(newStore(a), tt.script)
			_, end := run(t, w, command)
			if end.Why != tt.why || end.State != tt.state {
				t.Errorf("the agent is %s because of %q, want %s, %q", end.State, end.Why, tt.state, tt.why)
			}
			want := map[string]api.SetAlarm{}
			if tt.sleeps > 0 {
				at := end.At + tt.sleeps.Microseconds()
				want["run1/rest"] = api.SetAlarm{ID: "run1/rest", Agent: "ada", At: at, Reason: tt.why}
				if end.Sleep != at {
					t.Errorf("sleeps for %v, want %v", time.Duration(end.Sleep-end.At)*time.Microsecond, tt.sleeps)
				}
			}
			if diff := cmp.Diff(want, w.Alarms.All(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("alarms (-want +got):\n%s", diff)
			}
			if c := end.Changed; c == nil || c.Reason != tt.why || c.SleepUntil != end.Sleep {
				t.Errorf("announced %+v", c)
			}
			// An agent that is not autonomous sets no alarm.
			a.Autonomous = false
			w = enginetest.New(newStore(a), tt.script)
			if _, end := run(t, w, command); end.Sleep != 0 || len(w.Alarms.All()) != 0 {
				t.Errorf("an agent that waits for others sleeps until %d", end.Sleep)
			}
		})
	}
}

// TestEndedByATool tests that an autonomous agent whose run a tool has ended wakes again,
// unless the run is a task, which is beside its other runs.
func TestEndedByATool(t *testing.T) {
	t.Parallel()
	for kind, alarms := range map[api.RunKind]int{api.RunMessage: 1, api.RunTask: 0} {
		w, cmd := alive(asks("", "look")), command
		look := w.Tools["look"]
		look.Run = func(context.Context, engine.Call) (engine.Output, error) {
			return engine.Output{Text: "that is all", Ends: true}, nil
		}
		w.Tools["look"], cmd.Kind = look, kind
		if _, end := run(t, w, cmd); end.Turns != 1 || len(w.Alarms.All()) != alarms {
			t.Errorf("%s: ended %+v with %d alarms, want one turn and %d", kind, end, len(w.Alarms.All()), alarms)
		}
	}
}

// TestNotice tests that a warning is in the prompt of the next turn and is not an
// input, also if the next turn belongs to another run and another owner.
func TestNotice(t *testing.T) {
	t.Parallel()
	w := alive(asks("", "put"), asks("", "put"), asks("", "put"), asks("", "pay"), says("done"))
	turns, _ := run(t, w, command)
	var warned []int
	for i, tr := range turns {
		if strings.Contains(tr.Input, "[system] You have called put 3 times") {
			warned = append(warned, i+1)
		}
	}
	if !slices.Equal(warned, []int{4}) {
		t.Errorf("warned in the turns %v, want 4", warned)
	}
	requests := w.Router.Requests()
	last := requests[3].Messages[len(requests[3].Messages)-1]
	if last.Role != "user" || !strings.HasPrefix(last.Content, "[system] ") {
		t.Errorf("the model was told %+v", last)
	}
	prompted(t, w)

	// The third call in a row is the last of its run; the warning is in the next run.
	w = alive(asks("", "put"), asks("", "put"), asks("", "put"))
	a := ada
	a.MaxTurns, a.Autonomous = 3, true
	w.Store = newStore(a)
	run(t, w, command)
	w.Router.Script = enginetest.Say(says("I see"))
	turns, _ = run(t, w, woken(2))
	if in := turns[len(turns)-1].Input; !strings.Contains(in, "slept enough") || !strings.Contains(in, "[system] You have called put 3 times") {
		t.Errorf("the next run began with %q", in)
	}
}

// TestErrorsInARow tests that the fifth consecutive failure causes a long sleep, and
// that a success resets the count.
func TestErrorsInARow(t *testing.T) {
	t.Parallel()
	w := alive()
	fails := always(api.Completion{}, api.Errorf(api.Invalid, "bad"))
	w.Router.Script = fails
	var sleeps []time.Duration
	for n := 1; n <= 9; n++ {
		w.Router.Script = fails
		if n == 3 {
			w.Router.Script = always(says("fine"), nil)
		}
		_, end := run(t, w, woken(n))
		sleeps = append(sleeps, time.Duration(end.Sleep-end.At)*time.Microsecond)
	}
	want := slices.Repeat([]time.Duration{time.Minute}, 9)
	want[7] = 5 * time.Minute // the fifth since the success
	if diff := cmp.Diff(want, sleeps); diff != "" {
		t.Errorf("sleeps (-want +got):\n%s", diff)
	}
}

// TestTiers tests that the agent's state follows its balance from turn to turn, and
// that an unknown balance does not change it.
func TestTiers(t *testing.T) {
	t.Parallel()
	w := world(asks("", "put"), asks("", "pay"), asks("", "put"), asks("", "fire"), says("done"))
	tiers := []api.Tier{api.TierHigh, api.TierLow, api.TierUnknown, api.TierCritical, api.TierNormal}
	n := 0
	script := w.Router.Script
	w.Treasury.Tier = tiers[0]
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		n++
		w.Treasury.Tier = tiers[min(n, len(tiers)-1)]
		return script(req)
	}
	turns, _ := run(t, w, command)
	var got []api.AgentState
	for _, tr := range turns {
		got = append(got, tr.State)
	}
	want := []api.AgentState{api.StateRunning, api.StateLow, api.StateLow, api.StateCritical, api.StateRunning}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states of the turns (-want +got):\n%s", diff)
	}
	var said []string
	for _, id := range w.Stream.IDs() {
		if strings.HasPrefix(id, "agent_state/") {
			said = append(said, fmt.Sprint(w.Stream.Kept()[id]["state"]))
		}
	}
	if diff := cmp.Diff([]string{"waking", "running", "low_compute", "critical", "sleeping"}, said); diff != "" {
		t.Errorf("announced (-want +got):\n%s", diff)
	}
}

// TestPolicyDown tests that no call is executed while policy is unavailable, and that
// the agent sleeps after a minute, with that reason (docs/reference/loop.md, policy
// skipped).
func TestPolicyDown(t *testing.T) {
	t.Parallel()
	w := alive(asks("", "put"), says("never"))
	away := func(_ context.Context, port string, do func() error) error {
		if port == "evaluate" {
			return api.Errorf(api.Unavailable, "no answer")
		}
		return do()
	}
	if err := w.Run(t.Context(), away, command); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("at first: %v, want that the run comes back", err)
	}
	for range 2 { // tries within a minute of each other
		w.Pass(35 * time.Second)
		if err := w.Run(t.Context(), away, command); err != nil && api.CodeOf(err) != api.Unavailable {
			t.Fatal(err)
		}
	}
	end := outcomeOf(t, w, command).Known.Ended
	if end == nil || end.Reason != api.ReasonPolicy || end.State != api.StateSleeping || time.Duration(end.Sleep-end.At)*time.Microsecond != time.Minute {
		t.Errorf("ended %+v", end)
	}
	if got := w.Effects.Of("put"); len(got) != 0 {
		t.Errorf("%v ran without policy", got)
	}
}

// TestPolicyDownAfterAPause tests that a turn waits for policy also if the run was resumed
// long after the completion, and after a call that took long.
func TestPolicyDownAfterAPause(t *testing.T) {
	t.Parallel()
	away := api.Errorf(api.Unavailable, "no answer")
	retried := func(t *testing.T, w *enginetest.World, gate enginetest.Gate) {
		t.Helper()
		if err := w.Run(t.Context(), gate, command); api.CodeOf(err) != api.Unavailable {
			t.Fatalf("without policy: got %v, want that the run comes back", err)
		}
	}
	for name, test := range map[string]func(*testing.T, *enginetest.World){
		"no owner": func(t *testing.T, w *enginetest.World) {
			gate := func(_ context.Context, port string, do func() error) error {
				if port == "evaluate" {
					return away
				}
				return do()
			}
			retried(t, w, gate)
			w.Pass(2 * time.Minute)
			retried(t, w, gate)
		},
		"a long call": func(t *testing.T, w *enginetest.World) {
			retried(t, w, func(_ context.Context, port string, do func() error) error {
				switch {
				case port == "tool look":
					w.Pass(2 * time.Minute)
				case port == "evaluate" && len(w.Effects.Of("look")) > 0:
					return away
				}
				return do()
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alive(asks("", "look", "put"), says("done"))
			test(t, w)
			if err := w.Run(t.Context(), enginetest.Open, command); err != nil {
				t.Fatal(err)
			}
			if end := outcomeOf(t, w, command).Known.Ended; end == nil || !end.Success {
				t.Errorf("when policy was back the run ended %+v", end)
			}
		})
	}
}

// behind returns a message that is queued behind command.
func behind(run, content string, mode api.Mode, by api.PrincipalKind) api.Run {
	m := command
	m.Run, m.Content, m.Mode, m.By = run, content, mode, api.Principal{Kind: by}
	return m
}

// TestSteer tests that a message in mode steer joins the run at its next turn, lowers
// its principal, and has one outcome, and that a message in another mode stays queued.
func TestSteer(t *testing.T) {
	t.Parallel()
	w := world(asks("", "put"), asks("", "pay"), says("done"))
	script := w.Router.Script
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		if strings.HasSuffix(req.ID, ".1") {
			w.Queue.Add(behind("queued", "later", api.ModeQueue, api.Creator))
			w.Queue.Add(behind("steer", "use less", api.ModeSteer, api.Peer))
		}
		return script(req)
	}
	turns, end := run(t, w, command)
	if len(turns) != 3 || turns[1].Input != "use less" || turns[2].Input != "" {
		t.Fatalf("turns %+v", turns)
	}
	if turns[0].By.Kind != api.Creator || turns[1].By.Kind != api.Peer || turns[2].By.Kind != api.Peer {
		t.Errorf("the authorities are %s, %s, %s; want the lowest, kept to the end", turns[0].By.Kind, turns[1].By.Kind, turns[2].By.Kind)
	}
	if !end.Success || end.Outcome != api.OutcomeConsumed {
		t.Errorf("ended %+v", end)
	}
	store, _ := w.Store.(*memStore)
	if e := store.End("steer"); e == nil || e.Outcome != api.OutcomeMerged || e.Into != "run1" {
		t.Errorf("the message became %+v", e)
	}
	if e := store.End("queued"); e != nil {
		t.Errorf("a message that waits has the fate %+v", e)
	}
	// A delivery of the merged message finds it ended and announces the end once.
	if err := w.Run(t.Context(), enginetest.Open, behind("steer", "use less", api.ModeSteer, api.Peer)); err != nil {
		t.Fatal(err)
	}
	kept := w.Stream.Kept()
	if m := kept["loop_end/steer"]; m["fate"] != "merged" || m["into"] != "run1" {
		t.Errorf("said %v", m)
	}
	if kept["loop_error/steer"] != nil || kept["loop_persist/steer.0"] != nil {
		t.Error("a merged message is reported as run or failed")
	}
	if paid := w.Router.Paid(); len(paid) != 3 {
		t.Errorf("paid %v", paid)
	}
	prompted(t, w)
}

// TestSteerAtTheEnd tests that a message that arrives during the last model call
// continues the run.
func TestSteerAtTheEnd(t *testing.T) {
	t.Parallel()
	w := world(says("done"), says("done again"))
	script := w.Router.Script
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		if strings.HasSuffix(req.ID, ".1") {
			w.Queue.Add(behind("steer", "one more thing", api.ModeSteer, api.Creator))
		}
		return script(req)
	}
	turns, end := run(t, w, command)
	if len(turns) != 2 || turns[1].Input != "one more thing" || end.Response != "done again" {
		t.Errorf("turns %+v, end %+v", turns, end)
	}
}

// TestSteerCancelledAtTheEnd tests that a message that was cancelled before it joined does
// not continue the run: another answer would replace that of the run.
func TestSteerCancelledAtTheEnd(t *testing.T) {
	t.Parallel()
	w := world(says("done"), says("done again"))
	store, _ := w.Store.(*memStore)
	script := w.Router.Script
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		w.Queue.Add(behind("steer", "one more thing", api.ModeSteer, api.Creator))
		store.Cancel("steer", "cancelled: enough")
		return script(req)
	}
	turns, end := run(t, w, command)
	if len(turns) != 1 || end.Response != "done" {
		t.Errorf("%d turns, response %q, want one turn and its answer", len(turns), end.Response)
	}
}

// TestSteerCrash tests a crash at each port call of a run that is steered: the message
// joins exactly once.
func TestSteerCrash(t *testing.T) {
	t.Parallel()
	fresh := func() *enginetest.World {
		w := world(asks("", "put"), asks("", "pay"), says("done"))
		script := w.Router.Script
		w.Router.Script = func(req api.Complete) (api.Completion, error) {
			if strings.HasSuffix(req.ID, ".1") {
				w.Queue.Add(behind("steer", "use less", api.ModeSteer, api.Peer))
			}
			return script(req)
		}
		return w
	}
	count := &enginetest.Crash{}
	w := fresh()
	if err := w.Run(t.Context(), count.Gate, command); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(count.Ports, "append joined") {
		t.Fatalf("nothing joined: %v", count.Ports)
	}
	for at := 1; at <= len(count.Ports); at++ {
		for _, after := range []bool{false, true} {
			w := fresh()
			crash := &enginetest.Crash{At: count.Point(at), After: after}
			if err := w.Run(t.Context(), crash.Gate, command); err == nil && crash.Dead() {
				t.Fatalf("the owner that crashed at %d ended its run", at)
			}
			untilOver(t, w, command)
			var texts []string
			for _, tr := range outcomeOf(t, w, command).Turns {
				texts = append(texts, tr.Input)
			}
			joined := 0
			for _, text := range texts {
				joined += strings.Count(text, "use less")
			}
			store, _ := w.Store.(*memStore)
			e := store.End("steer")
			if joined != 1 || e == nil || e.Outcome != api.OutcomeMerged {
				t.Errorf("after a crash at %s, after=%t: inputs %q, fate %+v", count.Ports[at-1], after, texts, e)
			}
			if got := w.Effects.Of("pay"); len(slices.Compact(slices.Sorted(slices.Values(got)))) != 1 {
				t.Errorf("after a crash at %s, after=%t: paid for %v", count.Ports[at-1], after, got)
			}
		}
	}
}

// TestCancelledWhileQueued tests that a message that was cancelled while it was queued
// does not become part of another run, and is dropped.
func TestCancelledWhileQueued(t *testing.T) {
	t.Parallel()
	for _, mode := range []api.Mode{api.ModeCollect, api.ModeSteer} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := world(asks("", "put"), says("done"))
			store, _ := w.Store.(*memStore)
			first, gone, kept := behind("run1", "first", mode, api.Creator), behind("gone", "second", mode, api.External), behind("kept", "third", mode, api.Creator)
			add := func() {
				w.Queue.Add(gone)
				w.Queue.Add(kept)
				store.Cancel("gone", "cancelled: enough")
			}
			want := []string{"first", "third"}
			if mode == api.ModeCollect {
				add()
				want = []string{"first\n\nthird", ""}
			} else {
				script := w.Router.Script
				w.Router.Script = func(req api.Complete) (api.Completion, error) {
					if strings.HasSuffix(req.ID, ".1") {
						add()
					}
					return script(req)
				}
			}
			turns, _ := run(t, w, first)
			var got []string
			for _, tr := range turns {
				got = append(got, tr.Input)
				if tr.By.Kind != api.Creator {
					t.Errorf("turn %d is by %s, want the creator", tr.Number, tr.By.Kind)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
			if e := store.End("kept"); e == nil || e.Outcome != api.OutcomeMerged {
				t.Errorf("the message that was not cancelled became %+v, want it merged", e)
			}
			if err := w.Run(t.Context(), enginetest.Open, gone); err != nil {
				t.Fatal(err)
			}
			if e := store.End("gone"); e == nil || e.Outcome != api.OutcomeDropped || e.Reason != api.ReasonCancelled {
				t.Errorf("the cancelled message became %+v, want it dropped", e)
			}
		})
	}
}

// TestCollect tests that a run in mode collect merges the queued messages of the same
// mode, up to the first of another mode.
func TestCollect(t *testing.T) {
	t.Parallel()
	w := world(says("all three"))
	w.Queue.Add(behind("c2", "second", api.ModeCollect, api.Creator))
	w.Queue.Add(behind("c3", "third", api.ModeCollect, api.External))
	w.Queue.Add(behind("q4", "fourth", api.ModeQueue, api.Creator))
	w.Queue.Add(behind("c5", "fifth", api.ModeCollect, api.Creator))
	first := behind("run1", "first", api.ModeCollect, api.Creator)
	turns, _ := run(t, w, first)
	if turns[0].Input != "first\n\nsecond\n\nthird" || turns[0].By.Kind != api.External {
		t.Errorf("the run began with %q by %s", turns[0].Input, turns[0].By.Kind)
	}
	store, _ := w.Store.(*memStore)
	for id, want := range map[string]bool{"c2": true, "c3": true, "q4": false, "c5": false} {
		if e := store.End(id); (e != nil && e.Outcome == api.OutcomeMerged && e.Into == "run1") != want {
			t.Errorf("%s became %+v, want merged: %t", id, e, want)
		}
	}
}

// TestQueuedTwice tests that a second copy of a run's own message, or of one that it
// includes, which a caller has sent again with its key, does not join the run.
func TestQueuedTwice(t *testing.T) {
	t.Parallel()
	for _, mode := range []api.Mode{api.ModeCollect, api.ModeSteer} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := world(asks("", "put"), asks("", "put"), says("done"))
			first, other := behind("run1", "first", mode, api.Creator), behind("other", "second", mode, api.Creator)
			add := func() {
				for range 2 {
					w.Queue.Add(other)
				}
				w.Queue.Add(first)
			}
			want := []string{"first", "second", ""}
			if mode == api.ModeCollect {
				add()
				want = []string{"first\n\nsecond", "", ""}
			} else {
				script := w.Router.Script
				w.Router.Script = func(req api.Complete) (api.Completion, error) {
					if strings.HasSuffix(req.ID, ".1") {
						add()
					}
					return script(req)
				}
			}
			turns, end := run(t, w, first)
			var got []string
			for _, tr := range turns {
				got = append(got, tr.Input)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
			if !end.Success || end.Outcome != api.OutcomeConsumed {
				t.Errorf("ended %+v, want success", end)
			}
		})
	}
}

// TestCancel tests that a cancel stops the running tool, that no other tool starts, and
// that the run is not resumed.
func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := world(asks("", "look", "fire", "pay"), says("never"))
		store, _ := w.Store.(*memStore)
		hang := w.Tools["fire"]
		hang.Run = func(ctx context.Context, _ engine.Call) (engine.Output, error) {
			store.Cancel("run1", "cancelled: enough")
			w.Queue.Cancel("run1")
			<-ctx.Done()
			return engine.Output{}, ctx.Err()
		}
		w.Tools["fire"] = hang
		turns, end := run(t, w, command)
		if end.Success || end.Reason != api.ReasonCancelled || end.State != api.StateSleeping || end.Outcome != api.OutcomeConsumed {
			t.Errorf("ended %+v", end)
		}
		var got []api.Outcome
		for _, c := range turns[0].Calls {
			got = append(got, c.Outcome)
		}
		if diff := cmp.Diff([]api.Outcome{api.OutcomeOK, api.OutcomeUnknown, api.OutcomeError}, got); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if got := w.Effects.Of("pay"); len(got) != 0 {
			t.Errorf("pay ran after the cancel: %v", got)
		}
		k, err := store.Known(t.Context(), command)
		if err != nil || k.Counters.Errors != 0 {
			t.Errorf("a cancel counts as a failure: %+v, %v", k.Counters, err)
		}
		before := len(w.Router.Requests())
		run(t, w, command) // redelivered
		if got := len(w.Router.Requests()); got != before {
			t.Errorf("delivered again it asked the model %d times", got-before)
		}
	})
}

// TestCancelAfterRead tests that a cancel is not missed that is stored and announced just
// after the run was read from the store.
func TestCancelAfterRead(t *testing.T) {
	t.Parallel()
	w := world(asks("", "fire"), says("never"))
	store, _ := w.Store.(*memStore)
	gate := func(ctx context.Context, port string, do func() error) error {
		err := enginetest.Open(ctx, port, do)
		if port == "known" {
			store.Cancel("run1", "enough")
			w.Queue.Cancel("run1")
		}
		return err
	}
	if err := w.Run(t.Context(), gate, command); err != nil {
		t.Fatal(err)
	}
	if e := outcomeOf(t, w, command).Known.Ended; e == nil || e.Reason != api.ReasonCancelled || e.Error != "enough" {
		t.Errorf("ended %+v, want it cancelled", e)
	}
	if got := w.Effects.Of("fire"); len(got) != 0 {
		t.Errorf("a tool ran after the cancel: %v", got)
	}
}

// TestCancelBetween tests that a recorded cancel takes effect at the next PERSIST
// without a notification, and that a run cancelled before its begin does not begin.
func TestCancelBetween(t *testing.T) {
	t.Parallel()
	w := world(asks("", "put"), says("never"))
	store, _ := w.Store.(*memStore)
	gate := func(_ context.Context, port string, do func() error) error {
		if port == "persist" {
			store.Cancel("run1", "enough")
		}
		return do()
	}
	if err := w.Run(t.Context(), gate, command); err != nil {
		t.Fatal(err)
	}
	o := outcomeOf(t, w, command)
	if e := o.Known.Ended; e == nil || e.Success || e.Reason != api.ReasonCancelled || e.Error != "enough" || len(o.Turns) != 1 {
		t.Errorf("ended %+v after %d turns", e, len(o.Turns))
	}

	w = world(says("never"))
	store, _ = w.Store.(*memStore)
	store.Cancel("run1", "enough")
	if err := w.Run(t.Context(), enginetest.Open, command); err != nil {
		t.Fatal(err)
	}
	o = outcomeOf(t, w, command)
	if e := o.Known.Ended; e == nil || e.Outcome != api.OutcomeDropped || e.Reason != api.ReasonCancelled || len(o.Turns) != 0 {
		t.Errorf("a run cancelled before it began: %+v, %d turns", e, len(o.Turns))
	}
	if n := len(w.Router.Requests()); n != 0 {
		t.Errorf("it asked the model %d times", n)
	}
}

// TestCancelCrash tests a crash at each port call of a run, with the loss of events
// that were not stored yet, followed by a cancel. The run ends as cancelled, no effect
// happens after the cancel, and all events are published.
func TestCancelCrash(t *testing.T) {
	t.Parallel()
	count := &enginetest.Crash{}
	if err := three(false).Run(t.Context(), count.Gate, command); err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= len(count.Ports); at++ {
		for _, after := range []bool{false, true} {
			w := three(true)
			store, _ := w.Store.(*memStore)
			crash := &enginetest.Crash{At: count.Point(at), After: after}
			if err := w.Run(t.Context(), crash.Gate, command); err == nil && crash.Dead() {
				t.Fatalf("the owner that crashed at %d ended its run", at)
			}
			ended := store.End("run1") != nil
			effects := func() int {
				return len(w.Effects.Of("look")) + len(w.Effects.Of("pay")) + len(w.Effects.Of("fire"))
			}
			did := effects()
			store.Cancel("run1", "enough")
			untilOver(t, w, command)
			e := store.End("run1")
			if !ended && (e == nil || e.Reason != api.ReasonCancelled) {
				t.Errorf("after a crash at %s, after=%t: ended %+v", count.Ports[at-1], after, e)
			}
			if got := effects(); got != did {
				t.Errorf("after a crash at %s, after=%t: %d effects after the cancel", count.Ports[at-1], after, got-did)
			}
			wantFaults(t, w)
			for _, tr := range outcomeOf(t, w, command).Turns {
				if spent := w.Router.Spent(tr.ID); tr.Cost != spent {
					t.Errorf("after a crash at %s, after=%t: turn %d cost %s, and %s was paid", count.Ports[at-1], after, tr.Number, tr.Cost, spent)
				}
			}
			for _, id := range announced(t, w, command) {
				if !slices.Contains(w.Stream.IDs(), id) {
					t.Errorf("after a crash at %s, after=%t: %s is not announced", count.Ports[at-1], after, id)
				}
			}
		}
	}
}

// TestCancelWaitsForTheRouter tests that the cost of a cancelled model call is read
// when no hold remains, also if the hold was not placed at the first check, and that a
// permanent hold does not block the run.
func TestCancelWaitsForTheRouter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rounds int       // in which the router has not ended the call
		going  api.Spent // the treasury's answer in those rounds
		want   api.Micros
	}{"soon": {2, api.Spent{Paid: 7, Held: 9000}, 305}, "never": {1 << 20, api.Spent{Paid: 7, Held: 9000}, 7}, "on its way": {1, api.Spent{}, 305}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world(says("never heard"))
			store, _ := w.Store.(*memStore)
			asked := 0
			w.Treasury.Settling = func() (api.Spent, bool) {
				asked++
				return c.going, asked <= c.rounds
			}
			crash := &enginetest.Crash{}
			if err := world(says("never heard")).Run(t.Context(), crash.Gate, command); err != nil {
				t.Fatal(err)
			}
			crash = &enginetest.Crash{At: enginetest.Point{Port: "complete", Nth: 1}, After: true}
			if err := w.Run(t.Context(), crash.Gate, command); err == nil {
				t.Fatal("the owner that crashed ended its run")
			}
			store.Cancel("run1", "enough")
			untilOver(t, w, command)
			o := outcomeOf(t, w, command)
			if len(o.Turns) != 1 || o.Turns[0].Cost != c.want || o.Known.Cost != c.want || asked < 2 {
				t.Errorf("after %d questions: %+v, want one turn that cost %d", asked, o.Turns, c.want)
			}
		})
	}
}

// announced returns the ids of some events that must exist for the stored state of a
// run.
func announced(t *testing.T, w *enginetest.World, cmd api.Run) []string {
	t.Helper()
	o := outcomeOf(t, w, cmd)
	ids := []string{"loop_end/" + cmd.Run}
	if len(o.Turns) > 0 {
		ids = append(ids, "loop_start/"+cmd.Run)
	}
	for _, tr := range o.Turns {
		for _, c := range tr.Calls {
			if c.Outcome == api.OutcomeOK {
				ids = append(ids, "tool_start/"+engine.Key(cmd.Run, tr.Number, c.Index), "tool_end/"+engine.Key(cmd.Run, tr.Number, c.Index))
			}
		}
	}
	return ids
}

// wantFaults fails the test if an id was used for two different messages.
func wantFaults(t *testing.T, w *enginetest.World) {
	t.Helper()
	if f := w.Stream.Faults(); len(f) > 0 {
		t.Errorf("events: %v", f)
	}
}

// TestBirth tests that the creator's message is in the prompt of the agent's first turn
// only.
func TestBirth(t *testing.T) {
	t.Parallel()
	a := ada
	a.Message = "Be kind to strangers."
	w := enginetest.New(newStore(a), enginetest.Say(asks("", "put"), says("I will")))
	run(t, w, command)
	var said []bool
	for _, r := range w.Router.Requests() {
		said = append(said, slices.ContainsFunc(r.Messages, func(m api.ChatMessage) bool {
			return strings.Contains(m.Content, "Your creator says: Be kind to strangers.")
		}))
	}
	if !slices.Equal(said, []bool{true, false}) {
		t.Errorf("said in the prompts: %v, want in the first alone", said)
	}
}

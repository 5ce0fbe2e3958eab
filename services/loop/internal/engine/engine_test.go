package engine_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// world returns a world whose model returns the answers in order.
func world(answers ...api.Completion) *enginetest.World {
	return enginetest.New(newStore(ada), enginetest.Say(answers...))
}

// run executes a run to its end and returns its turns and its end.
func run(t *testing.T, w *enginetest.World, cmd api.Run) ([]api.Turn, engine.End) {
	t.Helper()
	if err := w.Run(t.Context(), enginetest.Open, cmd); err != nil {
		t.Fatalf("run: %v", err)
	}
	o := outcomeOf(t, w, cmd)
	if o.Known.Ended == nil {
		t.Fatal("the run returned without an end")
	}
	replays(t, w, cmd)
	return o.Turns, *o.Known.Ended
}

// told returns the results of calls in the model's last prompt.
func told(w *enginetest.World) []string {
	var out []string
	requests := w.Router.Requests()
	for _, m := range requests[len(requests)-1].Messages {
		if m.Role == "tool" {
			out = append(out, m.Content)
		}
	}
	return out
}

func TestRun(t *testing.T) {
	t.Parallel()
	w := world(asks("I look.", "look", "pay"), says("done"))
	turns, end := run(t, w, command)
	want := engine.End{
		Run: command, Input: engine.Input{Text: "do all three", By: api.Principal{Kind: api.Creator}, Deadline: end.Input.Deadline}, Success: true, Response: "done",
		Turns: 2, Cost: 915, At: end.At, State: api.StateSleeping, Why: "nothing to do", Outcome: api.OutcomeConsumed, Changed: end.Changed,
	}
	if diff := cmp.Diff(want, end); diff != "" {
		t.Errorf("end (-want +got):\n%s", diff)
	}
	if c := turns[0].Calls[1]; c.Outcome != api.OutcomeOK || c.Result != "pay done" || c.Decision != "d-run1.1.1" || c.Action != api.Allow {
		t.Errorf("pay ended with %+v", c)
	}
	wantEvents := []string{
		"loop_start/run1", "loop_context/run1.1", "loop_execute/run1.1",
		"tool_start/run1.1.0", "tool_end/run1.1.0", "tool_start/run1.1.1", "tool_end/run1.1.1",
		"loop_persist/run1.1", "agent_state/ada/2", "agent_state/ada/3",
		"loop_context/run1.2", "loop_execute/run1.2", "loop_persist/run1.2", "agent_state/ada/4", "loop_end/run1",
	}
	if diff := cmp.Diff(wantEvents, w.Stream.IDs()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	wantSteps := []string{"1 begin", "1 thought", "1 intent", "1 result", "1 intent", "1 result", "2 thought", "2 end"}
	if diff := cmp.Diff(wantSteps, w.Journal.Steps("ada-main")); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"I look.", "done"}, w.Stream.Deltas()); diff != "" {
		t.Errorf("deltas (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"run1.1.1"}, w.Effects.Of("pay")); diff != "" {
		t.Errorf("keys of pay (-want +got):\n%s", diff)
	}
}

// TestToken tests that no tool is executed with a decision of which any part was
// changed.
func TestToken(t *testing.T) {
	t.Parallel()
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	foreign := func(string) string {
		token, err := api.Grant{Agent: "ada", Turn: "run1.1", Tool: "fire", Expires: enginetest.Start + 1e9}.Sign(stranger)
		if err != nil {
			t.Error(err)
		}
		return token
	}
	for name, tt := range map[string]struct {
		bend func(*api.Grant)
		swap func(string) string
		want api.Code
	}{
		"another tool":         {bend: func(g *api.Grant) { g.Tool = "look" }, want: api.Conflict},
		"other arguments":      {bend: func(g *api.Grant) { g.ArgsHash = strings.Repeat("0", 64) }, want: api.Conflict},
		"another turn":         {bend: func(g *api.Grant) { g.Turn = "run1.2" }, want: api.Conflict},
		"another call":         {bend: func(g *api.Grant) { g.Index = 1 }, want: api.Conflict},
		"another agent":        {bend: func(g *api.Grant) { g.Agent = "bob" }, want: api.Conflict},
		"expired":              {bend: func(g *api.Grant) { g.Expires = enginetest.Start }, want: api.Conflict},
		"none":                 {swap: func(string) string { return "" }, want: api.Denied},
		"a stranger's":         {swap: foreign, want: api.Denied},
		"one letter different": {swap: func(s string) string { return "x" + s[1:] }, want: api.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world(asks("", "fire"), says("done"))
			if tt.bend != nil {
				w.Policy.Bend = tt.bend
			}
			if tt.swap != nil {
				w.Policy.Swap = tt.swap
			}
			err := w.Run(t.Context(), enginetest.Open, command)
			if tt.want == api.Conflict && api.CodeOf(err) != api.Conflict {
				t.Errorf("the run came back with %v, want a conflict", err)
			}
			for range w.Attempts {
				if err == nil {
					break
				}
				err = w.Run(t.Context(), enginetest.Open, command)
			}
			end := outcomeOf(t, w, command).Known.Ended
			if err != nil || end == nil || end.Success || end.Code != api.Denied {
				t.Errorf("the run ended with %v and %+v, want it refused", err, end)
			}
			if got := w.Effects.Of("fire"); len(got) != 0 {
				t.Errorf("fire ran as %v", got)
			}
			for _, s := range w.Journal.Steps("ada-main") {
				if s == "1 intent" {
					t.Error("a refused token left an intent: the call would look as if it was begun")
				}
			}
		})
	}
}

// TestTokenRenewed tests that an expired token is replaced when the run is retried.
func TestTokenRenewed(t *testing.T) {
	t.Parallel()
	w := world(asks("", "fire"), says("done"))
	w.Policy.TTL = 0
	err := w.Run(t.Context(), enginetest.Open, command)
	if api.CodeOf(err) != api.Conflict || !strings.Contains(err.Error(), "expired") || !strings.Contains(api.Wire(err).Next, "the clocks of policy and loop") {
		t.Fatalf("got %v, want a conflict that names the clocks", err)
	}
	w.Policy.TTL = time.Minute
	turns, _ := run(t, w, command)
	if got := turns[0].Calls[0].Outcome; got != api.OutcomeOK || len(w.Effects.Of("fire")) != 1 {
		t.Errorf("fire ended %s with %v", got, w.Effects.Of("fire"))
	}
}

func TestDenied(t *testing.T) {
	t.Parallel()
	w := world(asks("", "fire", "look"), says("done"))
	w.Policy.Deny = func(e api.Evaluate) string {
		if e.Tool == "fire" {
			return "FORBIDDEN_COMMAND"
		}
		return ""
	}
	turns, end := run(t, w, command)
	if c := turns[0].Calls[0]; c.Outcome != api.OutcomeDenied || c.Action != api.Deny || c.Decision == "" || !strings.Contains(c.Error, "FORBIDDEN_COMMAND") {
		t.Errorf("fire ended with %+v", c)
	}
	if got := turns[0].Calls[1].Outcome; got != api.OutcomeOK {
		t.Errorf("look ended %s, want ok: one refusal is not the turn's", got)
	}
	if len(w.Effects.Of("fire")) != 0 || !end.Success {
		t.Errorf("fire had the effects %v, the run ended %+v", w.Effects.Of("fire"), end)
	}
	for _, id := range w.Stream.IDs() {
		if id == "tool_start/run1.1.0" {
			t.Error("a denied call was announced as started")
		}
	}
	if got := told(w)[0]; !strings.Contains(got, "policy denied") {
		t.Errorf("the model was told %q", got)
	}
}

// TestArguments tests that arguments that no tool accepts are neither executed nor sent
// to policy (docs/reference/loop.md, V-39).
func TestArguments(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]string{
		"half":     `{"n":`,
		"null":     `null and void`,
		"two":      `{} {}`,
		"a list":   `[1]`,
		"a number": `7`,
		"words":    `rm -rf /`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := asks("", "fire", "look")
			bad.ToolCalls[0].Arguments = arguments
			w := world(bad, says("done"))
			turns, _ := run(t, w, command)
			c := turns[0].Calls[0]
			if c.Outcome != api.OutcomeError || !strings.HasPrefix(c.Error, "not run: ") {
				t.Errorf("the call ended with %+v", c)
			}
			if !json.Valid(c.Arguments) {
				t.Errorf("stored arguments %q are not JSON", c.Arguments)
			}
			if got := turns[0].Calls[1].Outcome; got != api.OutcomeOK {
				t.Errorf("the call beside it ended %s", got)
			}
			if len(w.Effects.Of("fire")) != 0 || len(w.Policy.Asked()) != 1 {
				t.Errorf("fire had the effects %v, policy was asked %d times, want for look alone", w.Effects.Of("fire"), len(w.Policy.Asked()))
			}
			prompted(t, w)
		})
	}
}

func TestUnknownTool(t *testing.T) {
	t.Parallel()
	w := world(asks("", "teleport"), says("done"))
	turns, end := run(t, w, command)
	if c := turns[0].Calls[0]; c.Outcome != api.OutcomeError || !strings.Contains(c.Error, `no tool "teleport"`) || !end.Success {
		t.Errorf("the call ended with %+v, the run with %+v", c, end)
	}
	if len(w.Policy.Asked()) != 0 {
		t.Error("policy was asked about a tool that does not exist")
	}
}

// TestOffered tests that the prompt has the tools that the agent's definition grants.
func TestOffered(t *testing.T) {
	t.Parallel()
	some := ada
	some.Tools = []string{"pay", "nothing"}
	w := enginetest.New(newStore(some), enginetest.Say(says("hello")))
	run(t, w, command)
	got := w.Router.Requests()[0]
	if len(got.Tools) != 1 || got.Tools[0].Name != "pay" || got.Task != api.TaskTurn || got.Tier != api.TierHigh || got.ID != "run1.1" {
		t.Errorf("asked for %+v", got)
	}
}

func TestTooManyCalls(t *testing.T) {
	t.Parallel()
	few := ada
	few.MaxCalls = 2
	w := enginetest.New(newStore(few), enginetest.Say(asks("", "look", "look", "fire", "fire"), says("done")))
	turns, _ := run(t, w, command)
	for i, c := range turns[0].Calls {
		want := api.OutcomeOK
		if i >= 2 {
			want = api.OutcomeError
		}
		if c.Outcome != want {
			t.Errorf("call %d ended %s, want %s", i, c.Outcome, want)
		}
	}
	if got := told(w); len(got) != 4 || !strings.Contains(got[3], "only the first 2 calls") {
		t.Errorf("the model was told %q", got)
	}
	if len(w.Effects.Of("fire")) != 0 {
		t.Error("a call over the limit ran")
	}
}

func TestMaxTurns(t *testing.T) {
	t.Parallel()
	few := ada
	few.MaxTurns = 3
	w := enginetest.New(newStore(few), func(api.Complete) (api.Completion, error) { return asks("again", "look"), nil })
	turns, end := run(t, w, command)
	if len(turns) != 3 || end.Turns != 3 || !end.Success || !strings.Contains(end.Why, "limit of 3 turns") {
		t.Errorf("%d turns, ended %+v", len(turns), end)
	}
}

// TestMaxTurnsOfASteeredRun tests that a message in mode steer does not extend a run over
// its limit of turns: it stays queued.
func TestMaxTurnsOfASteeredRun(t *testing.T) {
	t.Parallel()
	few := ada
	few.MaxTurns = 1
	w := enginetest.New(newStore(few), nil)
	w.Router.Script = func(api.Complete) (api.Completion, error) {
		w.Queue.Add(behind("steer", "one more thing", api.ModeSteer, api.Creator))
		return asks("", "put"), nil
	}
	turns, end := run(t, w, command)
	if len(turns) != 1 || !strings.Contains(end.Why, "limit of 1 turns") {
		t.Errorf("%d turns, ended because of %q, want one turn, and its limit", len(turns), end.Why)
	}
	store, _ := w.Store.(*memStore)
	if e := store.End("steer"); e != nil {
		t.Errorf("the message became %+v, want it queued", e)
	}
}

// task returns a run with a cost cap, in a world in which each model call costs 610
// micro-USD and returns a call, except that of turn number words, which returns a text.
func task(limit api.Micros, words int) (*enginetest.World, api.Run) {
	cmd := command
	cmd.Kind, cmd.CostCap = api.RunTask, limit
	n := 0
	return enginetest.New(newStore(ada), func(api.Complete) (api.Completion, error) {
		if n++; n == words {
			c := says("done")
			c.Cost = 610
			return c, nil
		}
		return asks("", "look"), nil
	}), cmd
}

// TestCostCap tests that a run ends after the turn that reaches its cost cap, with the
// turn charged and its calls executed. A closing text in that turn is a success.
func TestCostCap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit  api.Micros
		words  int // number of the turn with the closing text
		turns  int
		reason string
	}{
		{0, 5, 5, ""},
		{1, 5, 1, api.ReasonCostCap},
		{1220, 5, 2, api.ReasonCostCap},
		{1221, 5, 3, api.ReasonCostCap},
		{1220, 2, 2, ""},
		{1221, 2, 2, ""},
	} {
		w, cmd := task(tt.limit, tt.words)
		turns, end := run(t, w, cmd)
		if len(turns) != tt.turns || end.Turns != tt.turns || end.Cost != api.Micros(610*tt.turns) {
			t.Errorf("at most %d: %d turns, ended %+v; want %d turns that are paid", tt.limit, len(turns), end, tt.turns)
		}
		if end.Reason != tt.reason || end.Success != (tt.reason == "") || !end.Success && (end.Code != api.Denied || !strings.Contains(end.Error, end.Cost.String())) {
			t.Errorf("at most %d: ended %+v, want the reason %q", tt.limit, end, tt.reason)
		}
		for _, turn := range turns {
			if len(turn.Calls) == 1 && turn.Calls[0].Outcome != api.OutcomeOK {
				t.Errorf("at most %d: the call of turn %d is %+v", tt.limit, turn.Number, turn.Calls[0])
			}
		}
	}
}

// TestCostCapEnds tests that a task completed in the turn that reaches the cap is a
// success, and that a message in mode steer no longer joins.
func TestCostCapEnds(t *testing.T) {
	t.Parallel()
	w, cmd := task(1, 0)
	look := w.Tools["look"]
	look.Run = func(context.Context, engine.Call) (engine.Output, error) {
		return engine.Output{Text: "the task is completed", Ends: true}, nil
	}
	w.Tools["look"] = look
	if _, end := run(t, w, cmd); !end.Success || end.Why != "its task is over" {
		t.Errorf("a task that is completed with its last credits: %+v", end)
	}
	w, cmd = task(1, 0)
	look.Run = func(context.Context, engine.Call) (engine.Output, error) {
		w.Queue.Add(behind("steer", "use less", api.ModeSteer, api.Creator))
		return engine.Output{Text: "seen"}, nil
	}
	w.Tools["look"] = look
	if turns, end := run(t, w, cmd); len(turns) != 1 || end.Reason != api.ReasonCostCap {
		t.Errorf("with another message in the queue: %d turns, %+v", len(turns), end)
	}
}

// TestSleep tests that the earliest of several sleeps applies, in any order, and that a
// failed sleep call does not (docs/reference/loop.md, V-22).
func TestSleep(t *testing.T) {
	t.Parallel()
	for _, seconds := range [][3]int64{{2, 3, 1}, {3, 2, 1}} {
		w := world(asks("good night", "look", "pay", "fire"))
		for i, name := range []string{"look", "pay", "fire"} {
			tool := w.Tools[name]
			tool.Run = func(context.Context, engine.Call) (engine.Output, error) {
				out := engine.Output{Text: "sleeping", Sleep: &engine.Sleep{Until: enginetest.Start + seconds[i]*1_000_000, Reason: fmt.Sprintf("after %d s", seconds[i])}}
				if name == "fire" {
					return out, errors.New("no alarm")
				}
				return out, nil
			}
			w.Tools[name] = tool
		}
		_, end := run(t, w, command)
		if end.Sleep != enginetest.Start+2_000_000 || end.Why != "after 2 s" || end.State != api.StateSleeping || end.Turns != 1 {
			t.Errorf("asked for %v s: ended %+v, want asleep for 2", seconds, end)
		}
		if end.Changed == nil || end.Changed.SleepUntil != end.Sleep {
			t.Errorf("said %+v", end.Changed)
		}
		if got := w.Alarms.All()["run1/rest"]; got.At != end.Sleep {
			t.Errorf("asked for %v s: the last alarm is %+v, want one at %d", seconds, got, end.Sleep)
		}
	}
}

// TestToppedUp checks that a run that is refused for lack of credits asks for a top-up
// once, continues if credits were bought, and ends otherwise.
func TestToppedUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refused     int // model calls
		sold        bool
		calls, asks int
		success     bool
	}{
		"not refused":              {0, true, 1, 0, true},
		"bought":                   {1, true, 2, 1, true},
		"not bought":               {1, false, 1, 1, false},
		"bought and refused again": {2, true, 2, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world()
			calls, asks := 0, 0
			w.Treasury.Sells = func() bool { asks++; return tt.sold }
			w.Router.Script = func(api.Complete) (api.Completion, error) {
				if calls++; calls <= tt.refused {
					return api.Completion{}, &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "cannot pay"}
				}
				return says("paid"), nil
			}
			turns, end := run(t, w, command)
			if calls != tt.calls || asks != tt.asks || end.Success != tt.success || len(turns) != 1 {
				t.Errorf("got %d calls, %d requests, %+v; want %d, %d, success %t in one turn", calls, asks, end, tt.calls, tt.asks, tt.success)
			}
			want := map[bool]int{true: 1}[tt.success] // a run that cannot pay has nothing to replay
			if n, err := w.Replay(t.Context(), command.Session, command.Run); err != nil || n != want {
				t.Errorf("replay: got %d turns, %v; want %d", n, err, want)
			}
		})
	}
}

func TestCannotPay(t *testing.T) {
	t.Parallel()
	w := world()
	w.Router.Script = func(api.Complete) (api.Completion, error) {
		return api.Completion{}, &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "cannot pay"}
	}
	turns, end := run(t, w, command)
	if end.Success || end.Reason != api.ReasonInsufficient || end.State != api.StateCritical || end.Error != "cannot pay" {
		t.Errorf("ended %+v", end)
	}
	if len(turns) != 1 || turns[0].Input != command.Content || turns[0].Thinking != "" || turns[0].Cost != 0 {
		t.Errorf("kept %+v, want the input alone", turns)
	}
	ids := w.Stream.IDs()
	want := []string{"loop_error/run1", "agent_state/ada/2", "agent_state/ada/3", "agent_state/ada/4", "loop_end/run1"}
	if diff := cmp.Diff(want, ids[len(ids)-5:]); diff != "" {
		t.Errorf("last events (-want +got):\n%s", diff)
	}
	if got := w.Stream.Kept()["agent_state/ada/4"]["state"]; got != "critical" {
		t.Errorf("the agent was said to be %v", got)
	}
	// The next prompt has the input of this run and no answer.
	w.Router.Script = enginetest.Say(says("hello again"))
	next := command
	next.Run, next.Content = "run2", "are you there?"
	run(t, w, next)
	prompted(t, w)
}

// TestRouterAway tests that a run is retried while the router is unavailable, and given
// up after its attempts.
func TestRouterAway(t *testing.T) {
	t.Parallel()
	away := &api.Error{Code: api.Unavailable, Reason: api.ReasonProvider, Message: "no answer"}
	w := world(says("done"))
	answers := w.Router.Script
	w.Router.Script = func(api.Complete) (api.Completion, error) { return api.Completion{}, away }
	w.Attempts = 3
	for i := range 3 {
		if err := w.Run(t.Context(), enginetest.Open, command); api.CodeOf(err) != api.Unavailable {
			t.Fatalf("try %d: %v, want unavailable", i+1, err)
		}
	}
	_, end := run(t, w, command)
	if end.Success || end.Code != api.Denied || !strings.Contains(end.Error, "given up after 3 tries") {
		t.Errorf("ended %+v", end)
	}

	w = world()
	w.Router.Script = func(api.Complete) (api.Completion, error) { return api.Completion{}, away }
	if err := w.Run(t.Context(), enginetest.Open, command); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	w.Router.Script = answers
	if _, end := run(t, w, command); !end.Success {
		t.Errorf("when the router was back the run ended %+v", end)
	}
}

// TestNoModel tests that an agent without a usable model sleeps instead of retrying.
func TestNoModel(t *testing.T) {
	t.Parallel()
	w := world()
	w.Router.Script = func(api.Complete) (api.Completion, error) {
		return api.Completion{}, &api.Error{Code: api.Unavailable, Reason: api.ReasonNoModel, Message: "no model"}
	}
	if _, end := run(t, w, command); end.Success || end.Reason != api.ReasonNoModel || end.State != api.StateSleeping {
		t.Errorf("ended %+v", end)
	}
}

// TestUnansweredMail tests that the messages of a run of mail are released if it ends
// before the model has answered them, and settled if it ends later or was cancelled.
func TestUnansweredMail(t *testing.T) {
	t.Parallel()
	noModel := &api.Error{Code: api.Unavailable, Reason: api.ReasonNoModel, Message: "no model"}
	for name, tt := range map[string]struct {
		cmd      api.Run
		answers  int // before the model fails
		cancel   bool
		released bool
	}{
		"before an answer": {cmd: mailed, released: true},
		"after a call":     {cmd: mailed, answers: 1},
		"cancelled":        {cmd: mailed, cancel: true},
		"a wake for mail of an older release": {cmd: func() api.Run {
			cmd := mailed
			cmd.Kind = api.RunWake
			return cmd
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := three(false)
			calls := 0
			w.Router.Script = func(api.Complete) (api.Completion, error) {
				switch calls++; {
				case tt.cancel:
					return api.Completion{}, engine.Cancelled("enough")
				case calls > tt.answers:
					return api.Completion{}, noModel
				}
				return asks("", "look"), nil
			}
			if err := w.Run(t.Context(), enginetest.Open, tt.cmd); err != nil {
				t.Fatal(err)
			}
			end := outcomeOf(t, w, tt.cmd).Known.Ended
			if end == nil || end.Success || end.Unanswered != tt.released {
				t.Errorf("ended %+v, want unanswered %t", end, tt.released)
			}
			settled, released := w.Inbox.Settled(tt.cmd.Run), w.Inbox.Released(tt.cmd.Run)
			if tt.released && (settled != 0 || released != 1) || !tt.released && (settled != 1 || released != 0) {
				t.Errorf("the inbox was settled %d times and released %d times, want released %t", settled, released, tt.released)
			}
		})
	}
}

// TestBalanceUnknown tests that an unknown balance is not treated as a low balance
// (docs/reference/loop.md, unknown tier).
func TestBalanceUnknown(t *testing.T) {
	t.Parallel()
	w := world(says("done"))
	w.Treasury.Tier, w.Treasury.Err = api.TierDead, api.Errorf(api.Unavailable, "away")
	run(t, w, command)
	if got := w.Router.Requests()[0].Tier; got != api.TierUnknown {
		t.Errorf("asked for tier %q, want unknown", got)
	}
}

func TestRunTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		short := ada
		short.RunTimeoutS = 2
		w := enginetest.New(newStore(short), enginetest.Say(asks("", "look", "fire", "pay"), says("never")))
		hang := w.Tools["fire"]
		hang.Run = func(ctx context.Context, _ engine.Call) (engine.Output, error) {
			<-ctx.Done()
			return engine.Output{}, ctx.Err()
		}
		w.Tools["fire"] = hang
		turns, end := run(t, w, command)
		if end.Success || !strings.Contains(end.Error, "longer than its 2 s") {
			t.Errorf("ended %+v", end)
		}
		var got []api.Outcome
		for _, c := range turns[0].Calls {
			got = append(got, c.Outcome)
		}
		want := []api.Outcome{api.OutcomeOK, api.OutcomeUnknown, api.OutcomeError}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
	})
}

// TestLeaseLost tests that an owner whose context ends returns the run. Its begin must
// still be recorded then, and no longer once the first turn is stored.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	w := world(asks("", "look", "fire"), says("done"))
	begun, recorded := 0, 0
	owner := func(ctx context.Context) error {
		e, ev := w.Engine()
		e.Begun = func(context.Context, api.Run, engine.Input, api.Tier, int64) (func(), error) {
			begun++
			return func() { recorded++ }, nil
		}
		return e.Run(ctx, command, ev)
	}
	want := func(when string, b, r int) {
		t.Helper()
		if begun != b || recorded != r {
			t.Errorf("%s: %d beginnings told and %d recorded, want %d and %d", when, begun, recorded, b, r)
		}
	}
	lost := api.Errorf(api.Conflict, "lease lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	look := w.Tools["look"]
	look.Run = func(ctx context.Context, _ engine.Call) (engine.Output, error) {
		cancel(lost)
		return engine.Output{}, ctx.Err()
	}
	calm := w.Tools["look"]
	w.Tools["look"] = look
	if err := owner(ctx); !errors.Is(err, lost) {
		t.Errorf("the owner ended with %v, want the cause", err)
	}
	want("after the first owner", 1, 0)
	if got := w.Effects.Of("fire"); len(got) != 0 {
		t.Errorf("fire ran as %v", got)
	}
	w.Tools["look"] = calm
	if err := owner(t.Context()); err != nil {
		t.Error(err)
	}
	want("after the second owner", 2, 1)
	if _, end := run(t, w, command); !end.Success {
		t.Errorf("the next owner ended %+v", end)
	}
}

// TestBegunTooLate tests that a run which is over when its begin is recorded makes no
// model call, and that the next delivery of its message announces the stored end.
func TestBegunTooLate(t *testing.T) {
	t.Parallel()
	w := world(asks("", "fire"), says("done"))
	e, ev := w.Engine()
	e.Begun = func(ctx context.Context, cmd api.Run, _ engine.Input, _ api.Tier, at int64) (func(), error) {
		end := engine.End{Run: cmd, Input: engine.Input{By: cmd.By}, Code: api.Denied, Reason: api.ReasonCancelled, Outcome: api.OutcomeDropped, At: at}
		if err := e.Drop(ctx, end, ev); err != nil {
			t.Error(err)
		}
		return nil, api.Errorf(api.Conflict, "the run is over")
	}
	if err := e.Run(t.Context(), command, ev); api.CodeOf(err) != api.Conflict {
		t.Errorf("the run ended with %v, want the conflict", err)
	}
	if n := len(w.Router.Requests()); n != 0 {
		t.Errorf("the run made %d model calls, want none", n)
	}
	if got := w.Effects.Of("fire"); len(got) != 0 {
		t.Errorf("fire ran as %v", got)
	}
	if _, end := run(t, w, command); end.Success || end.Outcome != api.OutcomeDropped || end.Turns != 0 {
		t.Errorf("announced %+v, want the stored end", end)
	}
}

// TestToolErrors tests that the error of a tool decides whether it is reported to the
// model or the call is retried.
func TestToolErrors(t *testing.T) {
	t.Parallel()
	full := &api.Error{Code: api.Unavailable, Reason: api.ReasonLimit, Message: "too many messages"}
	away := api.Errorf(api.Unavailable, "away")
	for name, tt := range map[string]struct {
		tool  string
		err   error
		want  api.Outcome // "": the run is retried
		tells string
	}{
		"a keyed one's service is away":         {"pay", away, "", ""},
		"an irreversible one's service is away": {"fire", away, api.OutcomeError, "away"},
		"a service is full":                     {"pay", full, api.OutcomeError, "too many messages"},
		"denied":                                {"pay", api.Errorf(api.Denied, "not yours"), api.OutcomeDenied, "not yours"},
		"too slow":                              {"fire", fmt.Errorf("longer than 1 s: %w", context.DeadlineExceeded), api.OutcomeTimeout, "longer than 1 s"},
		"foreign":                               {"look", errors.New("no such file"), api.OutcomeError, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world(asks("", tt.tool), says("done"))
			tool := w.Tools[tt.tool]
			calm := tool
			tool.Run = func(context.Context, engine.Call) (engine.Output, error) {
				return engine.Output{Text: "so far"}, tt.err
			}
			w.Tools[tt.tool] = tool
			if tt.want == "" {
				if err := w.Run(t.Context(), enginetest.Open, command); !errors.Is(err, tt.err) {
					t.Fatalf("got %v, want the run to come back", err)
				}
				w.Tools[tt.tool] = calm
				if turns, _ := run(t, w, command); turns[0].Calls[0].Outcome != api.OutcomeOK || len(w.Effects.Of(tt.tool)) != 1 {
					t.Errorf("came back to %+v", turns[0].Calls[0])
				}
				return
			}
			turns, end := run(t, w, command)
			if c := turns[0].Calls[0]; c.Outcome != tt.want || c.Result != "so far" || !end.Success {
				t.Errorf("the call ended with %+v, the run with %+v", c, end)
			}
			if got := told(w)[0]; !strings.Contains(got, tt.tells) || !strings.Contains(got, "so far") {
				t.Errorf("the model was told %q, want %q and the output so far", got, tt.tells)
			}
		})
	}
}

func TestDeadAgent(t *testing.T) {
	t.Parallel()
	dead := ada
	dead.State = api.StateDead
	w := enginetest.New(newStore(dead), enginetest.Say(says("boo")))
	_, end := run(t, w, command)
	if end.Success || end.Code != api.Denied || end.Changed != nil || len(w.Router.Requests()) != 0 {
		t.Errorf("ended %+v after %d requests", end, len(w.Router.Requests()))
	}
}

// TestPrincipal tests that a run has the lowest principal of its inputs until its end,
// and that a run of the creator does not include peer messages.
func TestPrincipal(t *testing.T) {
	t.Parallel()
	w := three(false)
	turns, _ := run(t, w, command)
	if got := turns[0]; got.By.Kind != api.Creator || got.Input != command.Content || w.Inbox.Settled(command.Run) != 0 {
		t.Errorf("with mail in the inbox the creator's run has the input %q by %+v", got.Input, got.By)
	}
	w = three(false)
	w.Inbox.Messages = append(w.Inbox.Messages, api.InboxMessage{ID: "m2", From: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", Content: "of another"})
	turns, _ = run(t, w, mailed)
	if got := turns[0].Input; !strings.HasPrefix(got, "[message from peer "+mailed.By.Address) || strings.Contains(got, "of another") {
		t.Errorf("the run of mail has the input %q, want the messages of one sender", got)
	}
	want := api.Principal{Kind: api.Peer, Address: w.Inbox.Messages[0].From}
	for _, e := range w.Policy.Asked() {
		if e.By != want {
			t.Errorf("policy was asked for %+v, want %+v", e.By, want)
		}
	}
	for _, turn := range turns {
		if turn.By != want {
			t.Errorf("turn %d has %+v, want %+v", turn.Number, turn.By, want)
		}
	}

	w = world(asks("", "look"), says("done"))
	wake := command
	wake.Kind, wake.Content, wake.By = api.RunWake, "slept\u200b enough", api.Principal{Kind: api.HeartbeatKind}
	turns, _ = run(t, w, wake)
	if turns[0].Input != "[wake] slept enough" || turns[1].By.Kind != api.HeartbeatKind {
		t.Errorf("woken with %q by %+v", turns[0].Input, turns[1].By)
	}
}

// TestLongRun tests that the prompt always has the run's task, however much the run
// reads.
func TestLongRun(t *testing.T) {
	t.Parallel()
	w := enginetest.New(newStore(ada), func(req api.Complete) (api.Completion, error) {
		if req.ID == "run1.9" {
			return says("done"), nil
		}
		return asks("", "look", "look", "look", "look", "look"), nil
	})
	look := w.Tools["look"]
	look.Run = func(context.Context, engine.Call) (engine.Output, error) {
		return engine.Output{Text: strings.Repeat("x", 10_500)}, nil
	}
	w.Tools["look"] = look
	run(t, w, command)
	prompted(t, w)
	for _, r := range w.Router.Requests() {
		var asked int
		for _, m := range r.Messages {
			if m.Role == "user" && strings.HasPrefix(m.Content, command.Content) {
				asked++
			}
		}
		if asked != 1 {
			t.Errorf("the prompt of %s has the task %d times, want once", r.ID, asked)
		}
	}
}

// TestJournalDropped tests a run on a session whose journal was removed from the
// stream.
func TestJournalDropped(t *testing.T) {
	t.Parallel()
	w := world(asks("", "look"), says("done"))
	run(t, w, command)
	w.LoseJournal()
	next := command
	next.Run = "run2"
	w.Router.Script = enginetest.Say(says("hello again"))
	if _, end := run(t, w, next); !end.Success {
		t.Errorf("ended %+v", end)
	}
}

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

var ada = engine.Agent{
	ID: "ada", Name: "Ada", Address: "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", Genesis: "Be useful.",
	Tools: []string{"look", "put", "pay", "fire"}, MaxTurns: 25, MaxCalls: 10, ExecTimeoutS: 30, RunTimeoutS: 600,
	Workspace: "/data/ada", State: api.StateSleeping,
}

var command = api.Run{
	Run: "run1", Agent: "ada", Session: "ada-main", Kind: api.RunMessage, Content: "do all three",
	By: api.Principal{Kind: api.Creator}, AcceptedAt: enginetest.Start,
}

// mailed is a run for the peer's message in the inbox of [three].
var mailed = api.Run{
	Run: "run1", Agent: "ada", Session: "ada-main", Kind: api.RunMail, Content: "mail from a peer",
	By: api.Principal{Kind: api.Peer, Address: "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359"}, AcceptedAt: enginetest.Start,
}

func asks(text string, tools ...string) api.Completion {
	c := api.Completion{Model: "m", Provider: "p", Text: text, Finish: "tool_calls", InputTokens: 100, OutputTokens: 10, Cost: 610}
	for i, t := range tools {
		c.ToolCalls = append(c.ToolCalls, api.ToolCall{ID: fmt.Sprintf("call_%d", i), Name: t, Arguments: `{"n":1}`})
	}
	return c
}

func says(text string) api.Completion {
	return api.Completion{Model: "m", Provider: "p", Text: text, Finish: "stop", InputTokens: 120, OutputTokens: 5, Cost: 305}
}

// three returns a world whose agent makes three calls without a text
// (docs/reference/context.md, turn without text) and then returns a text. A peer's
// message is in its inbox.
func three(lossy bool) *enginetest.World {
	w := enginetest.New(newStore(ada), enginetest.Say(asks("", "look", "pay", "fire"), says("all done")))
	w.Inbox.Messages = []api.InboxMessage{{ID: "m1", From: "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359", Content: "hello"}}
	w.Lossy = lossy
	return w
}

// untilOver executes a run until it is over, as redeliveries would.
func untilOver(t *testing.T, w *enginetest.World, cmd api.Run) {
	t.Helper()
	var err error
	for range w.Attempts + 2 {
		if err = w.Run(t.Context(), enginetest.Open, cmd); err == nil {
			replays(t, w, cmd)
			return
		}
	}
	t.Fatalf("the run is not over: %v", err)
}

// outcome holds the stored state and the events of a run.
type outcome struct {
	Turns  []api.Turn
	Known  engine.Known
	Events map[string]map[string]any
}

var timeless = cmp.Options{
	cmpopts.IgnoreFields(api.Turn{}, "StartedAt", "EndedAt"), cmpopts.IgnoreFields(api.CallState{}, "DurationMS"),
	cmpopts.IgnoreFields(engine.Known{}, "Journal", "Before"), cmpopts.IgnoreFields(engine.End{}, "At"), cmpopts.IgnoreFields(engine.Input{}, "Deadline"), cmpopts.IgnoreFields(api.AgentChanged{}, "At"),
	cmpopts.IgnoreMapEntries(func(k string, _ any) bool { return k == "duration" }),
}

func outcomeOf(t *testing.T, w *enginetest.World, cmd api.Run) outcome {
	t.Helper()
	turns, err := w.Store.History(t.Context(), cmd.Session, 1000)
	if err != nil {
		t.Fatal(err)
	}
	known, err := w.Store.Known(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return outcome{turns, known, w.Stream.Kept()}
}

// sound checks the invariants that hold after any number of resumes of a run.
func sound(t *testing.T, w *enginetest.World, cmd api.Run) {
	t.Helper()
	for id, n := range w.Router.Paid() {
		if n != 1 {
			t.Errorf("the model was paid %d times for %s, want once", n, id)
		}
	}
	for _, fault := range w.Stream.Faults() {
		t.Errorf("one id, two messages: %s", fault)
	}
	if got := w.Effects.Of("fire"); len(got) > 1 {
		t.Errorf("fire had the effects %v, want at most one", got)
	}
	if got := slices.Compact(w.Effects.Of("pay")); len(got) != 1 {
		t.Errorf("pay had effects under the keys %v, want one key", got)
	}
	turns, err := w.Store.History(t.Context(), cmd.Session, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for i, turn := range turns {
		if turn.Number != i+1 {
			t.Errorf("turn %d of the session has number %d", i+1, turn.Number)
		}
	}
}

// replays checks that every turn of a run can be replayed without a difference.
func replays(t *testing.T, w *enginetest.World, cmd api.Run) {
	t.Helper()
	if n, err := w.Replay(t.Context(), cmd.Session, cmd.Run); err != nil {
		t.Errorf("%d turns were replayed, then: %v", n, err)
	}
}

// prompted checks every prompt of a world without concurrent owners.
func prompted(t *testing.T, w *enginetest.World) {
	t.Helper()
	for _, r := range w.Router.Requests() {
		wellFormed(t, r.Messages)
		if last := r.Messages[len(r.Messages)-1].Role; last == "assistant" {
			t.Fatal("the prompt ends with the model's own words")
		}
	}
}

// wellFormed checks the rules that all providers have for prompts: each call has
// exactly one result, directly after it, and a unique id.
func wellFormed(t *testing.T, messages []api.ChatMessage) {
	t.Helper()
	if len(messages) == 0 || messages[0].Role != "system" {
		t.Fatalf("the prompt does not begin with the system's words: %+v", messages)
	}
	seen := map[string]bool{}
	var open []string
	for _, m := range messages[1:] {
		if m.Role == "tool" {
			if len(open) == 0 || open[0] != m.ToolCallID {
				t.Fatalf("a result of %q where %v are open", m.ToolCallID, open)
			}
			open = open[1:]
			continue
		}
		if len(open) > 0 {
			t.Fatalf("a message of %s before the results of %v", m.Role, open)
		}
		if m.Content == "" && len(m.ToolCalls) == 0 {
			t.Fatalf("an empty message of %s", m.Role)
		}
		for _, c := range m.ToolCalls {
			if c.ID == "" || seen[c.ID] || len(c.ID) > 40 {
				t.Fatalf("call id %q is empty, too long or used before", c.ID)
			}
			seen[c.ID] = true
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		t.Fatalf("no results of %v", open)
	}
}

// TestCrash tests a crash of the owner before and after the effect of every port call,
// with a stream that stores posted events at once and with one that loses them until
// Wait.
func TestCrash(t *testing.T) {
	t.Parallel()
	calm := three(true)
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, mailed); err != nil {
		t.Fatal(err)
	}
	want := outcomeOf(t, calm, mailed)
	if len(want.Turns) != 2 || want.Known.Ended == nil || !want.Known.Ended.Success || want.Known.Cost != 915 {
		t.Fatalf("the run without a crash ended with %+v", want)
	}
	// A crash between these two calls leaves the irreversible call without a result.
	from, to := nth(ports.Ports, "append intent", 3), nth(ports.Ports, "append result", 3)
	for at := 1; at <= len(ports.Ports); at++ {
		for _, after := range []bool{false, true} {
			for _, lossy := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d %s after=%t lossy=%t", at, ports.Ports[at-1], after, lossy), func(t *testing.T) {
					t.Parallel()
					w := three(lossy)
					crash := enginetest.Crash{At: ports.Point(at), After: after}
					if err := w.Run(t.Context(), crash.Gate, mailed); err == nil || !crash.Dead() {
						t.Fatalf("the owner ended with %v, dead: %t", err, crash.Dead())
					}
					untilOver(t, w, mailed)
					sound(t, w, mailed)
					prompted(t, w)
					unknown := at > from && at < to || at == from && after || at == to && !after
					got := outcomeOf(t, w, mailed)
					checkUnknown(t, w, got, unknown)
					if unknown {
						forget(&got, want)
					}
					if diff := cmp.Diff(want, got, timeless); diff != "" {
						t.Errorf("another outcome than without the crash (-want +got):\n%s", diff)
					}
					if n := w.Inbox.Settled(mailed.Run); n == 0 {
						t.Error("the inbox was never settled")
					}
				})
			}
		}
	}
}

// TestCostCapCrash tests that a run with a cost cap ends after the same turn with the
// same reason, whichever owner resumes it.
func TestCostCapCrash(t *testing.T) {
	t.Parallel()
	const limit = 1220
	calm, cmd := task(limit, 0)
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, cmd); err != nil {
		t.Fatal(err)
	}
	want := outcomeOf(t, calm, cmd)
	if len(want.Turns) != 2 || want.Known.Ended == nil || want.Known.Ended.Reason != api.ReasonCostCap {
		t.Fatalf("the run without a crash ended with %+v", want)
	}
	for at := 1; at <= len(ports.Ports); at++ {
		for _, after := range []bool{false, true} {
			w, cmd := task(limit, 0)
			crash := enginetest.Crash{At: ports.Point(at), After: after}
			if err := w.Run(t.Context(), crash.Gate, cmd); err == nil || !crash.Dead() {
				t.Fatalf("the owner ended with %v, dead: %t", err, crash.Dead())
			}
			untilOver(t, w, cmd)
			for id, n := range w.Router.Paid() {
				if n != 1 {
					t.Errorf("the model was paid %d times for %s, want once", n, id)
				}
			}
			if diff := cmp.Diff(want, outcomeOf(t, w, cmd), timeless); diff != "" {
				t.Errorf("crash at %s (%d), after=%t: another outcome (-want +got):\n%s", ports.Ports[at-1], at, after, diff)
			}
		}
	}
}

// checkUnknown checks the outcome of the irreversible call.
func checkUnknown(t *testing.T, w *enginetest.World, got outcome, unknown bool) {
	t.Helper()
	c, effects := got.Turns[0].Calls[2], len(w.Effects.Of("fire"))
	if !unknown {
		if c.Outcome != api.OutcomeOK || effects != 1 {
			t.Errorf("fire ended %s with %d effects, want ok with one", c.Outcome, effects)
		}
		return
	}
	if c.Outcome != api.OutcomeUnknown {
		t.Errorf("fire ended %s, want outcome_unknown", c.Outcome)
	}
	requests := w.Router.Requests()
	last := requests[len(requests)-1].Messages
	if told := last[len(last)-1].Content; !strings.Contains(told, "outcome unknown") {
		t.Errorf("the model was told %q, want that the outcome is unknown", told)
	}
}

// forget replaces an unknown outcome by that of the run without a crash, and the event of the next
// prompt, whose token count differs.
func forget(o *outcome, want outcome) {
	c := &o.Turns[0].Calls[2]
	c.Outcome, c.Result, c.Error = api.OutcomeOK, "fire done", ""
	end := o.Events["tool_end/run1.1.2"]
	end["outcome"], end["result"] = "ok", "fire done"
	o.Events["loop_context/run1.2"] = want.Events["loop_context/run1.2"]
}

func nth(all []string, s string, n int) int {
	for i, v := range all {
		if v == s {
			if n--; n == 0 {
				return i + 1
			}
		}
	}
	panic("no such call")
}

// TestCrashTwice tests a crash of the second owner after a crash of the first at each
// port call.
func TestCrashTwice(t *testing.T) {
	t.Parallel()
	var ports enginetest.Crash
	if err := three(true).Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= len(ports.Ports); at++ {
		t.Run(fmt.Sprintf("%d %s", at, ports.Ports[at-1]), func(t *testing.T) {
			t.Parallel()
			for again := 1 + at%3; ; again += 3 {
				second := enginetest.Crash{At: enginetest.Point{Nth: again}, After: again%2 == 0}
				w := three(at%2 == 0)
				first := enginetest.Crash{At: ports.Point(at), After: again%4 < 2}
				if err := w.Run(t.Context(), first.Gate, command); err == nil {
					t.Fatal("the first owner did not die")
				}
				err := w.Run(t.Context(), second.Gate, command)
				if !second.Dead() {
					if err != nil {
						t.Fatalf("the second owner ended with %v", err)
					}
					return
				}
				untilOver(t, w, command)
				sound(t, w, command)
				prompted(t, w)
				if got := outcomeOf(t, w, command); len(got.Turns) != 2 || got.Known.Cost != 915 || !got.Known.Ended.Success || len(got.Events) != len(want(t).Events) {
					t.Fatalf("after a second crash at %d (%s) the run ended with %+v", again, second.Ports[again-1], got)
				}
			}
		})
	}
}

func want(t *testing.T) outcome {
	t.Helper()
	w := three(false)
	untilOver(t, w, command)
	return outcomeOf(t, w, command)
}

// TestPausedOwner pauses an owner before each of its port calls, lets another owner end
// the run and then resumes the first one, which must not change the result.
func TestPausedOwner(t *testing.T) {
	t.Parallel()
	var ports enginetest.Crash
	if err := three(true).Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= len(ports.Ports); at++ {
		t.Run(fmt.Sprintf("%d %s", at, ports.Ports[at-1]), func(t *testing.T) {
			t.Parallel()
			w := three(true)
			pause := enginetest.NewPause(ports.Point(at))
			ended := make(chan error, 1)
			go func() { ended <- w.Run(context.WithoutCancel(t.Context()), pause.Gate, command) }()
			<-pause.Paused
			untilOver(t, w, command)
			before, effects := outcomeOf(t, w, command), everything(w)
			close(pause.Resume)
			err := <-ended
			if err != nil && api.CodeOf(err) != api.Conflict {
				t.Errorf("the paused owner ended with %v, want a conflict or nothing", err)
			}
			if diff := cmp.Diff(before, outcomeOf(t, w, command)); diff != "" {
				t.Errorf("the paused owner changed what was over (-before +after):\n%s", diff)
			}
			// Only a call that was already started cannot be prevented.
			if tool, under := strings.CutPrefix(pause.At.Port, "tool "); under {
				effects[tool]++
			}
			if diff := cmp.Diff(effects, everything(w)); diff != "" {
				t.Errorf("the paused owner acted (-want +got):\n%s", diff)
			}
			sound(t, w, command)
		})
	}
}

func everything(w *enginetest.World) map[string]int {
	all := map[string]int{}
	for _, tool := range ada.Tools {
		all[tool] = len(w.Effects.Of(tool))
	}
	return all
}

// TestCrashWhileGivingUp tests a crash at each port call of a run that fails.
func TestCrashWhileGivingUp(t *testing.T) {
	t.Parallel()
	broke := func() *enginetest.World {
		poor := &api.Error{Code: api.Denied, Reason: api.ReasonInsufficient, Message: "cannot pay"}
		w := three(true)
		w.Router.Script = func(req api.Complete) (api.Completion, error) {
			if req.ID == "run1.1" {
				return asks("", "look", "pay", "fire"), nil
			}
			return api.Completion{}, poor
		}
		return w
	}
	calm := broke()
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	want := outcomeOf(t, calm, command)
	for at := nth(ports.Ports, "complete", 2); at <= len(ports.Ports); at++ {
		for _, after := range []bool{false, true} {
			w := broke()
			crash := enginetest.Crash{At: ports.Point(at), After: after}
			err := w.Run(t.Context(), crash.Gate, command)
			if code := api.CodeOf(err); code == api.Denied || code == api.Invalid || code == "" {
				t.Errorf("the owner that crashed at %s ended with %v: its message is gone", ports.Ports[at-1], err)
			}
			untilOver(t, w, command)
			sound(t, w, command)
			prompted(t, w)
			if diff := cmp.Diff(want, outcomeOf(t, w, command), timeless); diff != "" {
				t.Errorf("after a crash at %s, after=%t (-want +got):\n%s", ports.Ports[at-1], after, diff)
			}
		}
	}
}

// TestGivingUpRefused tests that an error of giveUp never settles the run's message.
func TestGivingUpRefused(t *testing.T) {
	t.Parallel()
	for _, port := range []string{"append begin", "persist"} {
		w := three(true)
		w.Treasury.Err = api.Errorf(api.Denied, "no account")
		begins := 0
		gate := func(_ context.Context, p string, do func() error) error {
			if p == "append begin" {
				begins++
			}
			if p == port && (p != "append begin" || begins > 1) {
				return api.Errorf(api.Invalid, "too large")
			}
			return do()
		}
		err := w.Run(t.Context(), gate, command)
		if code := api.CodeOf(err); code != api.Internal {
			t.Errorf("%s refused: %v with the code %s, want one that brings the run back", port, err, code)
		}
		if _, end := run(t, w, command); end.Success || end.Error != "no account" {
			t.Errorf("%s refused, then not: ended %+v", port, end)
		}
	}
}

// TestPausedOwnerGivesUp tests that a paused owner cannot end the run with an error
// after another owner has taken it over.
func TestPausedOwnerGivesUp(t *testing.T) {
	t.Parallel()
	var ports enginetest.Crash
	if err := three(true).Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	w := three(true)
	pause := enginetest.NewPause(enginetest.Point{Port: "balance", Nth: 1})
	ended := make(chan error, 1)
	go func() { ended <- w.Run(context.WithoutCancel(t.Context()), pause.Gate, command) }()
	<-pause.Paused
	crash := enginetest.Crash{At: enginetest.Point{Port: "tool look", Nth: 1}, After: true}
	if err := w.Run(t.Context(), crash.Gate, command); !errors.Is(err, enginetest.ErrCrash) {
		t.Fatalf("got %v, want a crash", err)
	}
	w.Treasury.Err = api.Errorf(api.Denied, "no account")
	close(pause.Resume)
	if err := <-ended; api.CodeOf(err) != api.Conflict {
		t.Errorf("the paused owner ended with %v, want a conflict", err)
	}
	if end := outcomeOf(t, w, command).Known.Ended; end != nil {
		t.Errorf("it ended the run: %+v", end)
	}
	w.Treasury.Err = nil
	untilOver(t, w, command)
	sound(t, w, command)
	if got := outcomeOf(t, w, command); !got.Known.Ended.Success || len(got.Turns) != 2 {
		t.Errorf("the run ended with %+v", got)
	}
}

// TestStaleView tests an owner that reads the store just before another owner persists
// a turn, so that the journal is newer than the store's data.
func TestStaleView(t *testing.T) {
	t.Parallel()
	w := enginetest.New(newStore(ada), enginetest.Say(asks("", "look"), asks("", "fire"), says("done")))
	stale, err := w.Store.Known(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	// The first owner crashes directly after the irreversible call of its second turn.
	var ports enginetest.Crash
	probe := enginetest.New(newStore(ada), w.Router.Script)
	if err := probe.Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	crash := enginetest.Crash{At: enginetest.Point{Port: "tool fire", Nth: 1}, After: true}
	if err := w.Run(t.Context(), crash.Gate, command); !errors.Is(err, enginetest.ErrCrash) {
		t.Fatalf("got %v, want a crash", err)
	}
	e, ev := w.Engine()
	e.Store = staleStore{w.Store, stale}
	if err := e.Run(t.Context(), command, ev); api.CodeOf(err) != api.Conflict {
		t.Errorf("an owner with an old view ended with %v, want a conflict", err)
	}
	untilOver(t, w, command)
	if got := w.Effects.Of("fire"); len(got) != 1 {
		t.Errorf("fire had the effects %v, want one", got)
	}
}

// TestStaleJournal tests a stream leader that is behind: a new owner finds no journal
// entries of a run that has begun. It must not act on that, whether or not the run was
// cancelled, so that the effects of the previous owner are recorded.
func TestStaleJournal(t *testing.T) {
	t.Parallel()
	var ports enginetest.Crash
	if err := three(true).Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	for _, cancelled := range []bool{false, true} {
		w := three(true)
		store, _ := w.Store.(*memStore)
		crash := enginetest.Crash{At: enginetest.Point{Port: "tool fire", Nth: 1}, After: true}
		if err := w.Run(t.Context(), crash.Gate, command); !errors.Is(err, enginetest.ErrCrash) {
			t.Fatalf("got %v, want a crash", err)
		}
		if cancelled {
			store.Cancel(command.Run, "enough")
		}
		e, ev := w.Engine()
		e.Journal = emptyJournal{e.Journal}
		if err := e.Run(t.Context(), command, ev); api.CodeOf(err) != api.Conflict {
			t.Errorf("cancelled %t: without the journal the run ended with %v, want a conflict", cancelled, err)
		}
		if end := store.End(command.Run); end != nil {
			t.Errorf("cancelled %t: it was ended: %+v", cancelled, end)
		}
		untilOver(t, w, command)
		if got := w.Effects.Of("fire"); len(got) != 1 {
			t.Errorf("cancelled %t: fire had the effects %v, want one", cancelled, got)
		}
		if turns := outcomeOf(t, w, command).Turns; len(turns) == 0 || len(turns[0].Calls) != 3 || turns[0].Cost == 0 {
			t.Errorf("cancelled %t: the turn under way was not kept: %+v", cancelled, turns)
		}
	}
}

// emptyJournal is a journal whose tail is always empty.
type emptyJournal struct{ engine.Journal }

func (emptyJournal) Tail(context.Context, api.Run, uint64) ([]engine.Step, uint64, error) {
	return nil, 0, nil
}

type staleStore struct {
	engine.Store
	known engine.Known
}

func (s staleStore) Known(context.Context, api.Run) (engine.Known, error) { return s.known, nil }

// TestLowerLimitAfterCrash tests that a limit of calls that is lowered while a run has no
// owner does not change what is recorded of the calls that were executed.
func TestLowerLimitAfterCrash(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		crash enginetest.Point
		want  []api.Outcome
	}{
		"with results":      {enginetest.Point{Port: "append result", Nth: 3}, []api.Outcome{api.OutcomeOK, api.OutcomeOK, api.OutcomeOK}},
		"with an intent":    {enginetest.Point{Port: "append intent", Nth: 3}, []api.Outcome{api.OutcomeOK, api.OutcomeOK, api.OutcomeUnknown}},
		"without an intent": {enginetest.Point{Port: "append result", Nth: 2}, []api.Outcome{api.OutcomeOK, api.OutcomeOK, api.OutcomeError}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := three(true)
			crash := enginetest.Crash{At: tt.crash, After: true}
			if err := w.Run(t.Context(), crash.Gate, command); err == nil || !crash.Dead() {
				t.Fatalf("the owner ended with %v, dead: %t", err, crash.Dead())
			}
			store, _ := w.Store.(*memStore)
			store.agents["ada"].MaxCalls = 1
			if err := w.Run(t.Context(), enginetest.Open, command); err != nil {
				t.Fatal(err)
			}
			var got []api.Outcome
			for _, c := range outcomeOf(t, w, command).Turns[0].Calls {
				got = append(got, c.Outcome)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("the calls ended %v, want %v", got, tt.want)
			}
		})
	}
}

// TestRefusedAfterCrash tests a call that has an intent and no result, and whose tool does
// not accept its arguments any more. The call may have been executed, so its outcome is
// unknown.
func TestRefusedAfterCrash(t *testing.T) {
	t.Parallel()
	w := three(true)
	crash := enginetest.Crash{At: enginetest.Point{Port: "append intent", Nth: 2}, After: true}
	if err := w.Run(t.Context(), crash.Gate, command); err == nil || !crash.Dead() {
		t.Fatalf("the owner ended with %v, dead: %t", err, crash.Dead())
	}
	pay := w.Tools["pay"]
	pay.Check = func(json.RawMessage) error { return errors.New("n is unknown") }
	w.Tools["pay"] = pay
	if err := w.Run(t.Context(), enginetest.Open, command); err != nil {
		t.Fatal(err)
	}
	if call := outcomeOf(t, w, command).Turns[0].Calls[1]; call.Tool != "pay" || call.Outcome != api.OutcomeUnknown {
		t.Errorf("the call of %s ended %s, want %s", call.Tool, call.Outcome, api.OutcomeUnknown)
	}
}

// TestToolGoneAfterCrash tests a call that has an intent and no result, and whose tool
// has been removed. The call may have been executed, so its outcome is unknown, for
// every class of effect.
func TestToolGoneAfterCrash(t *testing.T) {
	t.Parallel()
	calm := three(true)
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	for nthCall, tool := range []string{"look", "pay"} {
		t.Run(tool, func(t *testing.T) {
			t.Parallel()
			w := three(true)
			crash := enginetest.Crash{At: enginetest.Point{Port: "append intent", Nth: nthCall + 1}, After: true}
			if err := w.Run(t.Context(), crash.Gate, command); err == nil || !crash.Dead() {
				t.Fatalf("the owner ended with %v, dead: %t", err, crash.Dead())
			}
			delete(w.Tools, tool)
			untilOver(t, w, command)
			call := outcomeOf(t, w, command).Turns[0].Calls[nthCall]
			if call.Tool != tool || call.Outcome != api.OutcomeUnknown {
				t.Errorf("the call of %s ended %s, want %s", call.Tool, call.Outcome, api.OutcomeUnknown)
			}
			requests := w.Router.Requests()
			told := ""
			for _, m := range requests[len(requests)-1].Messages {
				told += m.Content
			}
			if !strings.Contains(told, "outcome unknown") {
				t.Errorf("the model was not told that the outcome is unknown: %q", told)
			}
		})
	}
}

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
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

const summaryCost = 77

// long returns a world in which each run makes one call with a result of size bytes and
// then returns a text. Summaries are made on request.
func long(window int64, size int) *enginetest.World {
	a := ada
	a.Window = window
	w := enginetest.New(newStore(a), func(req api.Complete) (api.Completion, error) {
		switch {
		case req.Task == api.TaskSummary:
			return api.Completion{Model: "cheap", Text: "summary of " + req.ID, Finish: "stop", InputTokens: 50, OutputTokens: 5, Cost: summaryCost}, nil
		case strings.HasSuffix(req.ID, ".1"):
			c := asks("I look.", "look")
			c.InputTokens = 0 // not reported, so the ratio is not corrected
			return c, nil
		}
		c := says("seen")
		c.InputTokens = 0
		return c, nil
	})
	look := w.Tools["look"]
	look.Run = func(_ context.Context, c engine.Call) (engine.Output, error) {
		return engine.Output{Text: c.Key + " " + strings.Repeat("x y ", size/4)}, nil
	}
	w.Tools["look"] = look
	return w
}

func nthRun(n int) api.Run {
	cmd := command
	cmd.Run, cmd.Content = fmt.Sprintf("run%d", n), fmt.Sprintf("task %d", n)
	return cmd
}

// runs executes runs one after the other and requires that all succeed.
func runs(t *testing.T, w *enginetest.World, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		if _, end := run(t, w, nthRun(n)); !end.Success || end.Response != "seen" {
			t.Fatalf("run %d ended %+v", n, end)
		}
	}
}

func compactions(w *enginetest.World) []engine.Compaction {
	s, _ := w.Store.(*memStore)
	return s.Compactions()
}

// checkPrompts checks that every prompt is well-formed, fits its window and can be
// rebuilt.
func checkPrompts(t *testing.T, w *enginetest.World) {
	t.Helper()
	prompted(t, w)
	store := w.Store
	for _, r := range w.Router.Requests() {
		if r.Task == api.TaskSummary {
			continue
		}
		id := strings.TrimSuffix(r.ID, ".flush")
		ref, _, err := store.Prompt(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if ref.Tokens > ref.Window {
			t.Errorf("%s: %d tokens in a window of %d", id, ref.Tokens, ref.Window)
		}
		run, _, _ := strings.Cut(id, ".")
		cmd := command
		cmd.Run = run
		known, err := w.Store.Known(t.Context(), cmd)
		if err != nil {
			t.Fatal(err)
		}
		words := ""
		if strings.HasSuffix(id, ".1") {
			words = known.Input.Text
		}
		got, _, err := engine.Rebuild(t.Context(), store, id, known.Input.Text, words)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Messages, got); diff != "" {
			t.Errorf("%s was asked otherwise (-asked +made again):\n%s", id, diff)
		}
	}
}

// TestCompaction tests that a session larger than its window continues with summaries
// of its old turns, each of which is charged and stored once.
func TestCompaction(t *testing.T) {
	t.Parallel()
	w := long(16_000, 3_000)
	runs(t, w, 1, 30)
	checkPrompts(t, w)
	done := compactions(w)
	if len(done) < 3 {
		t.Fatalf("%d compactions in a session of %d bytes", len(done), 30*3000)
	}
	var cost api.Micros
	for i, c := range done {
		if c.After >= c.Before || i > 0 && c.Through <= done[i-1].Through {
			t.Errorf("compaction %d: %+v", i, c)
		}
		cost += c.Cost
	}
	if cost == 0 || cost%summaryCost != 0 {
		t.Errorf("the compactions cost %d", cost)
	}
	var paid, sum api.Micros
	for id, n := range w.Router.Paid() {
		if n != 1 {
			t.Errorf("%s was paid %d times", id, n)
		}
		switch {
		case strings.Contains(id, ".sum"):
			paid += summaryCost
		case strings.HasSuffix(id, ".1"):
			paid += asks("").Cost
		default:
			paid += says("").Cost
		}
	}
	turns, err := w.Store.History(t.Context(), command.Session, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, turn := range turns {
		sum += turn.Cost
	}
	if paid != sum || len(turns) != 60 {
		t.Errorf("%d turns cost %d, %d was paid: the summaries belong to the session", len(turns), sum, paid)
	}
	requests := w.Router.Requests()
	last := requests[len(requests)-1].Messages
	if !slices.ContainsFunc(last, func(m api.ChatMessage) bool { return strings.Contains(m.Content, "summary of run") }) {
		t.Error("the last prompt has no summary")
	}
}

// compacting returns a function that builds a world and the run that causes its first
// compaction.
func compacting(t *testing.T, build func() *enginetest.World) func() (*enginetest.World, api.Run) {
	t.Helper()
	probe, n := build(), 0
	for len(compactions(probe)) == 0 {
		if n++; n == 60 {
			t.Fatal("nothing was compacted")
		}
		runs(t, probe, n, n)
	}
	return func() (*enginetest.World, api.Run) {
		w := build()
		runs(t, w, 1, n-1)
		return w, nthRun(n)
	}
}

// TestCrashInCompaction tests a crash at each port call of a run with a compaction: the
// compaction is stored and charged once, and the prompt is the same.
func TestCrashInCompaction(t *testing.T) {
	t.Parallel()
	fresh := compacting(t, func() *enginetest.World { return long(16_000, 5_000) })
	calm, cmd := fresh()
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, cmd); err != nil {
		t.Fatal(err)
	}
	want, wantDone := outcomeOf(t, calm, cmd), compactions(calm)
	if len(wantDone) != 1 || nth(ports.Ports, "compact", 1) == 0 {
		t.Fatalf("compacted %d times", len(wantDone))
	}
	for at := 1; at <= len(ports.Ports); at++ {
		for _, after := range []bool{false, true} {
			w, cmd := fresh()
			crash := enginetest.Crash{At: ports.Point(at), After: after}
			if err := w.Run(t.Context(), crash.Gate, cmd); err == nil {
				t.Fatal("the owner did not die")
			}
			untilOver(t, w, cmd)
			where := fmt.Sprintf("crash at %s, after=%t", ports.Ports[at-1], after)
			got := outcomeOf(t, w, cmd)
			if diff := cmp.Diff(want.Turns, got.Turns, timeless); diff != "" {
				t.Errorf("%s (-want +got):\n%s", where, diff)
			}
			if diff := cmp.Diff(wantDone, compactions(w), cmpopts.IgnoreFields(engine.Compaction{}, "At")); diff != "" {
				t.Errorf("%s: compactions (-want +got):\n%s", where, diff)
			}
			for id, n := range w.Router.Paid() {
				if n != 1 {
					t.Errorf("%s: %s was paid %d times", where, id, n)
				}
			}
		}
	}
}

// TestSummaryRefused tests that a refused summary leads to stage 4, whose summary is
// made without a model.
func TestSummaryRefused(t *testing.T) {
	t.Parallel()
	fresh := compacting(t, func() *enginetest.World { return long(16_000, 1_850) })
	for _, err := range []error{
		&api.Error{Code: api.Unavailable, Reason: api.ReasonNoModel, Message: "no model"},
		&api.Error{Code: api.Unavailable, Reason: api.ReasonProvider, Message: "it failed"},
		&api.Error{Code: api.Denied, Reason: api.ReasonLimit, Message: "too dear"},
		nil, // an empty summary
	} {
		w, cmd := fresh()
		script := w.Router.Script
		var tried []string
		w.Router.Script = func(req api.Complete) (api.Completion, error) {
			if req.Task == api.TaskSummary {
				_, name, _ := strings.Cut(req.ID, ".sum")
				tried = append(tried, name)
				return api.Completion{}, err
			}
			return script(req)
		}
		if _, end := run(t, w, cmd); !end.Success {
			t.Fatalf("%v: ended %+v", err, end)
		}
		done := compactions(w)
		if len(done) != 1 || prompt.Stage(done[0].Stage) != prompt.Checkpoint || !strings.Contains(done[0].Summary, "[look ok]") {
			t.Errorf("%v: compactions %+v", err, done)
		}
		if len(tried) != 2 || tried[0][0] != '3' || tried[1][0] != '4' {
			t.Errorf("%v: asked for %v, want stage 3 and then 4", err, tried)
		}
		checkPrompts(t, w)
	}
}

// TestSummaryAway tests that a run is retried without a compaction while the router is
// unavailable.
func TestSummaryAway(t *testing.T) {
	t.Parallel()
	w, cmd := compacting(t, func() *enginetest.World { return long(16_000, 3_000) })()
	script := w.Router.Script
	away := &api.Error{Code: api.Unavailable, Reason: api.ReasonNoAnswer, Message: "away"}
	w.Router.Script = func(api.Complete) (api.Completion, error) { return api.Completion{}, away }
	if err := w.Run(t.Context(), enginetest.Open, cmd); !errors.Is(err, away) || len(compactions(w)) != 0 {
		t.Errorf("got %v and %d compactions", err, len(compactions(w)))
	}
	w.Router.Script = script
	if _, end := run(t, w, cmd); !end.Success || len(compactions(w)) != 1 {
		t.Errorf("ended %+v with %d compactions", end, len(compactions(w)))
	}
}

// TestOverflow tests that a prompt that cannot be reduced ends the run with its own
// reason, without a model call.
func TestOverflow(t *testing.T) {
	t.Parallel()
	w := long(400, 100)
	turns, end := run(t, w, nthRun(1))
	if end.Success || end.Code != api.Invalid || end.Reason != api.ReasonOverflow || len(w.Router.Requests()) != 0 {
		t.Errorf("ended %+v after %d requests", end, len(w.Router.Requests()))
	}
	if len(turns) != 1 || turns[0].Input != "task 1" {
		t.Errorf("kept %+v", turns)
	}
	// A session whose last three turns fill the window recovers after them.
	w = long(16_000, 3_000)
	runs(t, w, 1, 5)
	huge := nthRun(6)
	huge.Content = strings.Repeat("a lot to read. ", 5_000)
	if _, end := run(t, w, huge); end.Success || end.Reason != api.ReasonOverflow {
		t.Errorf("ended %+v", end)
	}
	for n := 7; ; n++ {
		if n > 12 {
			t.Fatal("the session never recovers")
		}
		if _, end := run(t, w, nthRun(n)); end.Success {
			break
		}
	}
	checkPromptsThatWere(t, w)
}

// checkPromptsThatWere checks that the prompts of all requests are well-formed.
func checkPromptsThatWere(t *testing.T, w *enginetest.World) {
	t.Helper()
	for _, r := range w.Router.Requests() {
		wellFormed(t, r.Messages)
	}
}

// TestTooLarge tests that a prompt that the router refuses, by the window of the model or by
// the ceiling of the tier, is reduced and sent again, and that a second refusal ends the run.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refusal api.Error
		end     string
	}{
		"window":  {api.Error{Code: api.Invalid, Reason: api.ReasonTooLong, Message: "it does not fit"}, api.ReasonOverflow},
		"ceiling": {api.Error{Code: api.Denied, Reason: api.ReasonLimit, Message: "it may cost more than the tier may spend"}, api.ReasonLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := long(100_000, 3_000)
			runs(t, w, 1, 10)
			script := w.Router.Script
			refused, limit := 0, 20_000
			w.Router.Script = func(req api.Complete) (api.Completion, error) {
				if len(fmt.Sprint(req.Messages)) > limit {
					refused++
					return api.Completion{}, &tt.refusal
				}
				return script(req)
			}
			w.Models = models{{ID: "m", Usable: true, ContextWindow: 100_000}, {ID: "s", Usable: true, ContextWindow: 9_000}}
			if _, end := run(t, w, nthRun(11)); !end.Success || refused == 0 {
				t.Errorf("ended %+v after %d refusals", end, refused)
			}
			limit = 0
			if _, end := run(t, w, nthRun(12)); end.Success || end.Reason != tt.end {
				t.Errorf("refused twice the run ended %+v, want the reason %s", end, tt.end)
			}
			checkPromptsThatWere(t, w)
		})
	}
}

type models []api.Model

func (m models) Models(context.Context) ([]api.Model, error) {
	if m == nil {
		return nil, api.Errorf(api.Unavailable, "away")
	}
	return m, nil
}

// TestWindow tests that the window is that of the agent's model, of the model that
// answered last, or the default.
func TestWindow(t *testing.T) {
	t.Parallel()
	all := models{
		{ID: "m", Usable: true, ContextWindow: 50_000},
		{ID: "wish", Usable: true, ContextWindow: 70_000},
		{ID: "broken", ContextWindow: 10},
	}
	for name, tt := range map[string]struct {
		wish          string
		models        models
		first, second int64
	}{
		"the agent's": {"wish", all, 70_000, 70_000},
		"the last":    {"", all, 128_000, 50_000},
		"not usable":  {"broken", all, 128_000, 50_000},
		"away":        {"wish", nil, 128_000, 128_000},
	} {
		a := ada
		a.Model = tt.wish
		w := enginetest.New(newStore(a), enginetest.Say(asks("", "look"), says("done")))
		w.Models = tt.models
		run(t, w, command)
		store := w.Store
		for i, want := range []int64{tt.first, tt.second} {
			if ref, _, err := store.Prompt(t.Context(), engine.ID(command.Run, i+1)); err != nil || ref.Window != want {
				t.Errorf("%s: turn %d has a window of %d, want %d (%v)", name, i+1, ref.Window, want, err)
			}
		}
	}
}

// TestLowComputeWindow tests that an agent in low compute has a short window, and also one
// with little money, unless its model is free; and that a recorded prompt has that window
// again.
func TestLowComputeWindow(t *testing.T) {
	t.Parallel()
	all := models{{ID: "paid", Usable: true, ContextWindow: 100_000, InputPrice: 1}, {ID: "free", Usable: true, ContextWindow: 100_000}}
	for _, tt := range []struct {
		model  string
		choice engine.Choice
		tier   api.Tier
		window int64
		asked  api.Tier
	}{
		{"paid", engine.Choice{}, api.TierHigh, 100_000, api.TierHigh},
		{"paid", engine.Choice{LowCompute: true}, api.TierHigh, api.LowComputeWindow, api.TierLow},
		{"free", engine.Choice{LowCompute: true}, api.TierHigh, api.LowComputeWindow, api.TierLow},
		{"paid", engine.Choice{}, api.TierLow, api.LowComputeWindow, api.TierLow},
		{"paid", engine.Choice{}, api.TierCritical, api.LowComputeWindow, api.TierCritical},
		{"paid", engine.Choice{LowCompute: true}, api.TierCritical, api.LowComputeWindow, api.TierCritical},
		{"free", engine.Choice{}, api.TierCritical, 100_000, api.TierCritical},
		{"paid", engine.Choice{}, api.TierUnknown, 100_000, api.TierUnknown},
		{"paid", engine.Choice{LowCompute: true}, api.TierUnknown, api.LowComputeWindow, api.TierLow},
	} {
		a := ada
		a.Defined, a.Model = "paid", "paid"
		tt.choice.Model = tt.model
		w := enginetest.New(newStore(a), enginetest.Say(says("done")))
		w.Models = all
		w.Treasury.Tier = tt.tier
		w.Revisions = func(context.Context, string) (engine.Revisions, error) {
			return engine.Revisions{Known: true, Choice: tt.choice}, nil
		}
		run(t, w, command)
		ref, _, err := w.Store.Prompt(t.Context(), engine.ID(command.Run, 1))
		if err != nil || ref.Window != tt.window || ref.Tier != tt.asked {
			t.Errorf("%+v: got a window of %d and the tier %s, %v", tt, ref.Window, ref.Tier, err)
		}
		if got := w.Router.Requests()[0]; got.Tier != tt.asked || got.Model != tt.model {
			t.Errorf("%+v: asked %s in tier %s", tt, got.Model, got.Tier)
		}
	}
}

// TestLearned tests that the reported tokens correct the next estimate.
func TestLearned(t *testing.T) {
	t.Parallel()
	w := world(asks("", "look"), says("done"))
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		c := asks("again", "look")
		c.InputTokens = 1_000_000
		return c, nil
	}
	run(t, w, command)
	store := w.Store
	first, _, err := store.Prompt(t.Context(), "run1.1")
	if err != nil || first.Tokens != first.Counted {
		t.Errorf("the first prompt is corrected to %d of %d: %v", first.Tokens, first.Counted, err)
	}
	last, _, err := store.Prompt(t.Context(), "run1.5")
	if err != nil || last.Tokens < last.Counted*16/10 {
		t.Errorf("the fifth prompt is %d tokens of %d counted: %v", last.Tokens, last.Counted, err)
	}
}

// notes returns a world whose agent may write files. flush is the model's answer to a
// memory flush.
func notes(flush api.Completion) func() *enginetest.World {
	return func() *enginetest.World {
		a := ada
		a.Tools = append([]string{"write_file"}, ada.Tools...)
		a.Window = 16_000
		w := long(a.Window, 5_000)
		w.Store = newStore(a)
		script := w.Router.Script
		w.Router.Script = func(req api.Complete) (api.Completion, error) {
			if strings.HasSuffix(req.ID, ".flush") {
				return flush, nil
			}
			if strings.HasSuffix(req.ID, ".1") || strings.HasSuffix(req.ID, ".2") && len(req.Messages) > 0 && req.Messages[len(req.Messages)-1].Role == "user" {
				req.ID = "x.1" // the first turn of a run may have been a flush
			}
			return script(req)
		}
		w.Tools["write_file"] = engine.Tool{
			Name: "write_file", Effect: catalog.Idempotent, Description: "Write.", Schema: json.RawMessage(`{"type":"object"}`), Mutating: true,
			Check: func(json.RawMessage) error { return nil },
			Run: func(_ context.Context, c engine.Call) (engine.Output, error) {
				return engine.Output{Text: "wrote " + string(c.Args)}, nil
			},
		}
		return w
	}
}

func flushes(t *testing.T, w *enginetest.World) []api.Turn {
	t.Helper()
	turns, err := w.Store.History(t.Context(), command.Session, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(turns, func(t api.Turn) bool { return t.Finish != api.FinishFlush })
}

// TestCostCapInFlush tests that a run whose memory flush reaches its cost cap ends with
// it, and that the answer to the flush is not its response.
func TestCostCapInFlush(t *testing.T) {
	t.Parallel()
	dear := says("NO_REPLY")
	dear.Cost = api.Dollar
	w := notes(dear)()
	capped := 0
	for n := range 25 {
		cmd := nthRun(n + 1)
		cmd.CostCap = api.Dollar
		_, end := run(t, w, cmd)
		turns := flushes(t, w)
		flushed := slices.ContainsFunc(turns, func(t api.Turn) bool { return t.Run == cmd.Run })
		if flushed != (end.Reason == api.ReasonCostCap) || flushed && (end.Success || end.Response != "" || end.Cost < api.Dollar) {
			t.Errorf("run %d, flushed %t, ended %+v", n+1, flushed, end)
		}
		if flushed {
			capped++
		}
	}
	if capped == 0 {
		t.Error("no run flushed")
	}
}

// TestFlush tests that a memory flush precedes the first summary of a cycle once, is
// not streamed, and does not end the run.
func TestFlush(t *testing.T) {
	t.Parallel()
	quiet := says("NO_REPLY")
	busy := api.Completion{Model: "m", Text: "I note it.", Finish: "tool_calls", Cost: 610, ToolCalls: []api.ToolCall{
		{ID: "a", Name: "write_file", Arguments: `{"path":"MEMORY.md","content":"notes"}`},
		{ID: "b", Name: "write_file", Arguments: `{"path":"other.md","content":"no"}`},
		{ID: "c", Name: "fire", Arguments: `{}`},
	}}
	for name, answer := range map[string]api.Completion{"nothing to note": quiet, "notes": busy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := notes(answer)()
			runs(t, w, 1, 25)
			checkPrompts(t, w)
			done, silent := compactions(w), flushes(t, w)
			if len(done) == 0 || len(silent) == 0 || len(silent) > len(done)+1 {
				t.Fatalf("%d flushes and %d compactions", len(silent), len(done))
			}
			for _, f := range silent {
				if name == "notes" && (len(f.Calls) != 1 || f.Calls[0].Outcome != api.OutcomeOK) || name != "notes" && len(f.Calls) != 0 {
					t.Errorf("the flush %s called %+v", f.ID, f.Calls)
				}
			}
			if len(w.Effects.Of("fire")) != 0 {
				t.Error("a memory flush did something else")
			}
			for _, d := range w.Stream.Deltas() {
				if d == answer.Text {
					t.Errorf("people saw %q", d)
				}
			}
			for _, r := range w.Router.Requests() {
				flush := strings.HasSuffix(r.ID, ".flush")
				if flush && (len(r.Tools) != 1 || r.Tools[0].Name != "write_file" || !strings.Contains(r.Messages[len(r.Messages)-1].Content, "NO_REPLY")) {
					t.Errorf("%s offers %d tools and ends with %+v", r.ID, len(r.Tools), r.Messages[len(r.Messages)-1])
				}
				for _, m := range r.Messages {
					if m.Role == "assistant" && m.Content == answer.Text {
						t.Fatalf("%s sees a memory flush", r.ID)
					}
				}
			}
		})
	}
}

// TestFlushOfALongFile tests that the model reads all of MEMORY.md before it replaces the
// file, and that such turns replay without a difference.
func TestFlushOfALongFile(t *testing.T) {
	t.Parallel()
	const end = "the key is under the mat"
	w := notes(says("NO_REPLY"))()
	w.Sources = []engine.Source{source{layer: engine.Layer{Name: "memory", Text: strings.Repeat("a note ", 1_000) + end}}}
	for n := 1; len(flushes(t, w)) < 2; n++ {
		if n == 60 {
			t.Fatal("nothing was flushed")
		}
		runs(t, w, n, n)
		if _, err := w.Replay(t.Context(), command.Session, nthRun(n).Run); err != nil {
			t.Errorf("run %d: %v", n, err)
		}
	}
	for _, r := range w.Router.Requests() {
		flush := strings.HasSuffix(r.ID, ".flush")
		if whole := strings.Contains(fmt.Sprint(r.Messages), end); r.Task != api.TaskSummary && whole != flush {
			t.Errorf("%s has all of the file: %t, want it in a flush only", r.ID, whole)
		}
	}
	checkPromptsThatWere(t, w)
}

// TestFlushThatIsTooLarge tests that a turn whose memory flush the router refuses as too
// long is executed without the flush.
func TestFlushThatIsTooLarge(t *testing.T) {
	t.Parallel()
	w := notes(says("NO_REPLY"))()
	refused := ""
	script := w.Router.Script
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		if strings.HasSuffix(req.ID, ".flush") {
			refused = req.Turn
			return api.Completion{}, &api.Error{Code: api.Invalid, Reason: api.ReasonTooLong, Message: "it does not fit"}
		}
		return script(req)
	}
	for n := 1; refused == ""; n++ {
		if n == 60 {
			t.Fatal("nothing was flushed")
		}
		runs(t, w, n, n)
		if _, err := w.Replay(t.Context(), command.Session, nthRun(n).Run); err != nil {
			t.Errorf("run %d: %v", n, err)
		}
	}
	ref, _, err := w.Store.Prompt(t.Context(), refused)
	if err != nil || ref.Flush || ref.From == 0 {
		t.Errorf("the turn %s has the prompt %+v, %v; want one of a smaller window that is no flush", refused, ref, err)
	}
}

// TestFlushThatWasCut tests that an answer that was cut or withheld does not replace
// MEMORY.md.
func TestFlushThatWasCut(t *testing.T) {
	t.Parallel()
	write := api.ToolCall{ID: "a", Name: "write_file", Arguments: `{"path":"MEMORY.md","content":"half of the"}`}
	for finish, want := range map[string]int{api.FinishToolCalls: 2, api.FinishLength: 1, api.FinishFilter: 0} {
		t.Run(finish, func(t *testing.T) {
			t.Parallel()
			w := notes(api.Completion{Model: "m", Finish: finish, ToolCalls: []api.ToolCall{write, write}})()
			for n := 1; len(flushes(t, w)) == 0; n++ {
				if n == 60 {
					t.Fatal("nothing was flushed")
				}
				runs(t, w, n, n)
			}
			if f := flushes(t, w)[0]; len(f.Calls) != want {
				t.Errorf("after %s a flush made %d calls, want %d", finish, len(f.Calls), want)
			}
		})
	}
}

// TestFlushOfAnInput tests that a message resets the counters of loop detection also if a
// memory flush precedes its answer. Otherwise the turns of earlier runs would end the run.
func TestFlushOfAnInput(t *testing.T) {
	t.Parallel()
	w := notes(says("NO_REPLY"))()
	look := w.Tools["look"]
	look.Run = func(context.Context, engine.Call) (engine.Output, error) { return engine.Output{Text: "nothing"}, nil }
	w.Tools["look"] = look // the inputs fill the window, not the results
	store, _ := w.Store.(*memStore)
	first := func(t api.Turn) bool { return t.Number == 1 }
	for n := 1; !slices.ContainsFunc(flushes(t, w), first); n++ {
		if n == 60 {
			t.Fatal("no run began with a flush")
		}
		store.mu.Lock()
		store.sessions[command.Session].counters = api.Counters{Idle: 9, Repeated: 5, Pattern: "look"}
		store.mu.Unlock()
		cmd := nthRun(n)
		cmd.Content += strings.Repeat(" x y", 1250)
		if _, end := run(t, w, cmd); !end.Success || end.Response != "seen" {
			t.Fatalf("run %d ended with %q because of %q, want its answer", n, end.Response, end.Why)
		}
	}
}

// TestCrashInFlush tests a crash at each port call of a run with a memory flush.
func TestCrashInFlush(t *testing.T) {
	t.Parallel()
	build := notes(says("NO_REPLY"))
	probe, n := build(), 0
	for len(flushes(t, probe)) == 0 {
		if n++; n == 60 {
			t.Fatal("nothing was flushed")
		}
		runs(t, probe, n, n)
	}
	cmd := nthRun(n)
	calm := build()
	runs(t, calm, 1, n-1)
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, cmd); err != nil {
		t.Fatal(err)
	}
	want := outcomeOf(t, calm, cmd)
	for at := 1; at <= len(ports.Ports); at++ {
		for _, after := range []bool{false, true} {
			w := build()
			runs(t, w, 1, n-1)
			crash := enginetest.Crash{At: ports.Point(at), After: after}
			if err := w.Run(t.Context(), crash.Gate, cmd); err == nil {
				t.Fatal("the owner did not die")
			}
			untilOver(t, w, cmd)
			where := fmt.Sprintf("crash at %s, after=%t", ports.Ports[at-1], after)
			if diff := cmp.Diff(want.Turns, outcomeOf(t, w, cmd).Turns, timeless); diff != "" {
				t.Errorf("%s (-want +got):\n%s", where, diff)
			}
			for id, n := range w.Router.Paid() {
				if n != 1 {
					t.Errorf("%s: %s was paid %d times", where, id, n)
				}
			}
		}
	}
}

type source struct {
	layer engine.Layer
	err   error
}

func (s source) Layer(context.Context, engine.Agent) (engine.Layer, error) { return s.layer, s.err }

type memory struct {
	asked  []string
	budget int64
	err    error
}

func (m *memory) Recall(_ context.Context, agent, session, query string, budget int64) (string, error) {
	m.asked, m.budget = []string{agent, session, query}, budget
	return "the sky is blue <|im_start|>", m.err
}

// TestSources tests the order of the layers of sources, and that a failed source is
// left out.
func TestSources(t *testing.T) {
	t.Parallel()
	w := world(asks("", "look"), says("done"))
	mem := &memory{}
	w.Memory = mem
	w.Sources = []engine.Source{
		source{layer: engine.Layer{Name: "todo", Text: "feed the cat", Last: true}},
		source{layer: engine.Layer{Name: "skills", Text: "how to fish</system>"}},
		source{err: errors.New("no such file")},
		source{layer: engine.Layer{Name: "soul", Text: "calm"}},
		source{layer: engine.Layer{Name: "weather", Text: "rain"}},
		source{layer: engine.Layer{Name: "memory", Text: ""}},
	}
	run(t, w, command)
	checkPrompts(t, w)
	m := w.Router.Requests()[0].Messages
	system := m[0].Content
	at := -1
	for _, part := range []string{"You are Ada", "## Who you are", "[constitution", "## Soul\n[", "calm", "## Genesis", "Be useful.", "## Skills", "how to fish< /system>", "## Weather", "rain", "## How you work"} {
		next := strings.Index(system, part)
		if next <= at {
			t.Fatalf("%q is at %d, after %d:\n%s", part, next, at, system)
		}
		at = next
	}
	last := m[len(m)-1].Content
	if len(m) != 2 || m[1].Role != "user" || !strings.HasPrefix(last, command.Content+"\n\n"+api.NotesMark) {
		t.Errorf("what follows the system prompt is %+v", m[1:])
	}
	at = 0
	for _, part := range []string{"## Status\nTier: high.", "## Your first turn", "the sky is blue < |im_start|>", "feed the cat"} {
		next := strings.Index(last, part)
		if next <= at {
			t.Fatalf("%q is at %d, after %d:\n%s", part, next, at, last)
		}
		at = next
	}
	if strings.Contains(last, "MEMORY.md\n[") {
		t.Error("an empty layer has a title")
	}
	if diff := cmp.Diff([]string{"ada", "ada-main", command.Content}, mem.asked); diff != "" || mem.budget < 2_000 || mem.budget > 20_000 {
		t.Errorf("recalled with a budget of %d (-want +got):\n%s", mem.budget, diff)
	}
	second := w.Router.Requests()[1].Messages
	if end := second[len(second)-1]; end.Role != "tool" || !strings.HasPrefix(end.Content, "look done\n\n"+api.NotesMark) || strings.Contains(end.Content, "Your first turn") {
		t.Errorf("the second turn's prompt ends with %+v", end)
	}
	mem.err = errors.New("gone")
	next := command
	next.Run, next.Session = "run2", "ada-two"
	if _, end := run(t, w, next); !end.Success {
		t.Errorf("without memories the run ended %+v", end)
	}
	if third := w.Router.Requests()[2].Messages; strings.Contains(third[1].Content, "Your first turn") || strings.Contains(third[1].Content, "sky") {
		t.Errorf("the first turn of another session is told %+v", third[:2])
	}
}

// TestJoinedInputStaysInThePrompt tests that a message that joined a run is in the later
// prompts of the run also when its turn is shown as a line, and that these prompts can be
// rebuilt and replayed.
func TestJoinedInputStaysInThePrompt(t *testing.T) {
	t.Parallel()
	const words = "use the other key from now on"
	a := ada
	a.Window, a.MaxTurns = 16_000, 100
	w := enginetest.New(newStore(a), nil)
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		if req.Task == api.TaskSummary {
			return says("a summary"), nil
		}
		n := 0
		if _, err := fmt.Sscanf(req.ID, "run1.%d", &n); err != nil {
			return api.Completion{}, err
		}
		if n == 2 {
			w.Queue.Add(behind("steer", words, api.ModeSteer, api.Creator))
		}
		c := asks("I work.", []string{"look", "put"}[n%2])
		c.InputTokens = 0
		return c, nil
	}
	for _, name := range []string{"look", "put"} {
		tool := w.Tools[name]
		tool.Run = func(context.Context, engine.Call) (engine.Output, error) {
			return engine.Output{Text: strings.Repeat("x y ", 100)}, nil
		}
		w.Tools[name] = tool
	}
	turns, _ := run(t, w, command)
	listed := 0
	for _, tr := range turns {
		ref, shown, err := w.Store.Prompt(t.Context(), tr.ID)
		if err != nil {
			t.Fatal(err)
		}
		messages, _, err := engine.Rebuild(t.Context(), w.Store, tr.ID, command.Content, tr.Input)
		if err != nil {
			t.Errorf("turn %d: %v", tr.Number, err)
		}
		for i, s := range shown {
			if s.Input != words {
				continue
			}
			if i < ref.Lines {
				listed++
			}
			if !strings.Contains(fmt.Sprint(messages), words) {
				t.Errorf("the prompt of turn %d lacks what joined the run in turn %d, which is turn %d of %d lines", tr.Number, s.Number, i+1, ref.Lines)
			}
		}
	}
	if listed == 0 {
		t.Errorf("no prompt of %d turns has the turn as a line", len(turns))
	}
	if _, err := w.Replay(t.Context(), command.Session, command.Run); err != nil {
		t.Error(err)
	}
}

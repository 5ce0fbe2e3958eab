package engine_test

import (
	"slices"
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/replay"
)

// recording returns the recording of a turn, with its journal entries.
func recording(t *testing.T, w *enginetest.World, id string) engine.Recording {
	t.Helper()
	rec, err := w.Store.Recorded(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	steps, _, err := w.Journal.Tail(t.Context(), rec.Run, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.Run == rec.Turn.Run && s.Turn == rec.Turn.Number {
			rec.Steps = append(rec.Steps, s)
		}
	}
	return rec
}

// TestReplayDiffers tests that the replay of a modified recording reports the
// difference. Without it, the replays of the crash tests would prove nothing.
func TestReplayDiffers(t *testing.T) {
	t.Parallel()
	w := three(false)
	run(t, w, mailed)
	result := func(rec *engine.Recording, change func(*engine.Result)) {
		i := slices.IndexFunc(rec.Steps, func(s engine.Step) bool { return s.Result != nil })
		r := *rec.Steps[i].Result
		change(&r)
		rec.Steps[i].Result = &r
	}
	for name, tt := range map[string]struct {
		turn        string
		change      func(rec *engine.Recording)
		step, field string
	}{
		"what was said":        {"run1.2", func(rec *engine.Recording) { rec.Turn.Thinking = "all wrong" }, "turn", "thinking"},
		"what it cost":         {"run1.1", func(rec *engine.Recording) { rec.Turn.Cost++ }, "turn", "cost"},
		"who it was for":       {"run1.1", func(rec *engine.Recording) { rec.Turn.By = api.Principal{Kind: api.Creator} }, "turn", "by.address"},
		"a result in the turn": {"run1.1", func(rec *engine.Recording) { rec.Turn.Calls[1].Result = "paid nothing" }, "turn", "calls[1].result"},
		"a result in the journal": {"run1.1", func(rec *engine.Recording) {
			result(rec, func(r *engine.Result) { r.Text = "blind" })
		}, "turn", "calls[0].result"},
		"a decision":      {"run1.1", func(rec *engine.Recording) { result(rec, func(r *engine.Result) { r.Decision = "d0" }) }, "result", "result.decision"},
		"a step less":     {"run1.1", func(rec *engine.Recording) { rec.Steps = rec.Steps[:len(rec.Steps)-1] }, "call", ""},
		"a step more":     {"run1.1", func(rec *engine.Recording) { rec.Steps = append(rec.Steps, rec.Steps[len(rec.Steps)-1]) }, "turn", ""},
		"another order":   {"run1.1", func(rec *engine.Recording) { rec.Steps[2], rec.Steps[3] = rec.Steps[3], rec.Steps[2] }, "intent", ""},
		"what was before": {"run1.2", func(rec *engine.Recording) { rec.Before.Turns[0].Calls[0].Result = "looked elsewhere" }, "prompt", "counted"},
		"what was before, as long": {"run1.2", func(rec *engine.Recording) {
			rec.Before.Turns[0].Calls[0].Result = "done look"
		}, "prompt", "text"},
		"its tier": {"run1.1", func(rec *engine.Recording) { rec.Reference.Tier = api.TierLow }, "thought", "thought.prompt.tier"},
		"its counters": {"run1.1", func(rec *engine.Recording) {
			rec.After = &engine.Reference{Agent: "x", Counters: api.Counters{Idle: 9}}
		}, "counters", "idle"},
		"its end": {"run1.2", func(rec *engine.Recording) { rec.End.Why = "tired" }, "end", "why"},
		"an end":  {"run1.1", func(rec *engine.Recording) { rec.End = &engine.End{Why: "tired", Success: true} }, "end", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := recording(t, w, tt.turn)
			rec.Turn.Calls, rec.Before.Turns = slices.Clone(rec.Turn.Calls), slices.Clone(rec.Before.Turns)
			for i := range rec.Before.Turns {
				rec.Before.Turns[i].Calls = slices.Clone(rec.Before.Turns[i].Calls)
			}
			tt.change(&rec)
			got, err := replay.Replay(t.Context(), w.Store, rec, w.Tools)
			if err != nil {
				t.Fatal(err)
			}
			if d := got.Difference; d == nil || d.Step != tt.step || d.Field != tt.field {
				t.Errorf("the difference is %+v, want one in %s %s", d, tt.step, tt.field)
			}
		})
	}
}

// TestReplayOfASleeper tests the replay of a turn whose run has no sleep of its own in the
// store, because its agent was told to sleep during it.
func TestReplayOfASleeper(t *testing.T) {
	t.Parallel()
	w := alive(says("done"))
	run(t, w, command)
	rec := recording(t, w, engine.ID(command.Run, 1))
	if !rec.End.Alarm || rec.End.Sleep == 0 {
		t.Fatalf("the end is %+v, want one with an alarm", rec.End)
	}
	rec.End.Alarm, rec.End.Sleep, rec.End.Changed = false, 0, nil
	if got, err := replay.Replay(t.Context(), w.Store, rec, w.Tools); err != nil || got.Difference != nil {
		t.Errorf("the difference is %+v, %v, want none", got.Difference, err)
	}
}

// TestReplayIncomplete tests that the replay of an incomplete recording fails.
func TestReplayIncomplete(t *testing.T) {
	t.Parallel()
	w := three(false)
	run(t, w, mailed)
	for name, change := range map[string]func(rec *engine.Recording){
		"no journal":   func(rec *engine.Recording) { rec.Steps = nil },
		"no reference": func(rec *engine.Recording) { rec.Reference = engine.Reference{} },
		"no text":      func(rec *engine.Recording) { rec.Reference.Kit = "gone" },
	} {
		rec := recording(t, w, "run1.1")
		change(&rec)
		if got, err := replay.Replay(t.Context(), w.Store, rec, w.Tools); api.CodeOf(err) != api.NotFound {
			t.Errorf("%s: %+v, %v, want not_found", name, got, err)
		}
	}
}

// TestReplayOfTheReleaseBefore tests that the prompt of a turn that an older release
// hashed in another encoding is compared in that encoding.
func TestReplayOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	w := three(false)
	run(t, w, mailed)
	for name, found := range map[string]bool{"the same prompt": true, "another prompt": false} {
		rec := recording(t, w, "run1.2")
		at := slices.IndexFunc(w.Router.Requests(), func(r api.Complete) bool { return r.ID == "run1.2" })
		before, err := api.Encode(w.Router.Requests()[at].Messages)
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			before = append(before, ' ')
		}
		rec.Reference.Wire, rec.Reference.Hash = false, engine.Hash(string(before))
		for i, s := range rec.Steps {
			if s.Completion != nil {
				thought := *s.Completion
				thought.Prompt = &rec.Reference
				rec.Steps[i].Completion = &thought
			}
		}
		got, err := replay.Replay(t.Context(), w.Store, rec, w.Tools)
		if d := got.Difference; err != nil || (d == nil) != found || d != nil && d.Field != "text" {
			t.Errorf("%s: the difference is %+v, %v", name, d, err)
		}
	}
}

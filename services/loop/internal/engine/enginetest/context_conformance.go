package enginetest

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Stores is an engine.Store that is also a engine.ContextStore and whose turns can be read.
type Stores interface {
	engine.Store
	engine.ContextStore
	// History returns the session's latest turns, oldest first, at most n.
	History(ctx context.Context, session string, n int) ([]api.Turn, error)
	// Started records a run and wakes its agent, before the run's first turn is
	// persisted. It returns the changes, also if it is repeated for the same run, and
	// none if another run had made them. Errors: Denied if the agent is dead, Conflict
	// if the run is over.
	Started(ctx context.Context, cmd api.Run, input engine.Input, tier api.Tier, at int64) ([]api.AgentChanged, error)
}

// RunContext tests an implementation of engine.ContextStore. open is as for [RunStore].
func RunContext(t *testing.T, open func(t *testing.T) Stores) {
	each(t, open, map[string]func(*testing.T, Stores){
		"conversation of nothing": conversationOfNothing,
		"conversation":            conversation,
		"compactions":             compactions,
		"texts":                   texts,
		"prompts":                 prompts,
	})
}

// Reference returns the reference of turn n's prompt.
func Reference(n int) *engine.Reference {
	return &engine.Reference{
		Hash: "h", Layers: "l", Status: "s", First: 2, Last: int64(n), Lines: 1, Dropped: []int64{3}, Counted: int64(100 * n), Tokens: 90, Window: 1000,
	}
}

func said(cmd api.Run, n int) *engine.Record {
	rec := Record(cmd, n)
	rec.Prompt = Reference(n)
	return rec
}

func talk(t *testing.T, s Stores, session, id string, n int) engine.Conversation {
	t.Helper()
	c, err := s.Conversation(t.Context(), session, id, n)
	must(t, err)
	return c
}

func at(c engine.Conversation) []int64 {
	var out []int64
	for _, t := range c.Turns {
		out = append(out, t.Position)
	}
	return out
}

func conversationOfNothing(t *testing.T, s Stores) {
	c := talk(t, s, "ada-main", "r1.1", 10)
	if len(c.Turns) != 0 || len(c.Calls) != 0 || c.Paid != 0 || c.Last.Through != 0 || c.Last.Summary != "" {
		t.Errorf("of nothing: %+v", c)
	}
}

func conversation(t *testing.T, s Stores) {
	cmd, other := Command("ada", "r1"), Command("ada", "r2")
	other.Session = "ada-two"
	for n := 1; n <= 5; n++ {
		rec := said(cmd, n)
		switch n {
		case 2:
			rec.Prompt = nil // the turn failed before the model was called
		case 4:
			rec.Turn.InputTokens = 0 // the provider did not report tokens
		}
		must(t, s.Persist(t.Context(), rec, Input(cmd), nil))
		must(t, s.Persist(t.Context(), said(other, n), Input(other), nil))
	}
	c := talk(t, s, cmd.Session, "r1.6", 3)
	if diff := cmp.Diff([]int64{3, 4, 5}, at(c)); diff != "" {
		t.Errorf("positions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Record(cmd, 5).Turn, c.Turns[2].Turn); diff != "" {
		t.Errorf("the last turn (-want +got):\n%s", diff)
	}
	want := []engine.Reported{{Model: "m", Counted: 100, Reported: 100}, {Model: "m", Counted: 300, Reported: 100}, {Model: "m", Counted: 500, Reported: 100}}
	if diff := cmp.Diff(want, c.Calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func compactions(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	for n := 1; n <= 6; n++ {
		must(t, s.Persist(t.Context(), said(cmd, n), Input(cmd), nil))
	}
	first := engine.Compaction{Session: cmd.Session, Through: 2, Summary: "what was", Turn: "r1.6", Stage: 3, Cost: 7, Before: 900, After: 500, At: Start}
	must(t, s.Compact(t.Context(), first))
	again := first
	again.Summary, again.Cost = "otherwise", 9
	must(t, s.Compact(t.Context(), again)) // by another owner
	c := talk(t, s, cmd.Session, "r1.6", 10)
	if diff := cmp.Diff(first, c.Last); diff != "" || c.Paid != 7 {
		t.Errorf("paid %d (-want +got):\n%s", c.Paid, diff)
	}
	if diff := cmp.Diff([]int64{3, 4, 5, 6}, at(c)); diff != "" {
		t.Errorf("after a compaction (-want +got):\n%s", diff)
	}
	second := first
	second.Through, second.Summary, second.Cost, second.Stage = 5, "what was", 20, 4 // the same text
	must(t, s.Compact(t.Context(), second))
	c = talk(t, s, cmd.Session, "r1.6", 10)
	if diff := cmp.Diff(second, c.Last); diff != "" || c.Paid != 27 || len(c.Turns) != 1 {
		t.Errorf("paid %d, %d turns left (-want +got):\n%s", c.Paid, len(c.Turns), diff)
	}
	if c = talk(t, s, cmd.Session, "r1.7", 10); c.Paid != 0 {
		t.Errorf("the next turn pays %d again", c.Paid)
	}
	if c = talk(t, s, "ada-two", "r1.6", 10); c.Last.Through != 0 || c.Paid != 0 {
		t.Errorf("another session has %+v", c)
	}
	if got, err := s.Text(t.Context(), engine.Hash("what was")); err != nil || got != "what was" {
		t.Errorf("the summary is %q, %v", got, err)
	}
}

func texts(t *testing.T, s Stores) {
	all := map[string]string{engine.Hash("a"): "a", engine.Hash("b"): "b\n"}
	for range 2 {
		must(t, s.Keep(t.Context(), all))
	}
	for h, want := range all {
		if got, err := s.Text(t.Context(), h); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	_, err := s.Text(t.Context(), engine.Hash("c"))
	wantCode(t, "a text that is not there", err, api.NotFound)
}

func prompts(t *testing.T, s Stores) {
	cmd := Command("ada", "r1")
	for n := 1; n <= 4; n++ {
		must(t, s.Persist(t.Context(), said(cmd, n), Input(cmd), nil))
		must(t, s.Persist(t.Context(), said(cmd, n), Input(cmd), nil)) // idempotent
	}
	ref, turns, err := s.Prompt(t.Context(), "r1.4")
	must(t, err)
	if diff := cmp.Diff(*Reference(4), ref, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("reference (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{2, 3, 4}, at(engine.Conversation{Turns: turns})); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	_, _, err = s.Prompt(t.Context(), "r1.9")
	wantCode(t, "the prompt of a turn that is not there", err, api.NotFound)
}

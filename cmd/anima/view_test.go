package main

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// shown passes events and pieces to a viewer and returns its output. In play, a string is
// a piece of turn r.1 of the previous release, ~text one that discards, ! a broken
// connection, and a number the sequence up to which events were printed.
func shown(t *testing.T, stored string, play ...any) string {
	t.Helper()
	var out strings.Builder
	v := (&app{}).viewer(&out)
	v.turn = func(id string) (api.Turn, error) {
		if stored == "" {
			return api.Turn{}, api.Errorf(api.NotFound, "no such turn")
		}
		return api.Turn{ID: id, Thinking: stored}, nil
	}
	for _, p := range play {
		switch p := p.(type) {
		case string:
			if p == "!" {
				v.interrupted()
				continue
			}
			text, again := strings.CutPrefix(p, "~")
			v.piece(liveOf(t, api.StreamDelta{Run: "r", Turn: "r.1", Content: text, Discard: again}))
		case int:
			v.eventsShown(uint64(p))
		case api.StreamDelta, api.Thinking:
			v.piece(liveOf(t, p))
		case api.Message:
			data, err := api.Encode(p)
			if err == nil {
				err = v.event(event{name: p.Subject().Name, run: "r", data: data})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return out.String()
}

// liveOf encodes and decodes a live message.
func liveOf(t *testing.T, m any) live {
	t.Helper()
	data, err := api.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	l, err := liveDelta(data)
	if _, thinking := m.(api.Thinking); thinking {
		l, err = liveThinking(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestViewerShowsPiecesFirst checks that the pieces of a completion are printed before
// the events of its turn.
func TestViewerShowsPiecesFirst(t *testing.T) {
	t.Parallel()
	begin := api.LoopStart{Run: "r"}
	think := func(turn string, after uint64) api.Thinking { return api.Thinking{Run: "r", Turn: turn, After: after} }
	say := func(turn string, after uint64, text string) api.StreamDelta {
		return api.StreamDelta{Run: "r", Turn: turn, Content: text, After: after}
	}
	anew := say("r.1", 3, "")
	anew.Discard = true
	execute1, execute2 := api.LoopExecute{Turn: "r.1"}, api.LoopExecute{Turn: "r.2"}
	start, end := api.ToolStart{Turn: "r.1", ToolName: "exec"}, api.ToolEnd{Turn: "r.1", ToolName: "exec", Outcome: "ok", Result: "3"}
	persist1, persist2 := api.LoopPersist{Turn: "r.1"}, api.LoopPersist{Turn: "r.2"}
	over := api.LoopEnd{Success: true, Response: "whole", Turns: 2}
	const called, tail = "  → exec null\n  ← exec ok: 3 (0s)\n", "  (2 turns, $0.00, 0s)\n"
	for name, c := range map[string]struct {
		stored string
		play   []any
		want   string
	}{
		"two turns": {
			"", []any{
				begin, 1, think("r.1", 1), say("r.1", 1, "I"), say("r.1", 1, " look."), execute1, 2, start, 3, end, 4,
				think("r.2", 4), say("r.2", 4, "who"), say("r.2", 4, "le"), persist1, execute2, 5, persist2, over, 6,
			}, "I look.\n" + called + "whole\n" + tail,
		},
		"the events lag": {
			"", []any{
				think("r.1", 1), say("r.1", 1, "I look."), begin, 1, execute1, think("r.2", 4), say("r.2", 4, "wh"), 2, start, 3, end,
				say("r.2", 4, "ole"), 4, persist1, execute2, 5, over, 6,
			}, "I look.\n" + called + "whole\n" + tail,
		},
		"the pieces lag": {
			"",
			[]any{begin, 1, execute1, 2, say("r.1", 1, "I look."), start, 3, end, 4, persist1, execute2, 5, say("r.2", 4, "whole"), over, 6},
			"I look.\n" + called + "whole\n" + tail,
		},
		"a piece of a turn that is over": {
			"",
			[]any{begin, 1, say("r.1", 1, "I look."), execute1, 2, start, 3, end, 4, think("r.2", 4), say("r.1", 1, "late"), say("r.2", 4, "whole"), over, 6},
			"I look.\n" + called + "whole\n" + tail,
		},
		"words of the turn before are lost": {
			"whole",
			[]any{begin, 1, say("r.1", 1, "wh"), start, 3, end, 4, say("r.2", 4, "wh"), persist1, execute2, 5, persist2, over, 6},
			"wh\n" + called + "wh\n  (pieces of the previous turn's text were lost; its whole text is)\nwhole\nole\n" + tail,
		},
		"no word of it came": {
			"whole", []any{begin, 1, think("r.1", 1), persist1, over, 6}, "whole\n" + tail,
		},
		"another owner asks again": {
			"",
			[]any{begin, 1, say("r.1", 1, "zero"), 3, think("r.1", 3), anew, say("r.1", 3, "whole"), execute1, 4, over, 5},
			"zero\n  (the model call is repeated, the text above is void)\nwhole\n" + tail,
		},
		"the connection broke": {
			"", []any{begin, 1, say("r.1", 1, "who"), "!", say("r.1", 1, "le"), execute1, 2, over, 3}, "who\nle\n" + tail,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := shown(t, c.stored, c.play...); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestViewer(t *testing.T) {
	t.Parallel()
	execute, start, persist := api.LoopExecute{Turn: "r.1"}, api.ToolStart{Turn: "r.1", ToolName: "exec", Arguments: []byte(`{"a":1}`)}, api.LoopPersist{Turn: "r.1"}
	end := api.LoopEnd{Success: true, Response: "one two", Turns: 1}
	const tail = "  (1 turns, $0.00, 0s)\n"
	for name, c := range map[string]struct {
		stored string
		play   []any
		want   string
	}{
		"as it comes":               {"", []any{execute, "one", " two", persist, end}, "one two\n" + tail},
		"before its turn begins":    {"", []any{"one", " two", execute, persist, end}, "one two\n" + tail},
		"nothing came":              {"", []any{execute, persist, end}, "one two\n" + tail},
		"the end is lost":           {"", []any{execute, "one", persist, end}, "one two\n" + tail},
		"the middle is lost":        {"", []any{execute, "o", " two", persist, end}, "o two\n  (pieces of the text were lost; the whole text is)\none two\n" + tail},
		"a turn of the past":        {"one two", []any{execute, start, persist, end}, "one two\n  → exec {\"a\":1}\n" + tail},
		"the call is made again":    {"", []any{execute, "zero", "~one", " two", end}, "zero\n  (the model call is repeated, the text above is void)\none two\n" + tail},
		"again before any word":     {"", []any{execute, "~one two", end}, "one two\n" + tail},
		"the connection broke":      {"", []any{execute, "one", "!", "one", " two", end}, "one\n  (the model call is repeated, the text above is void)\none two\n" + tail},
		"broke, and nothing more":   {"", []any{execute, "one", "!", end}, "one\n two\n" + tail},
		"words after the tool":      {"", []any{execute, start, "late", end}, "  → exec {\"a\":1}\n  (pieces of the text were lost; the whole text is)\none two\n" + tail},
		"what steers a terminal":    {"", []any{execute, "one\x1b two", api.LoopEnd{Response: "one\x1b two", Turns: 1}}, "one\uFFFD two\n" + tail},
		"another run took it in":    {"", []any{api.LoopEnd{Outcome: api.OutcomeMerged, Into: "x"}}, ""},
		"a result of several lines": {"", []any{api.ToolEnd{ToolName: "exec", Outcome: "ok", Result: "a\nb\n", Duration: 7}}, "  ← exec ok (7ms)\n      a\n      b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := shown(t, c.stored, c.play...); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
	note := api.StreamDelta{Turn: "r.1", Note: "the provider asks to wait 3 s"}
	var out strings.Builder
	v := (&app{}).viewer(&out)
	v.execute("r.1", 1, api.Turn{})
	v.piece(liveOf(t, note))
	note.Discard = true
	v.piece(liveOf(t, api.StreamDelta{Turn: "r.1", Content: "ab"}))
	v.piece(liveOf(t, note))
	if got, want := out.String(), "  (the provider asks to wait 3 s)\nab\n  (the model call is repeated, the text above is void: the provider asks to wait 3 s)\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

package main

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// shown plays events and pieces to a viewer and returns what it writes. A string is
// a piece of turn r.1, ~text one that discards, ! a broken connection.
func shown(t *testing.T, stored string, play ...any) string {
	t.Helper()
	var out strings.Builder
	v := newViewer(&out, false)
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
			v.piece(api.StreamDelta{Run: "r", Turn: "r.1", Content: text, Discard: again})
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
		"the middle is lost":        {"", []any{execute, "o", " two", persist, end}, "o two\n  (words were lost on the way; the whole text is)\none two\n" + tail},
		"a turn of the past":        {"one two", []any{execute, start, persist, end}, "one two\n  → exec {\"a\":1}\n" + tail},
		"the call is made again":    {"", []any{execute, "zero", "~one", " two", end}, "zero\n  (the answer begins anew, the words above do not count)\none two\n" + tail},
		"again before any word":     {"", []any{execute, "~one two", end}, "one two\n" + tail},
		"the connection broke":      {"", []any{execute, "one", "!", "one", " two", end}, "one\n  (the answer begins anew, the words above do not count)\none two\n" + tail},
		"broke, and nothing more":   {"", []any{execute, "one", "!", end}, "one\n two\n" + tail},
		"words after the tool":      {"", []any{execute, start, "late", end}, "  → exec {\"a\":1}\n  (words were lost on the way; the whole text is)\none two\n" + tail},
		"what steers a terminal":    {"", []any{execute, "one\x1b two", api.LoopEnd{Response: "one\x1b two", Turns: 1}}, "one\uFFFD two\n" + tail},
		"another run took it in":    {"", []any{api.LoopEnd{Fate: api.FateMerged, Into: "x"}}, ""},
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
	v := newViewer(&out, false)
	v.execute("r.1", api.Turn{})
	v.piece(note)
	note.Discard = true
	v.piece(api.StreamDelta{Turn: "r.1", Content: "ab"})
	v.piece(note)
	if got, want := out.String(), "  (the provider asks to wait 3 s)\nab\n  (the answer begins anew, the words above do not count: the provider asks to wait 3 s)\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

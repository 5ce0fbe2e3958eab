package transcript_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/transcript"
)

// at returns a time of the test's transcripts, in Unix microseconds.
func at(second int64) int64 { return (1_790_000_000 + second) * 1_000_000 }

func stamp(micros int64) string {
	return time.UnixMicro(micros).UTC().Format("2006-01-02T15:04:05.000Z")
}

func said(role, content string, second int64) string {
	return fmt.Sprintf(`{"role":%q,"content":%q,"timestamp":%q}`, role, content, stamp(at(second)))
}

func called(content string, second int64, calls ...string) string {
	return fmt.Sprintf(`{"role":"assistant","content":%q,"tool_calls":[%s],"timestamp":%q}`, content, strings.Join(calls, ","), stamp(at(second)))
}

func call(id, name, args string) string {
	return fmt.Sprintf(`{"id":%q,"name":%q,"arguments":%q}`, id, name, args)
}

func result(id, content string, second int64) string {
	return fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%q,"timestamp":%q}`, id, content, stamp(at(second)))
}

func TestRepairKeepsWhatIsWhole(t *testing.T) {
	t.Parallel()
	got := transcript.Repair([]string{
		said("user", "count", 1),
		called("I count.", 2, call("c0", "exec", `{"command":"wc"}`), call("c0", "look", `{}`)),
		result("c0", "7", 3), result("c0", "", 3),
		"", // the end of a file
		called("", 4, call("c1", "look", `{}`)), result("c1", "seen", 5),
		said("assistant", "Seven.", 6),
		said("user", "one", 7), said("user", "two", 7),
		said("assistant", "Three.", 8) + " \r",
	}, 1, at(1))
	want := transcript.Repaired{
		Turns: []api.Turn{
			{Input: "count", Thinking: "I count.", Calls: []api.CallState{
				{ID: "c0", Tool: "exec", Arguments: json.RawMessage(`{"command":"wc"}`), Result: "7"},
				{ID: "c0", Tool: "look", Arguments: json.RawMessage(`{}`)},
			}, StartedAt: at(1), EndedAt: at(3)},
			{Calls: []api.CallState{{ID: "c1", Tool: "look", Arguments: json.RawMessage(`{}`), Result: "seen"}}, StartedAt: at(4), EndedAt: at(5)},
			{Thinking: "Seven.", StartedAt: at(6), EndedAt: at(6)},
			{Input: "one", StartedAt: at(7), EndedAt: at(7)},
			{Input: "two", Thinking: "Three.", StartedAt: at(7), EndedAt: at(8)},
		},
		Kept: 10, Users: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRepairCuts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lines []string
		kept  int
		want  []string
	}{
		"nothing":           {nil, 0, nil},
		"not JSON":          {[]string{"oops", said("user", "hi", 1), `{"role":`}, 1, []string{"7 not JSON", "9 not JSON"}},
		"not a message":     {[]string{`[1]`, `{"role":"user","content":7}`}, 0, []string{"7 not a message", "8 not a message"}},
		"unknown role":      {[]string{said("system", "obey", 1), said("User", "hi", 1), said("", "hi", 1)}, 0, []string{`7 unknown role "system"`, `8 unknown role "User"`, `9 unknown role ""`}},
		"no time":           {[]string{`{"role":"user","content":"hi"}`, `{"role":"user","content":"hi","timestamp":"yesterday"}`}, 0, []string{`7 its timestamp ""`, `8 its timestamp "yesterday"`}},
		"time goes back":    {[]string{said("user", "a", 5), said("user", "b", 4), said("user", "c", 5)}, 2, []string{"8 it is older"}},
		"before the last":   {[]string{said("user", "a", 0), said("user", "b", 1)}, 1, []string{"7 it is older"}},
		"says nothing":      {[]string{said("user", " ", 1), said("assistant", "", 1)}, 0, []string{"7 the message is empty", "8 the message has no text and no call"}},
		"orphan result":     {[]string{result("c0", "7", 1), said("user", "a", 1), result("c0", "7", 1)}, 1, []string{"7 a result without a call", "9 a result without a call"}},
		"second result":     {[]string{called("", 1, call("c0", "x", "{}")), result("c0", "7", 1), result("c0", "8", 1)}, 2, []string{`9 call "c0" has a result already`}},
		"result comes late": {[]string{called("I.", 1, call("c0", "x", "{}")), said("assistant", "am", 1), result("c0", "7", 1)}, 2, []string{`7 call "c0" of x has no result`, "9 a result without a call"}},
		"call alone":        {[]string{said("user", "a", 1), called("", 1, call("c0", "x", "{}"))}, 1, []string{`8 call "c0" of x has no result`}},
		"one of two calls":  {[]string{called("", 1, call("c0", "x", "{}"), call("c1", "y", "{}")), result("c1", "7", 1)}, 2, []string{`7 call "c0" of x has no result`}},
		"faulty calls": {
			[]string{called("I.", 1, call("", "x", "{}"), call("c1", "", "{}"), call("c2", "x", "{")), result("c2", "7", 1)},
			1,
			[]string{"7 call 0 has no id", `7 call "c1" names no tool`, `7 the arguments of call "c2" are not JSON`, "8 a result without a call"},
		},
		"too many calls": {
			[]string{called("I.", 1, strings.Split(strings.Repeat(call("c", "x", "{}")+";", 257), ";")[:257]...)},
			1, append([]string{`7 call "c" is one more than the 256`}, strings.Split(strings.Repeat(`7 call "c" of x has no result;`, 256), ";")[:256]...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := transcript.Repair(tt.lines, 7, at(1))
			if got.Kept != tt.kept {
				t.Errorf("%d lines kept, want %d: %+v", got.Kept, tt.kept, got.Turns)
			}
			if len(got.Cuts) != len(tt.want) {
				t.Fatalf("cut %+v, want %q", got.Cuts, tt.want)
			}
			for i, c := range got.Cuts {
				if text := fmt.Sprintf("%d %s", c.Line, c.Reason); !strings.HasPrefix(text, tt.want[i]) || c.Text != tt.lines[c.Line-7] {
					t.Errorf("cut %d is %q of %q, want %q", i, text, c.Text, tt.want[i])
				}
			}
		})
	}
}

// written returns turns in the form in which they are exported.
func written(t testing.TB, turns []api.Turn) []string {
	t.Helper()
	var out []string
	add := func(l api.TranscriptLine, at int64) {
		l.Timestamp = stamp(at)
		data, err := api.Encode(l)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(data))
	}
	for _, turn := range turns {
		if turn.Input != "" {
			add(api.TranscriptLine{Role: "user", Content: turn.Input}, turn.StartedAt)
		}
		if turn.Thinking == "" && len(turn.Calls) == 0 {
			continue
		}
		m := api.TranscriptLine{Role: "assistant", Content: turn.Thinking}
		for _, c := range turn.Calls {
			m.ToolCalls = append(m.ToolCalls, api.ToolCall{ID: c.ID, Name: c.Tool, Arguments: string(c.Arguments)})
		}
		add(m, turn.EndedAt)
		for _, c := range turn.Calls {
			add(api.TranscriptLine{Role: "tool", ToolCallID: c.ID, Content: c.Result}, turn.EndedAt)
		}
	}
	return out
}

// FuzzRepair checks that the exported turns of a repaired transcript are read again
// without cuts or changes.
func FuzzRepair(f *testing.F) {
	f.Add(strings.Join([]string{said("user", "count", 1), called("I count.", 2, call("c0", "exec", `{}`)), result("c0", "7", 3), said("assistant", "Seven.", 6)}, "\n"))
	f.Add(strings.Join([]string{called("", 1, call("c0", "x", "{}"), call("c0", "y", "[1]")), result("c0", "\x00", 1), said("user", "\u2028", 1)}, "\n"))
	f.Add("{\"role\":\"user\",\"content\":\"\xff\",\"timestamp\":\"2026-11-21T08:00:00Z\"}\n{}\nnull\n[]")
	f.Add(`{"role":"user","content":"a","timestamp":"9999-12-31T23:59:59.999Z"}` + "\n" + `{"ROLE":"tool","timestamp":"0000-01-01T00:00:00Z"}`)
	f.Fuzz(func(t *testing.T, src string) {
		lines := strings.Split(src, "\n")
		once := transcript.Repair(lines, 1, 0)
		for _, c := range once.Cuts {
			if c.Reason == "" || c.Line < 1 || c.Line > len(lines) || lines[c.Line-1] != c.Text {
				t.Errorf("cut %+v is none of the lines", c)
			}
		}
		out := written(t, once.Turns)
		if len(out) != once.Kept {
			t.Errorf("%d lines kept, %d are written", once.Kept, len(out))
		}
		twice := transcript.Repair(out, 1, 0)
		if len(twice.Cuts) > 0 {
			t.Errorf("of what was whole was cut: %+v", twice.Cuts)
		}
		if diff := cmp.Diff(out, written(t, twice.Turns)); diff != "" {
			t.Errorf("(-once +twice):\n%s", diff)
		}
	})
}

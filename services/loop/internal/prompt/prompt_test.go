package prompt

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/token"
)

// quarter counts a token for every four bytes, independent of the real tokenizer.
type quarter struct{}

func (quarter) Count(s string) int64 { return int64(len(s)+3) / 4 }

var calls = []api.CallState{
	{Index: 0, ID: "call_0", Tool: "look", Arguments: json.RawMessage(`{}`), Result: "seen", Outcome: api.OutcomeOK},
	{Index: 1, ID: "call_0", Tool: "exec", Arguments: json.RawMessage(`{"command":"x"}`), Result: "half", Error: "too slow", Outcome: api.OutcomeTimeout},
}

// TestRender checks that a turn without text has its calls and their results (V-18),
// with ids that no other turn has (V-40; both in docs/reference/context.md, Test vectors).
func TestRender(t *testing.T) {
	t.Parallel()
	got := render(api.Turn{ID: "r.1", Input: "do it", Calls: calls}, false)
	a, b := CallID(api.Turn{ID: "r.1"}, calls[0]), CallID(api.Turn{ID: "r.1"}, calls[1])
	want := []api.ChatMessage{
		{Role: "user", Content: "do it"},
		{Role: "assistant", ToolCalls: []api.ToolCall{{ID: a, Name: "look", Arguments: "{}"}, {ID: b, Name: "exec", Arguments: `{"command":"x"}`}}},
		{Role: "tool", ToolCallID: a, Content: "seen"},
		{Role: "tool", ToolCallID: b, Content: "too slow\nhalf"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := render(api.Turn{ID: "r.1", Input: "do it", Finish: "error"}, false); len(got) != 1 {
		t.Errorf("a turn that failed before a word is %+v, want its input alone", got)
	}
	if got := render(api.Turn{ID: "r.1", Input: "do it", Thinking: "NO_REPLY", Calls: calls, Finish: api.FinishFlush}, false); len(got) != 1 {
		t.Errorf("a memory flush is %+v, want what was asked meanwhile alone", got)
	}
	ids := map[string]bool{}
	for turn := range 30 {
		for _, c := range calls {
			id := CallID(api.Turn{ID: fmt.Sprintf("0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e.%d", turn)}, c)
			if ids[id] || len(id) > 40 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Errorf("call id %q is taken, too long or has letters that a provider refuses", id)
			}
			ids[id] = true
		}
	}
}

// TestBare checks that long texts of an old turn are replaced by a note, and short ones
// are not.
func TestBare(t *testing.T) {
	t.Parallel()
	long := api.CallState{Tool: "write_file", Arguments: json.RawMessage(`{"content":"` + strings.Repeat("x", 5000) + `","path":"a"}`), Result: strings.Repeat("y", 3000), Outcome: api.OutcomeOK}
	got := render(api.Turn{ID: "r.1", Calls: []api.CallState{calls[0], long}}, true)
	if got[1].Content != "seen" || got[0].ToolCalls[0].Arguments != "{}" {
		t.Errorf("what is short became %q", got[1].Content)
	}
	if !strings.Contains(got[2].Content, "result of 3000 bytes") || len(got[2].Content) > 150 {
		t.Errorf("the long result became %q", got[2].Content)
	}
	var args struct{ Content, Path string }
	if err := json.Unmarshal([]byte(got[0].ToolCalls[1].Arguments), &args); err != nil || args.Path != "a" || !strings.HasSuffix(args.Content, "… (5000 bytes)") || len(args.Content) > 240 {
		t.Errorf("the long arguments became %q: %v", got[0].ToolCalls[1].Arguments, err)
	}
	broken := api.CallState{Arguments: json.RawMessage(`"` + strings.Repeat("x", 500) + `"`)}
	if got := render(api.Turn{Calls: []api.CallState{broken}}, true); got[0].ToolCalls[0].Arguments != string(broken.Arguments) {
		t.Errorf("arguments that are no object became %.40q", got[0].ToolCalls[0].Arguments)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		turn api.Turn
		want string
	}{
		{api.Turn{Thinking: "I look\naround.", Calls: calls, StartedAt: 1_790_000_000_000_000}, "09-21 14:13 self: I look around. [look ok, exec FAILED]"},
		{api.Turn{Input: "do it", By: api.Principal{Kind: api.Creator}, StartedAt: 1_790_000_000_000_000}, "09-21 14:13 creator: do it"},
	} {
		if got := line(tt.turn); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	long := api.Turn{Thinking: strings.Repeat("語 ", 500)}
	for range 12 {
		long.Calls = append(long.Calls, api.CallState{Tool: strings.Repeat("tool", 30)})
	}
	if got := line(long); utf8.RuneCountInString(got) > maxLine || strings.Contains(got, "\n") {
		t.Errorf("%q has %d characters, want at most %d", got, utf8.RuneCountInString(got), maxLine)
	}
}

// history returns n turns of earlier runs, with results of size bytes.
func history(n, size int) []Turn {
	out := make([]Turn, n)
	for i := range out {
		run := fmt.Sprintf("r%d", i)
		out[i] = Turn{Position: int64(i + 1), Turn: api.Turn{
			ID: run + ".1", Run: run, Number: 1, Input: fmt.Sprintf("ask %d", i), By: api.Principal{Kind: api.Creator}, Thinking: fmt.Sprintf("say %d", i),
			Calls: []api.CallState{{Tool: fmt.Sprintf("tool%d", i), Arguments: json.RawMessage(`{}`), Result: strings.Repeat("x", size), Outcome: api.OutcomeOK}},
		}}
	}
	return out
}

// input returns a session of turns in a window without reserve.
func input(window int64, turns []Turn) Input {
	return Input{
		Window: window, Layers: []Layer{{Name: "rules", Text: "Be.", Must: true}}, Turns: turns, Run: "now", Asked: "go on", Words: "go on", Number: 1,
		Status: func(tool string) bool { return strings.HasPrefix(tool, "check") },
	}
}

// TestRepeated checks the vectors V-18 of the warning (docs/reference/context.md, Test
// vectors).
func TestRepeated(t *testing.T) {
	t.Parallel()
	turns := history(5, 1)
	if got := repeated(turns); got != nil {
		t.Errorf("five tools are said to be repeated: %v", got)
	}
	for i := range 3 {
		turns[i+2].Calls[0].Tool = "check_credits"
	}
	if got := repeated(turns); !slices.Equal(got, []string{"check_credits"}) {
		t.Errorf("three turns with the same tool: %v", got)
	}
	if got := repeated(turns[:4]); got != nil {
		t.Errorf("two turns with the same tool: %v", got)
	}
	p := Fit(quarter{}, input(100_000, turns))
	if last := p.Messages[len(p.Messages)-1]; last.Role != "user" || !strings.HasPrefix(last.Content, "go on\n\n"+api.NotesMark) || !strings.Contains(last.Content, "check_credits") {
		t.Errorf("the prompt ends with %+v, want what is asked and the warning", last)
	}
}

func positions(turns []Turn) string {
	var out []string
	for _, t := range turns {
		out = append(out, fmt.Sprint(t.Position))
	}
	return strings.Join(out, " ")
}

// TestShown checks that twenty turns and the run's own are shown in full, and forty
// before them as lines. Of the first ten of those, status-only turns are left out once
// others are lines. The first shown turn stays the same for ten turns.
func TestShown(t *testing.T) {
	t.Parallel()
	p := Fit(quarter{}, input(1_000_000, history(90, 10)))
	if len(p.Turns) != 20 || len(p.Lines) != 40 || p.Hidden != 30 {
		t.Errorf("%d whole, %d lines, %d hidden", len(p.Turns), len(p.Lines), p.Hidden)
	}
	for n := 90; n < 100; n++ {
		if p := Fit(quarter{}, input(1_000_000, history(n, 10))); p.Turns[0].Position != 71 || p.Lines[0].Position != 31 || len(p.Turns) != n-70 {
			t.Errorf("of %d turns %d are shown whole, from %d, and lines from %d", n, len(p.Turns), p.Turns[0].Position, p.Lines[0].Position)
		}
	}
	if text := earlier(p.Parts); !strings.Contains(text, "30 earlier turns are not shown") || strings.Count(text, "\n") != 41 {
		t.Errorf("told of earlier turns:\n%s", text)
	}
	turns := history(32, 10)[10:] // shown from the 11th on
	for i := range 6 {
		turns[i].Input, turns[i].Calls[0].Tool = "", "check_credits"
	}
	turns[1].Input = "how are my credits?" // a request of a user
	turns[2].Input, turns[2].By.Kind = "[wake] beat", api.HeartbeatKind
	turns[3].Calls = nil                                        // text only
	turns[4].Calls = append(turns[4].Calls, calls[1])           // also another tool
	turns[11].Calls[0].Tool, turns[11].Input = "check_usdc", "" // not among the first ten
	all := append(history(10, 10), turns...)
	if got := positions(Fit(quarter{}, input(1_000_000, all)).Turns); got != "12 14 15 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32" {
		t.Errorf("shown %s", got)
	}
	if got := positions(Fit(quarter{}, input(1_000_000, turns[:19])).Turns); got != "11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29" {
		t.Errorf("where nothing is a line %s are shown", got)
	}
	all[10].Run, all[10].Number = "now", 1 // the run's own turns are always shown
	in := input(1_000_000, all)
	in.Number = 2
	if got := positions(Fit(quarter{}, in).Turns); !strings.HasPrefix(got, "11 12 14 15 17 ") {
		t.Errorf("shown %s", got)
	}
}

// TestStageOf checks the vectors V-24 (docs/reference/context.md, Test vectors).
func TestStageOf(t *testing.T) {
	t.Parallel()
	for share, want := range map[int64]Stage{
		0: None, 7000: None, 7001: Results, 8000: Results, 8050: Lines, 8500: Lines, 8600: Summarise, 9000: Summarise, 9100: Checkpoint,
		9500: Checkpoint, 9510: Truncate, 20_000: Truncate,
	} {
		if got := StageOf(share, 10_000); got != want {
			t.Errorf("at %d.%02d %% the stage is %d, want %d", share/100, share%100, got, want)
		}
	}
	if got := StageOf(1, 0); got != Truncate {
		t.Errorf("without room the stage is %d", got)
	}
}

// TestMemoryBudget checks the vectors V-23 (docs/reference/memory.md, Test vectors). The
// vectors for 10,000 tokens apply where a quarter of them is more.
func TestMemoryBudget(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ left, utilisation, want int64 }{
		{100_000, 4000, 15_000},
		{100_000, 5000, 10_000},
		{100_000, 6000, 10_000},
		{100_000, 7000, 10_000},
		{100_000, 7010, 5_000},
		{100_000, 7500, 5_000},
		{10_000, 7500, 2_000},
		{500_000, 4000, 20_000},
		{4_000, 4000, 1_000},
		{-5, 4000, -1},
	} {
		if got := MemoryBudget(tt.left, tt.utilisation); got != tt.want {
			t.Errorf("of %d at %d: %d, want %d", tt.left, tt.utilisation, got, tt.want)
		}
	}
}

// TestUtilisation checks the vectors V-25, with ten tokens per message
// (docs/reference/context.md, Test vectors).
func TestUtilisation(t *testing.T) {
	t.Parallel()
	turns := history(3, 0)
	for i := range turns {
		turns[i].Calls, turns[i].Input, turns[i].Thinking = nil, "", strings.Repeat("x", 24) // plus 4 for the message
	}
	in := input(100, turns)
	in.Reserve, in.Asked, in.Words = 20, "", ""
	in.Layers[0].Text = strings.Repeat("s", 20) // plus 4 and 1
	if p := Fit(quarter{}, in); p.Tokens != 40 || p.Utilisation() != 5000 || p.Capacity != 80 {
		t.Errorf("%d tokens of %d, %d", p.Tokens, p.Capacity, p.Utilisation())
	}
	in.Window = 45
	p := Fit(quarter{}, in)
	if p.Fits() || p.Utilisation() != 10_000 || len(p.Turns) != 3 || len(p.Messages) != 4 {
		t.Errorf("over its capacity the prompt has %d turns of 3", len(p.Turns))
	}
	in.Ratio = 1500
	if p := Fit(quarter{}, in); p.Tokens != 60 || p.Counted != 40 {
		t.Errorf("corrected %d, counted %d", p.Tokens, p.Counted)
	}
}

// TestStages checks what each stage shows of twenty turns of 1,000 tokens.
func TestStages(t *testing.T) {
	t.Parallel()
	turns := history(20, 4000)
	raw := Fit(quarter{}, input(1_000_000, turns)).Raw
	for _, tt := range []struct {
		share             int64
		stage             Stage
		whole, bare, line int
	}{{6900, None, 20, 0, 0}, {7500, Results, 20, 15, 0}, {8300, Lines, 10, 5, 10}, {8700, Summarise, 10, 5, 10}, {9900, Truncate, 10, 5, 10}} {
		p := Fit(quarter{}, input(raw*10_000/tt.share, turns))
		if p.Stage != tt.stage || len(p.Turns) != tt.whole || p.Bare != tt.bare || len(p.Lines) != tt.line {
			t.Errorf("at %d: stage %d, %d whole, %d bare, %d lines", tt.share, p.Stage, len(p.Turns), p.Bare, len(p.Lines))
		}
		if tt.stage > None && p.Tokens >= p.Raw {
			t.Errorf("at %d: %d tokens of %d", tt.share, p.Tokens, p.Raw)
		}
	}
}

func TestCompact(t *testing.T) {
	t.Parallel()
	in := input(1000, history(23, 10))
	for stage, want := range map[Stage]string{Summarise: "1-5 6-10 220", Checkpoint: "1-18 1500", Truncate: "1-20 1500"} {
		p, ok := Compact(quarter{}, in, stage)
		var got []string
		for _, g := range p.Groups {
			got = append(got, fmt.Sprintf("%d-%d", g[0].Position, g[len(g)-1].Position))
		}
		if text := strings.Join(append(got, fmt.Sprint(p.Tokens)), " "); !ok || text != want {
			t.Errorf("stage %d: %s, want %s", stage, text, want)
		}
	}
	for stage, n := range map[Stage]int{Summarise: 14, Checkpoint: 5, Truncate: 3} {
		if _, ok := Compact(quarter{}, input(1000, history(n, 10)), stage); ok {
			t.Errorf("stage %d has something to summarise of %d turns", stage, n)
		}
	}
	in.Summary = strings.Repeat("long ", 2000)
	if p, _ := Compact(quarter{}, in, Summarise); len(p.Groups) != 1 || !p.Merge || p.Through() != 10 {
		t.Errorf("a summary that is too long is kept: %+v", p)
	}
}

// TestSkippedTurns checks that a summary has the number of the turns that were too old for
// the prompt, and no more tokens for it.
func TestSkippedTurns(t *testing.T) {
	t.Parallel()
	in := input(1000, history(100, 10)[30:])
	in.Through = 5
	for _, stage := range []Stage{Summarise, Truncate} {
		p, _ := Compact(quarter{}, in, stage)
		made := make([]string, len(p.Groups))
		for i := range made {
			made[i] = strings.Repeat("much ", 2_000)
		}
		got := Merged(quarter{}, p, "before", made)
		if n, most := (quarter{}).Count(got), p.Tokens*int64(len(made)); !strings.Contains(got, "[25 turns without a summary]\nmuch") || p.Merge && n > most {
			t.Errorf("stage %d: %d tokens, %.100q, want 25 turns without a summary and at most %d tokens", stage, n, got, most)
		}
		last := p
		last.Groups = p.Groups[len(p.Groups)-1:]
		want := fmt.Sprintf("[%d turns without a summary]", 25+max(0, len(last.Groups[0])-12))
		if got := Fallback(quarter{}, last, "before"); !strings.Contains(got, want) {
			t.Errorf("stage %d without a model: %.100q, want %s", stage, got, want)
		}
	}
	in.Through = 30
	if p, _ := Compact(quarter{}, in, Truncate); strings.Contains(Merged(quarter{}, p, "", []string{"much"}), "without") {
		t.Error("a summary of all turns says that some are missing")
	}
}

// TestRequest checks that the request for a summary contains every turn, as a line if
// there is no room for more, or the number of those that are left out, and the earlier
// summary.
func TestRequest(t *testing.T) {
	t.Parallel()
	turns := history(40, 4000)
	plan, _ := Compact(quarter{}, input(1000, turns), Checkpoint)
	left := 0
	for room := int64(300); room <= 4_000; room += 10 {
		m := Request(quarter{}, plan, "so far so good", plan.Groups[0], room)
		var n int64
		for _, msg := range m {
			n += Tokens(quarter{}, msg)
		}
		text := m[1].Content
		if n > room+messageTokens || !strings.Contains(text, "say 34") || !strings.Contains(text, "so far so good") {
			t.Errorf("%d tokens for %d: %.200s", n, room, text)
		}
		missing := 0
		for missing < len(plan.Groups[0]) && !strings.Contains(text, fmt.Sprintf("say %d ", missing)) && !strings.Contains(text, fmt.Sprintf("said: say %d\n", missing)) {
			missing++
		}
		if says := strings.Contains(text, fmt.Sprintf("[%d turns before these are left out]", missing)); says != (missing > 0) {
			t.Errorf("%d tokens lack the %d oldest turns, and the text does not have this number: %.300s", room, missing, text)
		}
		if missing > 0 {
			left++
		}
		if room >= 1_000 && missing > 0 {
			t.Errorf("%d tokens have room for a line of each turn, and lack the %d oldest", room, missing)
		}
	}
	if left == 0 {
		t.Error("every request had room for all turns")
	}
}

func TestFlushDue(t *testing.T) {
	t.Parallel()
	turns := history(10, 4000)
	raw := Fit(quarter{}, input(1_000_000, turns)).Raw
	for _, tt := range []struct {
		window, flush int64
		want          bool
	}{
		{raw + 3000, 3000, false},
		{raw + 3000, 3001, true},
		{raw * 100 / 85 * 2, 0, false},
		{raw * 100 / 86, 0, true}, // before the first summary, whatever the threshold
	} {
		in := input(tt.window, turns)
		in.Flush = tt.flush
		if got := Fit(quarter{}, in).FlushDue; got != tt.want {
			t.Errorf("window %d, flush %d, %d tokens: due %t", tt.window, tt.flush, raw, got)
		}
	}
	in := input(1_000_000, turns)
	in.Flushing, in.Todo = true, Layer{Text: "todo"}
	m := Fit(quarter{}, in).Messages
	if a, b := m[len(m)-2], m[len(m)-1]; a.Role != "tool" || b.Role != "user" || !strings.Contains(b.Content, "NO_REPLY") || strings.Contains(b.Content, "todo") {
		t.Errorf("a memory flush ends with %+v, %+v", a, b)
	}
}

// TestFlushHasAllNotes checks that the prompt of a memory flush contains all of the file
// that it replaces, whatever the budget of its layer and the window.
func TestFlushHasAllNotes(t *testing.T) {
	t.Parallel()
	const end = "the key is under the mat"
	in := input(8_000, history(3, 100))
	in.Layers = append(in.Layers, Layer{Name: "memory", Text: strings.Repeat("note ", 2_000) + end, Budget: 2_000, Last: true})
	if text := fmt.Sprint(Fit(quarter{}, in).Messages); strings.Contains(text, end) {
		t.Error("the notes of another turn are not cut to their budget")
	}
	in.Flushing = true
	p := Fit(quarter{}, in)
	if text := fmt.Sprint(p.Messages); !strings.Contains(text, end) || p.Tokens < 2_500 {
		t.Errorf("a flush of %d tokens lacks the end of the notes", p.Tokens)
	}
}

func TestLayers(t *testing.T) {
	t.Parallel()
	in := input(1_000_000, nil)
	in.Layers = []Layer{
		{Name: "rules", Text: strings.Repeat("r", 4000), Must: true},
		{Name: "soul", Text: strings.Repeat("s", 4000), Budget: 500},
		{Name: "empty"},
		{Name: "notes", Text: strings.Repeat("n", 4000)},
	}
	in.Todo, in.Memory = Layer{Text: "what is to be done"}, Layer{Text: "what is known"}
	p := Fit(quarter{}, in)
	var got []string
	for _, l := range p.Layers {
		got = append(got, fmt.Sprintf("%s %d", l.Name, (quarter{}).Count(l.Text)))
	}
	if len(got) != 3 || got[0] != "rules 1000" || got[2] != "notes 1000" || (quarter{}).Count(p.Layers[1].Text) > 500 || !strings.HasSuffix(p.Layers[1].Text, "more bytes were cut]") {
		t.Errorf("layers %v", got)
	}
	if last := p.Messages[len(p.Messages)-1]; last.Role != "user" || !strings.HasSuffix(last.Content, "what is known\n\nwhat is to be done\n\n"+noteEnd) {
		t.Errorf("memories or the todo list are not in their places: %+v", p.Messages)
	}
	in.Window = 5_000 // a tenth of fullLayers
	p = Fit(quarter{}, in)
	if n := (quarter{}).Count(p.Layers[1].Text); len(p.Layers[0].Text) != 4000 || n > 50 {
		t.Errorf("in a small window the rules have %d bytes, the soul %d tokens", len(p.Layers[0].Text), n)
	}
	in.Hard = true
	if p = Fit(quarter{}, in); len(p.Layers) != 1 || p.Memory != "" {
		t.Errorf("without all that can be left out there is %+v", p.Layers)
	}
}

// TestWithin checks that a text is cut to its budget in any script, with a note.
func TestWithin(t *testing.T) {
	t.Parallel()
	c := token.New()
	for _, text := range []string{strings.Repeat("word ", 4000), strings.Repeat("語", 4000), strings.Repeat("x", 40_000), strings.Repeat("\U0001F600", 3000)} {
		for _, budget := range []int64{0, 3, 10, 100, 1000} {
			got := within(c, text, budget)
			if c.Count(got) > budget+2 || !utf8.ValidString(got) || budget >= 100 && c.Count(got) < budget/2 {
				t.Errorf("%.8q… in %d tokens has %d", text, budget, c.Count(got))
			}
		}
	}
	if got := within(c, "short", 10); got != "short" {
		t.Errorf("what fits became %q", got)
	}
}

func TestTexts(t *testing.T) {
	t.Parallel()
	c := token.New()
	if n := c.Count(Manual); n > 2_500 || n < 500 {
		t.Errorf("the manual has %d tokens, at most 2,500 are meant for it", n)
	}
	id := Identity(Who{Name: "Ada", Address: "0xAB", Creator: "0xCD", Description: "Counts. <|im_start|>"})
	for _, want := range []string{"Ada", "0xAB", "0xCD", "Counts.", "[constitution", "no network"} {
		if !strings.Contains(id, want) {
			t.Errorf("the identity lacks %q:\n%s", want, id)
		}
	}
	if strings.Contains(id, "<|") {
		t.Error("a description contains the text of another author")
	}
	genesis, more := Genesis("Be useful.")
	if !strings.Contains(genesis, "Be useful.") || !strings.HasPrefix(genesis, "## Genesis\n[") || !strings.HasSuffix(genesis, "]") || more != "" {
		t.Errorf("the genesis is %q and %q", genesis, more)
	}
	genesis, more = Genesis(strings.Repeat("é", 2500))
	if strings.Count(genesis, "é") != MaxGenesis || strings.Count(more, "é") != 500 {
		t.Errorf("of 2,500 characters %d and %d are there", strings.Count(genesis, "é"), strings.Count(more, "é"))
	}
	if a, b := Genesis(" \u200b"); a != "" || b != "" {
		t.Errorf("of nothing came %q and %q", a, b)
	}
	at := int64(1_790_000_000_000_000)
	for _, tt := range []struct {
		s    State
		want string
	}{
		{State{Began: at}, "Tier: unknown. Credits: unknown. Model: chosen by the router. This run began at 2026-09-21T14:13:20Z."},
		{State{Tier: api.TierNormal, Funds: &api.Balance{Available: 1_239_999}, Model: "m", Began: at}, "Tier: normal. Credits: $1.23. Model: m."},
		{State{Tier: api.TierDead, Funds: &api.Balance{Available: -2_000_000}, Began: at}, "Tier: dead. Credits: -$2.00."},
	} {
		if got := Status(tt.s); !strings.Contains(got, tt.want) {
			t.Errorf("status %q, want %q", got, tt.want)
		}
	}
	if got := FromOutside("Skills", "theirs", "## Skills\n> fish"); got != "## Skills\n[theirs]\n> fish" {
		t.Errorf("a title of its own came out as %q", got)
	}
	if got := FromOutside("Soul", "yours", "a</system>b\u200b"); got != "## Soul\n[yours]\na< /system>b" {
		t.Errorf("from outside came %q", got)
	}
}

// anyTurns draws a session: turns of several runs, some of them of the current run.
func anyTurns(t *rapid.T) []Turn {
	n := rapid.IntRange(0, 70).Draw(t, "turns")
	own := rapid.IntRange(0, min(n, 25)).Draw(t, "own")
	first := rapid.Int64Range(1, 50).Draw(t, "first")
	out := make([]Turn, n)
	for i := range out {
		v := api.Turn{ID: fmt.Sprintf("r%d.1", i), Run: fmt.Sprintf("r%d", i), Number: 1, By: api.Principal{Kind: api.Creator}}
		if i >= n-own {
			v.Run, v.Number = "now", i-(n-own)+1
			v.ID = fmt.Sprintf("now.%d", v.Number)
		}
		if v.Number == 1 {
			v.Input = rapid.StringN(0, 50, 200).Draw(t, "input")
		}
		v.Thinking = rapid.StringN(0, 50, 400).Draw(t, "thinking")
		for j := range rapid.IntRange(0, 4).Draw(t, "calls") {
			v.Calls = append(v.Calls, api.CallState{
				Index: j, Tool: rapid.SampledFrom([]string{"look", "exec", "check_credits"}).Draw(t, "tool"), Arguments: json.RawMessage(`{}`),
				Result: strings.Repeat("x ", rapid.IntRange(0, 2000).Draw(t, "result")), Outcome: api.OutcomeOK,
			})
		}
		if rapid.IntRange(0, 20).Draw(t, "flush") == 0 {
			v.Finish = api.FinishFlush
		}
		out[i] = Turn{v, first + int64(i)}
	}
	return out
}

func anyInput(t *rapid.T) Input {
	in := input(rapid.Int64Range(100, 60_000).Draw(t, "window"), anyTurns(t))
	in.Reserve = rapid.Int64Range(0, in.Window/2).Draw(t, "reserve")
	in.Ratio = token.Ratio(rapid.Int64Range(500, 2000).Draw(t, "ratio"))
	for i := range rapid.IntRange(0, 5).Draw(t, "layers") {
		in.Layers = append(in.Layers, Layer{Name: fmt.Sprint(i), Text: strings.Repeat("layer ", rapid.IntRange(0, 3000).Draw(t, "layer")), Budget: rapid.Int64Range(0, 3000).Draw(t, "budget")})
	}
	in.Memory.Text, in.Todo.Text = rapid.StringN(0, 100, 400).Draw(t, "memory"), rapid.StringN(0, 100, 400).Draw(t, "todo")
	in.Summary = rapid.StringN(0, 100, 400).Draw(t, "summary")
	if len(in.Turns) > 0 {
		last := in.Turns[len(in.Turns)-1]
		if in.Number = 1; last.Run == "now" {
			in.Number = last.Number + 1
		}
		in.Through = rapid.Int64Range(0, in.Turns[0].Position-1).Draw(t, "through")
	}
	return in
}

// world makes random summaries and records the compactions.
type world struct {
	t       *rapid.T
	through int64
	raw     int64
	done    int
}

func (w *world) Summarise(in Input, plan Plan) (string, bool, error) {
	if rapid.IntRange(0, 3).Draw(w.t, "refused") == 0 {
		if plan.Stage == Summarise {
			return "", true, nil
		}
		return Fallback(quarter{}, plan, in.Summary), false, nil
	}
	var made []string
	for range plan.Groups {
		made = append(made, strings.Repeat("so it was. ", rapid.IntRange(0, 1000).Draw(w.t, "words")))
	}
	return Merged(quarter{}, plan, in.Summary, made), false, nil
}

func (w *world) Compacted(plan Plan, after Input, from, to Prompt) error {
	if after.Through <= w.through {
		w.t.Fatalf("a compaction up to %d after one up to %d", after.Through, w.through)
	}
	if to.Raw >= from.Raw || w.raw > 0 && to.Raw >= w.raw {
		w.t.Fatalf("a compaction of %d tokens to %d", from.Raw, to.Raw)
	}
	if len(after.Turns) < never {
		w.t.Fatalf("stage %d left %d turns", plan.Stage, len(after.Turns))
	}
	w.through, w.raw, w.done = after.Through, to.Raw, w.done+1
	return nil
}

// TestSqueeze checks for any session, window and budgets that the prompt fits or has no
// part left that may be cut, that each call has its result, that the order is kept, that
// the last three turns are shown in full, and that the same input makes the same bytes.
func TestSqueeze(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := anyInput(t)
		w := &world{t: t, through: in.Through}
		out, p, stage, err := Squeeze(quarter{}, in, Fit(quarter{}, in), w)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Fits() && (!out.Hard || p.Stage != Truncate || len(p.Layers) != 1 || len(p.Turns) > never || p.Memory != "") {
			t.Fatalf("%d tokens of %d, and more could be left out: stage %d, %d turns, %d layers", p.Tokens, p.Capacity, p.Stage, len(p.Turns), len(p.Layers))
		}
		if w.done > 0 && stage < Summarise {
			t.Fatalf("%d compactions in stage %d", w.done, stage)
		}
		paired(t, p.Messages)
		// In order, without duplicates.
		at := int64(0)
		for _, turn := range append(slices.Clone(p.Lines), p.Turns...) {
			if turn.Position <= at {
				t.Fatalf("turn %d after %d", turn.Position, at)
			}
			at = turn.Position
		}
		last := in.Turns[max(0, len(in.Turns)-never):]
		if got, want := positions(p.Turns[max(0, len(p.Turns)-len(last)):]), positions(last); got != want {
			t.Fatalf("the last turns are %s, want %s", got, want)
		}
		if p.Bare > len(p.Turns)-min(len(p.Turns), never) {
			t.Fatalf("%d of %d turns are bare", p.Bare, len(p.Turns))
		}
		var asked int
		for _, m := range p.Messages {
			if m.Role == "user" && strings.HasPrefix(m.Content, in.Asked) {
				asked++
			}
		}
		if in.Number > 1 && p.Asked == "" && !slices.ContainsFunc(p.Turns, func(t Turn) bool { return t.Run == "now" && t.Number == 1 }) {
			t.Fatal("the run's input is nowhere")
		}
		if again := Fit(quarter{}, out); cmp.Diff(p.Messages, again.Messages) != "" || p.Tokens != again.Tokens {
			t.Fatal("the same input makes another prompt")
		}
		// The count must agree with the messages.
		var n int64
		for _, m := range p.Messages {
			n += Tokens(quarter{}, m)
		}
		if slack := int64(2*len(p.Layers) + 10); n > p.Counted+slack || n < p.Counted-slack {
			t.Fatalf("counted %d tokens, the messages have %d", p.Counted, n)
		}
	})
}

type fataler interface {
	Fatalf(format string, args ...any)
}

// paired checks what every provider requires: each call has one result directly after it,
// with its own id.
func paired(t fataler, messages []api.ChatMessage) {
	var open []string
	for i, m := range messages {
		switch {
		case m.Role == "tool":
			if len(open) == 0 || open[0] != m.ToolCallID {
				t.Fatalf("message %d is a result of %q where %v are open", i, m.ToolCallID, open)
			}
			open = open[1:]
		case len(open) > 0:
			t.Fatalf("message %d of %s before the results of %v", i, m.Role, open)
		case m.Content == "" && len(m.ToolCalls) == 0:
			t.Fatalf("message %d of %s is empty", i, m.Role)
		}
		for _, c := range m.ToolCalls {
			open = append(open, c.ID)
		}
	}
	if len(open) > 0 {
		t.Fatalf("no results of %v", open)
	}
}

// FuzzFit checks that the prompt of any turn is sound.
func FuzzFit(f *testing.F) {
	f.Add("do it", "I look", "look", `{"a":"b"}`, "seen", int64(1000), 5)
	f.Add("", "", "\x00", "\xff", "[/INST]", int64(-5), 40)
	f.Fuzz(func(t *testing.T, asked, thinking, tool, arguments, result string, window int64, n int) {
		turns := make([]Turn, max(0, min(n, 64)))
		for i := range turns {
			turns[i] = Turn{Position: int64(i + 1), Turn: api.Turn{
				ID: fmt.Sprint(i), Run: fmt.Sprint(i), Number: 1, Input: asked, Thinking: thinking,
				Calls: []api.CallState{{Tool: tool, Arguments: json.RawMessage(arguments), Result: result}},
			}}
		}
		in := input(window%1_000_000, turns)
		in.Layers, in.Todo.Text, in.Memory.Text, in.Words = append(in.Layers, Layer{Text: FromOutside("T", "o", result)}), thinking, result, asked
		p := Fit(quarter{}, in)
		paired(t, p.Messages)
		if plan, ok := Compact(quarter{}, in, Truncate); ok {
			if text := Request(quarter{}, plan, thinking, plan.Groups[0], 500)[1].Content; !utf8.ValidString(thinking) && !utf8.ValidString(text) {
				return // a stored summary is valid UTF-8
			} else if !utf8.ValidString(text) && utf8.ValidString(thinking) {
				t.Errorf("the request for a summary is no text: %q", text)
			}
		}
		for _, l := range p.Lines {
			if s := line(l.Turn); utf8.RuneCountInString(s) > maxLine || !utf8.ValidString(s) || strings.Contains(s, "\n") {
				t.Errorf("line %q", s)
			}
		}
	})
}

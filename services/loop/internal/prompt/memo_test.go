package prompt

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/token"
)

// TestMemoOfTools checks that a memo counts the tools of the current prompt.
func TestMemoOfTools(t *testing.T) {
	t.Parallel()
	c, memo := token.New(), NewMemo()
	read := api.Tool{Name: "read_file", Description: "reads a file of your folder", Schema: []byte(`{"type":"object"}`)}
	write := api.Tool{Name: "write_file", Description: "writes a file of your folder, as a whole", Schema: []byte(`{"type":"object","properties":{}}`)}
	longer := read
	longer.Schema = []byte(`{"type":"object","properties":{"path":{"type":"string"}}}`)
	for _, tools := range [][]api.Tool{nil, {read}, {read, write}, {write, read}, {longer}, {read}, nil, {read, write}} {
		in := input(200_000, history(3, 200))
		in.Tools = tools
		want := Measure(c, in)
		in.Memo = memo
		if got := Measure(c, in); got.Counted != want.Counted {
			t.Errorf("%d tools: got %d tokens, want %d", len(tools), got.Counted, want.Counted)
		}
	}
}

// TestShownIsItsOwn checks that appending to the turns of an input, as a run does, does
// not change those of a prompt, and vice versa.
func TestShownIsItsOwn(t *testing.T) {
	t.Parallel()
	all := history(30, 10)
	in := input(200_000, append(make([]Turn, 0, 2*len(all)), all...))
	p := Measure(token.New(), in)
	other := Turn{Position: 1000}
	next := append(in.Turns, Turn{Position: 31})
	_, _ = append(p.Turns, other), append(p.Lines, other)
	if len(p.Turns) == 0 || p.Turns[len(p.Turns)-1].Position != 30 || next[30].Position != 31 {
		t.Errorf("the prompt ends with turn %d and the conversation with %d, want 30 and 31", p.Turns[len(p.Turns)-1].Position, next[30].Position)
	}
	for i, turn := range next[:30] {
		if turn.Position != all[i].Position {
			t.Errorf("turn %d of the conversation is %d, want %d", i, turn.Position, all[i].Position)
		}
	}
}

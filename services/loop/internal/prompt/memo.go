package prompt

import (
	"bytes"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// Memo remembers how the turns of one conversation are rendered: a stored turn never
// changes. A nil Memo remembers nothing. It must not be used by two goroutines at a time,
// and the messages that it gives must not be changed.
type Memo struct {
	turns map[memoKey]*rendered
	lines map[string]string // by turn
	tools []api.Tool        // that were offered last
	taken int64             // tokens of tools
}

type memoKey struct {
	turn string
	bare bool
}

// rendered is a turn as messages.
type rendered struct {
	messages []api.ChatMessage
	tokens   int64 // of them; 0: not counted yet
}

// maxMemo bounds what a Memo remembers: more turns than any prompt shows.
const maxMemo = 4 * Needed

// NewMemo returns an empty memo.
func NewMemo() *Memo { return &Memo{turns: map[memoKey]*rendered{}, lines: map[string]string{}} }

// render is [render], once for each turn.
func (m *Memo) render(t *api.Turn, bare bool) *rendered {
	if m == nil {
		return &rendered{messages: render(*t, bare)}
	}
	key := memoKey{t.ID, bare}
	r, ok := m.turns[key]
	if !ok {
		if len(m.turns) >= maxMemo {
			clear(m.turns)
		}
		r = &rendered{messages: render(*t, bare)}
		m.turns[key] = r
	}
	return r
}

// count is what a turn takes, as messages.
func (m *Memo) count(c Counter, t *api.Turn, bare bool) int64 {
	r := m.render(t, bare)
	if r.tokens == 0 {
		for _, message := range r.messages {
			r.tokens += Tokens(c, message)
		}
	}
	return r.tokens
}

// line is [line], once for each turn.
func (m *Memo) line(t *api.Turn) string {
	if m == nil {
		return line(*t)
	}
	l, ok := m.lines[t.ID]
	if !ok {
		if len(m.lines) >= maxMemo {
			clear(m.lines)
		}
		l = line(*t)
		m.lines[t.ID] = l
	}
	return l
}

// offered is what tools take. Those of a run are the same from turn to turn, and share
// their texts: comparing them costs less than looking their tokens up.
func (m *Memo) offered(c Counter, tools []api.Tool) int64 {
	if m.tools != nil && slices.EqualFunc(m.tools, tools, sameTool) {
		return m.taken
	}
	m.tools, m.taken = tools, 0
	for _, t := range tools {
		m.taken += toolTokens + c.Count(t.Name) + c.Count(t.Description) + c.Count(string(t.Schema))
	}
	return m.taken
}

func sameTool(a, b api.Tool) bool {
	return a.Name == b.Name && a.Description == b.Description && bytes.Equal(a.Schema, b.Schema)
}

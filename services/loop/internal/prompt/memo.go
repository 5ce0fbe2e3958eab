package prompt

import (
	"bytes"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// Memo caches the rendered turns of one conversation, which do not change. It is not safe for concurrent use, and the messages that it returns
// must not be changed.
type Memo struct {
	turns map[memoKey]*rendered
	lines map[string]string // by turn
	tools []api.Tool        // the tools of the last prompt
	taken int64             // tokens of tools
}

type memoKey struct {
	turn string
	bare bool
}

// rendered holds the messages of a turn.
type rendered struct {
	messages []api.ChatMessage
	tokens   int64 // of messages; 0: not counted yet
}

// maxMemo is the number of turns at which the cache is cleared, more than any prompt
// shows.
const maxMemo = 4 * Needed

// NewMemo returns an empty memo.
func NewMemo() *Memo { return &Memo{turns: map[memoKey]*rendered{}, lines: map[string]string{}} }

// render is [render] with a cache.
func (m *Memo) render(t *api.Turn, bare bool) *rendered {
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

// count returns the tokens of a turn's messages.
func (m *Memo) count(c Counter, t *api.Turn, bare bool) int64 {
	r := m.render(t, bare)
	if r.tokens == 0 {
		for _, message := range r.messages {
			r.tokens += Tokens(c, message)
		}
	}
	return r.tokens
}

// line is [line] with a cache.
func (m *Memo) line(t *api.Turn) string {
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

// offered returns the tokens of tools. The tools of a run are the same in each turn and
// share their texts, so comparing them costs less than counting.
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

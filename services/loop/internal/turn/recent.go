package turn

import (
	"sync"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// maxRecent bounds what an engine remembers of conversations, in bytes of their texts.
const maxRecent = 16 << 20

// recent are the conversations of sessions whose last turn this engine has persisted,
// as the session's next run needs them. What it gives it no longer has: it belongs to
// a run then, which gives it back at its end. The zero value is empty, and it is safe
// for concurrent use.
type recent struct {
	mu    sync.Mutex
	of    map[string]remembered // by session
	bytes int
}

type remembered struct {
	conversation Conversation
	after        standing
	bytes        int
}

// standing is how far a session has come: its last persisted turn, the journal's entry
// that the store knew with it, and the turn at which its conversation was begun anew.
// Every turn of the session changes one of them, an imported one too.
type standing struct {
	position int64
	journal  uint64
	reset    int64
}

// take returns the conversation if the session is where it was left, nil otherwise.
// Whoever asks must know that nobody has begun a turn since, who could have left a
// compaction: then the journal has an entry of it.
func (r *recent) take(session string, at standing) *Conversation {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.of[session]
	if !ok {
		return nil
	}
	r.drop(session)
	if m.after != at {
		return nil
	}
	return &m.conversation
}

// keep remembers the conversation of a run that is over, nil for none. It forgets
// others, any, when all are too much.
func (r *recent) keep(session string, at standing, c *Conversation) {
	if c == nil {
		return
	}
	if n := len(c.Turns) - prompt.Needed; n > 0 {
		// What is left out must not be held, and the next run's turns need not move the rest.
		const more = 4
		c.Turns = append(make([]prompt.Turn, 0, prompt.Needed+more), c.Turns[n:]...)
	}
	m := remembered{*c, at, c.bytes()}
	if m.bytes > maxRecent {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(session)
	for other := range r.of {
		if r.bytes+m.bytes <= maxRecent {
			break
		}
		r.drop(other)
	}
	if r.of == nil {
		r.of = map[string]remembered{}
	}
	r.of[session], r.bytes = m, r.bytes+m.bytes
}

func (r *recent) drop(session string) {
	r.bytes -= r.of[session].bytes
	delete(r.of, session)
}

// bytes are about what a conversation takes.
func (c *Conversation) bytes() int {
	const turn = 1000 // its fields, and what of its texts is not counted
	n := len(c.Last.Summary)
	for _, t := range c.Turns {
		n += turn + len(t.Input) + len(t.Thinking)
		for _, call := range t.Calls {
			n += turn/4 + len(call.Arguments) + len(call.Result) + len(call.Error)
		}
	}
	if c.memo != nil { // the same once more, as messages
		n *= 2
	}
	return n
}

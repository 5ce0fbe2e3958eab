package engine

import (
	"sync"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// maxRecent limits the cached conversations of an engine, in bytes of their texts.
const maxRecent = 16 << 20

// conversationCache caches the conversations of sessions whose last turn this engine has
// persisted, for the session's next run. take removes the conversation that it returns:
// the run owns it until keep adds it again. The zero value is empty. It is safe for
// concurrent use.
type conversationCache struct {
	mu    sync.Mutex
	of    map[string]cachedConversation // by session id
	bytes int
}

type cachedConversation struct {
	conversation Conversation
	after        position
	bytes        int
}

// position is the version of a session: the position of its last persisted turn, the
// sequence of the journal entry stored with it, and the turn at which the conversation
// was reset. Every turn of the session changes one of them, including an imported one.
type position struct {
	position int64
	journal  uint64
	reset    int64
}

// take returns the conversation if the session's version is unchanged, nil otherwise.
// The caller must ensure that no turn has begun since, because such a turn may have
// stored a compaction; then the journal has an entry of it.
func (r *conversationCache) take(session string, at position) *Conversation {
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

// keep caches the conversation of a run that is over; nil is ignored. It evicts
// arbitrary other conversations if the size exceeds maxRecent.
func (r *conversationCache) keep(session string, at position, c *Conversation) {
	if c == nil {
		return
	}
	if n := len(c.Turns) - prompt.Needed; n > 0 {
		// The new slice releases the turns that are left out, and has room for the next
		// run's.
		const more = 4
		c.Turns = append(make([]prompt.Turn, 0, prompt.Needed+more), c.Turns[n:]...)
	}
	m := cachedConversation{*c, at, c.bytes()}
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
		r.of = map[string]cachedConversation{}
	}
	r.of[session], r.bytes = m, r.bytes+m.bytes
}

func (r *conversationCache) drop(session string) {
	r.bytes -= r.of[session].bytes
	delete(r.of, session)
}

// bytes estimates the memory that a conversation uses.
func (c *Conversation) bytes() int {
	const turn = 1000 // fields, and texts that are not counted
	n := len(c.Last.Summary)
	for _, t := range c.Turns {
		n += turn + len(t.Input) + len(t.Thinking)
		for _, call := range t.Calls {
			n += turn/4 + len(call.Arguments) + len(call.Result) + len(call.Error)
		}
	}
	if c.memo != nil { // the memo holds the texts again, as messages
		n *= 2
	}
	return n
}

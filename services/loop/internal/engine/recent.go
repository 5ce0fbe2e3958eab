package engine

import (
	"sync"

	"github.com/anima-run/anima/pkg/api"

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

// Conversation holds the part of a session that a prompt is built from.
type Conversation struct {
	Last  Compaction    // zero: none
	Turns []prompt.Turn // after Last, oldest first, without gaps
	Calls []Reported    // of the session's latest 20 turns, oldest first
	Paid  api.Micros    // for compactions made before the model call of this turn

	memo *prompt.Memo // of the turns; nil: not built yet
}

// Reported holds the size of a prompt in tokens, as counted locally and as reported by
// the provider.
type Reported struct {
	Model             string
	Counted, Reported int64
}

// with returns the conversation extended by a persisted turn, or nil if the store must
// be read again. The caller must not use c afterwards: both share their slices, so that
// a turn does not copy the turns before it. Slices read from c before the call do not
// change.
func (c *Conversation) with(rec Record) *Conversation {
	if rec.Position == 0 || len(c.Turns) > 0 && c.Turns[len(c.Turns)-1].Position+1 != rec.Position {
		return nil
	}
	next := Conversation{Last: c.Last, Calls: c.Calls, memo: c.memo}
	next.Turns = append(c.Turns, prompt.Turn{Turn: rec.Turn, Position: rec.Position})
	if rec.Prompt != nil && rec.Turn.InputTokens > 0 {
		next.Calls = append(c.Calls, Reported{rec.Turn.Model, rec.Prompt.Counted, rec.Turn.InputTokens})
		next.Calls = next.Calls[max(0, len(next.Calls)-20):]
	}
	return &next
}

// LastModel returns the model that answered last, "" if there is none.
func (c *Conversation) LastModel() string {
	model, _ := learned(c.Calls)
	return model
}

package api

// What an agent remembers, for people (spec-core-4). Loop answers; what changes a
// memory is a tool call of the agent, or the creator that has it forgotten.
//
// History: v1 2026-11 first version.

// MemoryTier is a kind of memory.
type MemoryTier string

// The tiers.
const (
	MemoryWorking      MemoryTier = "working"
	MemoryEpisodic     MemoryTier = "episodic"
	MemorySemantic     MemoryTier = "semantic"
	MemoryProcedural   MemoryTier = "procedural"
	MemoryRelationship MemoryTier = "relationship"
)

// ListMemory answers [Memories]: of each tier the weightiest or the latest, as the
// agent would see them first; with a query those that fit it, the best first.
// Nothing counts as shown. Errors: NotFound (agent), Invalid (tier, limit).
type ListMemory struct {
	Agent   string     `json:"agent"`
	Tier    MemoryTier `json:"tier,omitempty"`    // "": every tier
	Query   string     `json:"query,omitempty"`   // working memory is not searched
	History bool       `json:"history,omitempty"` // instead, what facts were before and what was claimed against them
	Limit   int        `json:"limit,omitempty"`   // a tier; 0: 20, at most 1000
}

// Subject of the message.
func (ListMemory) Subject() Subject { return request(Loop, "list_memory") }

// Memories is what an agent remembers.
type Memories struct {
	Memories []Memory `json:"memories"`
	Page              // without Next: ask for a larger Limit
}

// ForgetMemory removes one memory; a fact is kept in the history as forgotten.
// Answers [Forgotten]. Asking again changes nothing. Errors: NotFound (agent),
// Invalid (tier).
type ForgetMemory struct {
	Agent string     `json:"agent"`
	Tier  MemoryTier `json:"tier"`
	ID    string     `json:"id"`
}

// Subject of the message.
func (ForgetMemory) Subject() Subject { return request(Loop, "forget_memory") }

// Forgotten answers [ForgetMemory].
type Forgotten struct {
	Agent string     `json:"agent"`
	Tier  MemoryTier `json:"tier"`
	ID    string     `json:"id"`
	There bool       `json:"there"` // it was there until now
}

// Memory is one entry.
type Memory struct {
	Tier    MemoryTier `json:"tier"`
	ID      string     `json:"id"` // what forget takes
	Session string     `json:"session,omitempty"`
	Kind    string     `json:"kind,omitempty"`  // of a note, an outcome, a category, a relationship
	Title   string     `json:"title,omitempty"` // key or name
	Text    string     `json:"text"`            // content, summary, value, description or notes
	Extra   string     `json:"extra,omitempty"` // steps as a JSON list, detail or source
	Weight  int64      `json:"weightPerMille"`  // priority, importance, confidence, reliability or trust: 0 to 1000
	Count   int64      `json:"count,omitempty"` // interactions, uses, or versions of a fact
	Shown   int64      `json:"shown,omitempty"` // how often it was in a prompt
	By      Principal  `json:"by"`              // who is behind it
	At      int64      `json:"at"`              // when it was last seen to be so
	Ended   int64      `json:"ended,omitempty"` // of history
	Fate    string     `json:"fate,omitempty"`  // of history: superseded, refused, forgotten, expired, crowded_out
}

// RecallMemory answers [Recalled]: what a turn on the session with this input would
// be given; nothing counts as shown. Errors: NotFound (agent), Invalid (budget).
type RecallMemory struct {
	Agent   string `json:"agent"`
	Session string `json:"session,omitempty"` // "": its main session
	Query   string `json:"query,omitempty"`
	Budget  int64  `json:"budget,omitempty"` // tokens; 0: 10,000, at most 100,000
}

// Subject of the message.
func (RecallMemory) Subject() Subject { return request(Loop, "recall_memory") }

// Recalled is a part of a prompt.
type Recalled struct {
	Text   string `json:"text"` // "" when there is nothing
	Tokens int64  `json:"tokens"`
}

// ListSouls answers [Souls], the latest first. Errors: NotFound (agent), Invalid
// (limit, After).
type ListSouls struct {
	Agent string `json:"agent"`
	After string `json:"after,omitempty"` // Next of the page before
	Limit int    `json:"limit,omitempty"` // 0: 10, at most 1000
}

// Subject of the message.
func (ListSouls) Subject() Subject { return request(Loop, "list_souls") }

// Souls are versions of a soul.
type Souls struct {
	Souls []SoulVersion `json:"souls"`
	Page
}

// SoulVersion is a SOUL.md as it once was.
type SoulVersion struct {
	Version int64  `json:"version"`
	Content string `json:"content"`
	Hash    string `json:"hash"`   // SHA-256 of the content, in hex
	Source  string `json:"source"` // agent, human, system, genesis or reflection
	Reason  string `json:"reason,omitempty"`
	At      int64  `json:"at"`
}

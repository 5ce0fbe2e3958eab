package api

// Requests about the memories of an agent, for people (docs/reference/memory.md, Tiers).
// Loop answers them. A memory changes only by a tool call of the agent, or by a
// [ForgetMemory] of the creator.
//
// History: v1 2026-11 first version.

// MemoryTier is a kind of memory.
type MemoryTier string

// The kinds of memory.
const (
	MemoryWorking      MemoryTier = "working"
	MemoryEpisodic     MemoryTier = "episodic"
	MemorySemantic     MemoryTier = "semantic"
	MemoryProcedural   MemoryTier = "procedural"
	MemoryRelationship MemoryTier = "relationship"
)

// ListMemory requests [Memories]. Without a query, these are the memories of each tier
// with the largest weight, or the latest, in the order of recall; with a query, the
// ones that match it best. Listing a memory does not increase its Shown. Errors:
// NotFound (agent), Invalid (tier, limit).
type ListMemory struct {
	Agent   string     `json:"agent"`
	Tier    MemoryTier `json:"tier,omitempty"`    // "": every tier
	Query   string     `json:"query,omitempty"`   // working memory is not searched
	History bool       `json:"history,omitempty"` // return earlier versions of facts and refused claims instead
	Limit   int        `json:"limit,omitempty"`   // per tier, at most 1000; 0: 20
}

// Memories is a list of memories.
type Memories struct {
	Memories []Memory `json:"memories"`
	Page              // without Next: only a larger Limit returns more
}

// ForgetMemory removes one memory; a fact remains in the history as forgotten. The
// answer is [Forgotten]. It is idempotent. Errors: NotFound (agent), Invalid (tier).
type ForgetMemory struct {
	Agent string     `json:"agent"`
	Tier  MemoryTier `json:"tier"`
	ID    string     `json:"id"`
}

// Forgotten is the answer to [ForgetMemory].
type Forgotten struct {
	Agent string     `json:"agent"`
	Tier  MemoryTier `json:"tier"`
	ID    string     `json:"id"`
	There bool       `json:"there"` // the memory existed
}

// Memory is one memory of an agent.
type Memory struct {
	Tier    MemoryTier `json:"tier"`
	ID      string     `json:"id"` // the id for [ForgetMemory]
	Session string     `json:"session,omitempty"`
	Kind    string     `json:"kind,omitempty"`  // of a note, an outcome, a category, a relationship
	Title   string     `json:"title,omitempty"` // key or name
	Text    string     `json:"text"`            // content, summary, value, description or notes
	Extra   string     `json:"extra,omitempty"` // steps as a JSON list, detail or source
	Weight  int64      `json:"weightPerMille"`  // priority, importance, confidence, reliability or trust: 0 to 1000
	Count   int64      `json:"count,omitempty"` // interactions, uses, or versions of a fact
	Shown   int64      `json:"shown,omitempty"` // number of prompts that contained it
	By      Principal  `json:"by"`              // principal that it came from
	At      int64      `json:"at"`              // time of its last confirmation
	Ended   int64      `json:"ended,omitempty"` // in the history
	Outcome string     `json:"fate,omitempty"`  // in the history: superseded, refused, forgotten, expired, crowded_out
}

// RecallMemory requests [Recalled]: the memories that a turn with this input would have
// in its prompt. It does not increase their Shown. Errors: NotFound (agent), Invalid
// (budget).
type RecallMemory struct {
	Agent   string `json:"agent"`
	Session string `json:"session,omitempty"` // "": its main session
	Query   string `json:"query,omitempty"`
	Budget  int64  `json:"budget,omitempty"` // in tokens, at most 100,000; 0: 10,000
}

// Recalled is the part of a prompt with memories.
type Recalled struct {
	Text   string `json:"text"` // "" if no memory was selected
	Tokens int64  `json:"tokens"`
}

// ListSouls requests [Souls], the latest first. Errors: NotFound (agent), Invalid
// (limit, After).
type ListSouls struct {
	Agent string `json:"agent"`
	After string `json:"after,omitempty"` // Next of the previous page
	Limit int    `json:"limit,omitempty"` // 0: 10, at most 1000
}

// Souls is a list of versions of a soul.
type Souls struct {
	Souls []SoulVersion `json:"souls"`
	Page
}

// SoulVersion is one version of a SOUL.md.
type SoulVersion struct {
	Version int64  `json:"version"`
	Content string `json:"content"`
	Hash    string `json:"hash"`   // SHA-256 of the content, in hex
	Source  string `json:"source"` // agent, human, system, genesis or reflection
	Reason  string `json:"reason,omitempty"`
	At      int64  `json:"at"`
}

// The implementations of [Message] by the types of this file.

func (ListMemory) Subject() Subject   { return request(Loop, "list_memory") }
func (ForgetMemory) Subject() Subject { return request(Loop, "forget_memory") }
func (RecallMemory) Subject() Subject { return request(Loop, "recall_memory") }
func (ListSouls) Subject() Subject    { return request(Loop, "list_souls") }

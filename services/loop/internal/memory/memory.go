// Package memory holds the rules of an agent's memories: which memories a turn makes, how
// they are recalled within a token budget, and how they are rendered for a prompt. It has
// no SQL and calls no service.
//
// Memories are data. Each has its origin, the principal that it comes from. A memory of a
// peer or of external origin is rendered with a mark, and every text is quoted so that it
// cannot end its quotation. The package must not act on the content of memories, and must
// not decide whether an agent may store one: policy decides that before.
package memory

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Tier is a kind of memory (docs/reference/memory.md, Tiers).
type Tier string

// The five tiers.
const (
	Working      Tier = "working"
	Episodic     Tier = "episodic"
	Semantic     Tier = "semantic"
	Procedural   Tier = "procedural"
	Relationship Tier = "relationship"
)

// Tiers returns the tiers in the order of their budgets; what a tier does not use is
// added to the next.
func Tiers() []Tier { return []Tier{Working, Episodic, Semantic, Procedural, Relationship} }

// Limits of the memories that are stored (docs/reference/memory.md, Tiers).
const (
	MaxWorking  = 20                  // notes of a session, by priority and then age
	MaxFacts    = 500                 // facts of an agent, by confidence and then age
	MaxVersions = 20                  // versions of a fact in its history
	EpisodeLife = 30 * 24 * time.Hour // after it an episode is deleted
)

// Note is an entry of working memory.
type Note struct {
	ID, Session string
	Kind        string // goal, observation, plan, reflection, task, decision, note or summary
	Content     string
	Priority    float64 // 0 to 1
	Turn        string
	By          api.Principal
	Expires     int64 // 0: never
	At          int64
}

// Episode is an event.
type Episode struct {
	ID, Session, Type, Summary, Detail string
	Outcome                            string // success, failure, partial or neutral
	Class                              Class
	Importance                         float64 // 0 to 1
	By                                 api.Principal
	At                                 int64
}

// Fact is a piece of knowledge, identified by Category and Key. A new value supersedes
// the previous one, which moves to the fact's history.
type Fact struct {
	Category, Key, Value string
	Confidence           float64 // 0 to 1
	Source               string
	Turn                 string
	By                   api.Principal
	Expires              int64 // 0: never
	At                   int64
	Counts               bool // the value ends with the number of observations; see [Counted]
}

// ID returns the id of a fact within its agent.
func (f Fact) ID() string { return f.Category + "/" + f.Key }

// Procedure is a list of steps for a task.
type Procedure struct {
	Name, Description string
	Steps             []string
	By                api.Principal
	At                int64
}

// Relation is a change of an agent's relation to another agent or person. An empty Name
// or Notes and a nil Trust leave the stored value.
type Relation struct {
	Address, Name, Kind, Notes string
	Trust                      *float64 // 0 to 1; nil: 0.5 for a new one
	Met                        bool     // counts as an interaction
	By                         api.Principal
	At                         int64
}

// Outcome is the result of an attempt to store a fact.
type Outcome string

// The outcomes. See [MayChange] for when a fact is refused.
const (
	FactNew        Outcome = "new"
	FactSame       Outcome = "same"        // the value is stored already; the fact was verified
	FactSuperseded Outcome = "superseded"  // the previous value moved to the history
	FactRefused    Outcome = "refused"     // it may not replace the stored value and was recorded in the history
	FactCrowdedOut Outcome = "crowded_out" // [MaxFacts] others are kept before it; it was recorded in the history
)

// Entry is a memory of any tier as it is recalled and rendered.
type Entry struct {
	Tier    Tier
	ID      string // unique within its agent and tier
	Session string
	Kind    string  // kind of a note, outcome, category or relationship
	Title   string  // key or name; "" in a tier without one
	Text    string  // content, summary, value, description or notes
	Extra   string  // steps of a procedure as a JSON list, detail of an episode or source of a fact
	Weight  float64 // priority, importance, confidence, reliability or trust: 0 to 1
	Count   int64   // interactions or uses; versions of a fact
	By      api.Principal
	At      int64 // when it was last observed
	Ended   int64 // of a history entry: when it was replaced
	Outcome string

	Accessed int64   // how often it was shown
	Shown    int64   // when Accessed was last increased
	Doc      int64   // id in the index; 0: it is not indexed
	Rank     float64 // relevance to the query, 1 for the best; 0: no match
	Words    string  // its words in the index, each followed by a space; of a search only
	Share    float64 // share of the query's terms that it contains; of a search only
}

// Store stores memories. It is safe for concurrent use. at is the current time in Unix
// microseconds; memories that have expired by then are not returned. The methods that
// change memories are idempotent.
type Store interface {
	// Search returns the entries of tiers in whose text any of the phrases occurs, in the
	// order of tiers and, within a tier, by rank. It searches the latest texts only, see
	// [MaxFrequency]. A phrase is a sequence of words, see [Words]; without phrases there
	// is no result.
	Search(ctx context.Context, agent string, tiers []Tier, phrases []string, at int64) ([]Entry, error)
	// Latest returns at most limit entries of a tier: of working memory the session's
	// notes and all goals, by priority; of episodes the latest of other sessions; of the
	// other tiers those with the highest weight, of equals the latest. Session "" selects
	// all sessions.
	Latest(ctx context.Context, agent, session string, tier Tier, at int64, limit int) ([]Entry, error)
	// Entry returns the memory of a tier with an id, nil if there is none.
	Entry(ctx context.Context, agent string, tier Tier, id string, at int64) (*Entry, error)
	// Unasked returns the entries that a prompt of a session has without a query. session
	// must not be "". They are those of Latest: [MaxLatest] of each tier, and twice
	// [MaxWorking] notes and as many goals of other sessions. Episodes are those of other
	// sessions among the latest, since the session's own are in its prompt. held are the
	// tiers that are not empty, in the order of [Tiers].
	Unasked(ctx context.Context, agent, session string, at int64) (all []Entry, held []Tier, err error)
	// Touch increases the count of entries that were shown, at most once in [ShownFor].
	Touch(ctx context.Context, docs []int64, at int64) error
	Remember(ctx context.Context, agent string, f Fact) (Outcome, error)
	// AddNote adds a note to working memory, unless its id exists.
	AddNote(ctx context.Context, agent string, n Note) error
	// ReachGoal replaces a goal by an episode. Errors: NotFound; Denied, see [MayChange].
	ReachGoal(ctx context.Context, agent, goal, outcome string, by api.Principal, at int64) error
	// SaveProcedure stores a procedure. Errors: Denied, see [MayChange].
	SaveProcedure(ctx context.Context, agent string, p Procedure) error
	NoteRelation(ctx context.Context, agent string, r Relation) error
	// Forget deletes a memory and reports whether it existed. Errors: Denied, see
	// [MayChange].
	Forget(ctx context.Context, agent string, tier Tier, id string, by api.Principal, at int64) (bool, error)
}

// MayChange reports whether a turn of by may replace or delete a memory with origin
// standing: a peer or an external origin never changes a memory of the agent, its creator
// or heartbeat.
func MayChange(by, standing api.Principal) bool { return ours(by) || !ours(standing) }

// TrustAfter returns the trust after r was noted, given the trust before. Only turns of
// the agent, its creator or heartbeat may raise it, so a peer cannot raise its own.
func (r Relation) TrustAfter(standing float64) float64 {
	if r.Trust == nil {
		return standing
	}
	to := min(max(*r.Trust, 0), 1)
	if !ours(r.By) {
		to = min(to, standing)
	}
	return to
}

// Package memory is what an agent remembers: the rules by which turns become
// memories, by which memories are found again within a budget, and how they are
// shown to a model. It has no SQL and speaks to no service.
//
// Memories are data. Each one keeps who is behind it (its origin); what came from
// a peer or from outside is shown with a mark, and every text is quoted so that
// none can end its quotation. It must not act on what it remembers, nor judge
// whether an agent may remember something: that is policy's, before.
package memory

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Tier is a kind of memory (spec-core-4 §7.1).
type Tier string

// The five tiers.
const (
	Working      Tier = "working"
	Episodic     Tier = "episodic"
	Semantic     Tier = "semantic"
	Procedural   Tier = "procedural"
	Relationship Tier = "relationship"
)

// Tiers in the order of their budgets, which roll over from one to the next.
func Tiers() []Tier { return []Tier{Working, Episodic, Semantic, Procedural, Relationship} }

// Limits of what is kept (spec-core-4 §7.1).
const (
	MaxWorking  = 20                  // a session, by priority and then age
	MaxFacts    = 500                 // an agent, by confidence and then age
	MaxVersions = 20                  // of a fact, in its history
	EpisodeLife = 30 * 24 * time.Hour // an episode is kept
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

// Episode is something that happened.
type Episode struct {
	ID, Session, Type, Summary, Detail string
	Outcome                            string // success, failure, partial or neutral
	Class                              Class
	Importance                         float64 // 0 to 1
	By                                 api.Principal
	At                                 int64
}

// Fact is something known. Category and Key name it; a new value supersedes the
// one before, which stays in its history.
type Fact struct {
	Category, Key, Value string
	Confidence           float64 // 0 to 1
	Source               string
	Turn                 string
	By                   api.Principal
	Expires              int64 // 0: never
	At                   int64
	Counts               bool // the value ends in how often it was seen; see [Counted]
}

// ID names a fact among its agent's.
func (f Fact) ID() string { return f.Category + "/" + f.Key }

// Procedure is how something is done.
type Procedure struct {
	Name, Description string
	Steps             []string
	By                api.Principal
	At                int64
}

// Relation is another agent or person as the agent knows it. Name, Notes and
// Trust that are not given leave what is known.
type Relation struct {
	Address, Name, Kind, Notes string
	Trust                      *float64 // 0 to 1; nil: 0.5 for a new one
	Met                        bool     // counts as an interaction
	By                         api.Principal
	At                         int64
}

// Fate is what became of a fact that was to be remembered.
type Fate string

// The fates of a fact. One of less authority than what stands never replaces it:
// a stranger must not be able to rewrite what the creator said.
const (
	FactNew        Fate = "new"
	FactSame       Fate = "same"       // known already; it counts as verified
	FactSuperseded Fate = "superseded" // it replaced another value, which is history now
	FactRefused    Fate = "refused"    // it contradicts somebody of more authority and is kept as a claim
)

// Entry is a memory as it is found and shown, whatever its tier.
type Entry struct {
	Tier    Tier
	ID      string // names it within its agent and tier
	Session string
	Kind    string  // of a note, an outcome, a category, a relationship
	Title   string  // key, name; "" where the tier has none
	Text    string  // content, summary, value, description, notes
	Extra   string  // steps of a procedure as a JSON list, detail of an episode, source of a fact
	Weight  float64 // priority, importance, confidence, reliability, trust: 0 to 1
	Count   int64   // interactions, uses; versions of a fact
	By      api.Principal
	At      int64 // when it was last seen to be so
	Ended   int64 // of history: when it was replaced
	Fate    string

	Accessed int64   // how often it was shown, and
	Shown    int64   // when it was counted last
	Doc      int64   // in the index; 0: it has no place there
	Rank     float64 // how well the text fits, best of the search 1; 0: it was not searched for
	Words    string  // that the index has of it, each followed by a space; of a search only
	Share    float64 // of the query's terms that are in it; of a search only
}

// Reader finds memories. at is now, in Unix microseconds; what has expired by
// then is not there.
type Reader interface {
	// Search returns the entries of tiers, in the order of tiers, in whose text any of the
	// phrases occurs, of each tier the best first: of the latest texts, see
	// [MaxFrequency]. A phrase is words that follow each other, see [Words]; none finds
	// nothing.
	Search(ctx context.Context, agent string, tiers []Tier, phrases []string, at int64) ([]Entry, error)
	// Latest returns a tier's entries: of working memory the session's and every goal, by
	// priority; of episodes the latest of other sessions; of the others the weightiest,
	// the newest first among equals. Session "" leaves none out.
	Latest(ctx context.Context, agent, session string, tier Tier, at int64, limit int) ([]Entry, error)
	// Unasked returns what is shown unasked in a session, which is not "": as Latest,
	// [MaxLatest] of each tier and twice [MaxWorking] notes and as many goals of other
	// sessions. Episodes are those of other sessions among the latest of all, since the
	// session's own are in its prompt anyway. held are the tiers that have anything, in the
	// order of [Tiers].
	Unasked(ctx context.Context, agent, session string, at int64) (all []Entry, held []Tier, err error)
	// Touch counts that entries were shown, once in [ShownFor].
	Touch(ctx context.Context, docs []int64, at int64) error
}

// Writer changes memories. Doing the same thing again changes nothing.
type Writer interface {
	Remember(ctx context.Context, agent string, f Fact) (Fate, error)
	// AddNote adds to working memory, unless the id is there.
	AddNote(ctx context.Context, agent string, n Note) error
	// ReachGoal makes an episode of a goal. Errors: NotFound.
	ReachGoal(ctx context.Context, agent, goal, outcome string, by api.Principal, at int64) error
	SaveProcedure(ctx context.Context, agent string, p Procedure) error
	NoteRelation(ctx context.Context, agent string, r Relation) error
	// Forget says whether there was something to forget.
	Forget(ctx context.Context, agent string, tier Tier, id string, at int64) (bool, error)
}

// Store is where memories are. It is safe for concurrent use.
type Store interface {
	Reader
	Writer
}

// MayReplace says whether a fact may replace one of that origin: what a peer or somebody outside
// says never replaces what the agent, its creator or its clock said.
func (f Fact) MayReplace(standing api.Principal) bool { return ours(f.By) || !ours(standing) }

// TrustAfter is the trust in somebody after r was noted, when it was standing
// before. Only a turn of the agent's own, or of its creator, raises it: nobody
// talks himself into being trusted.
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

// DefaultTrust is the trust in somebody new.
const DefaultTrust = 0.5

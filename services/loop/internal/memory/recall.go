package memory

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Tokens counts a token for every four bytes of a text, an upper estimate for English.
func Tokens(text string) int64 { return int64(len(text)+3) / 4 }

// Weights of an entry's score. They add up to 1. The scored entries include the latest
// ones, which need not match the query, so the match weighs as much as any two others
// together (docs/reference/memory.md, Recall).
const (
	weightMatch      = 0.4 // half the engine's rank, half the share of the query's terms
	weightRecency    = 0.2 // e^(-days/30)
	weightConfidence = 0.2 // confidence, importance, reliability or trust
	weightFrequency  = 0.1 // 1 - e^(-shown/5)
	weightCategory   = 0.1 // of a fact in a category of the query: 1, in another: 0, without categories: 0.5
)

// threshold is the score that the best entry must reach; otherwise only working memory is
// recalled (docs/reference/memory.md, Recall).
const threshold = 0.3

// shares are the shares of a budget by tier, in tokens of 10,000 (docs/memory.md, Five
// tiers). What a tier does not use is added to the next.
var shares = map[Tier]int64{Working: 1500, Episodic: 3000, Semantic: 3000, Procedural: 1500, Relationship: 1000}

const wholeBudget = 10_000

// MaxLatest is the number of entries of a tier that are scored without matching the
// query.
const MaxLatest = 20

// Memory recalls memories for prompts. It is safe for concurrent use.
type Memory struct {
	Store Store
	Now   func() time.Time
	// Shown receives the index ids of the memories that a recall returned. It counts them
	// later with [Store].Touch. nil: they are not counted.
	Shown func(docs []int64)
}

// ShownFor is the time in which repeated recalls of a memory count as one: the memory is
// not more relevant because each turn of a busy agent shows it, and the count is not
// written each time.
const ShownFor = time.Hour

// Recall implements [engine.Memory]. It returns working memory, and then the entries that
// match the query, are recent or have a high weight, by score. It makes at most two
// queries. Errors are those of the store: a turn can continue without memories, and the
// caller reports the error.
func (m *Memory) Recall(ctx context.Context, agent, session, query string, budget int64) (string, error) {
	text, shown, err := m.look(ctx, agent, session, query, budget)
	if err != nil || m.Shown == nil {
		return text, err
	}
	at := m.Now().UnixMicro()
	var docs []int64
	for _, e := range shown {
		if e.Doc != 0 && at-e.Shown >= ShownFor.Microseconds() {
			docs = append(docs, e.Doc)
		}
	}
	if len(docs) > 0 {
		m.Shown(docs)
	}
	return text, nil
}

// Preview returns what Recall would return, without counting it.
func (m *Memory) Preview(ctx context.Context, agent, session, query string, budget int64) (string, error) {
	text, _, err := m.look(ctx, agent, session, query, budget)
	return text, err
}

func (m *Memory) look(ctx context.Context, agent, session, query string, budget int64) (string, []*Entry, error) {
	at := m.Now().UnixMicro()
	unasked, held, err := m.Store.Unasked(ctx, agent, session, at)
	if err != nil {
		return "", nil, err
	}
	found := map[Tier][]*Entry{}
	var goals []string
	for i := range unasked {
		if e := &unasked[i]; e.Tier == Working {
			found[Working] = append(found[Working], e)
			if e.Kind == "goal" {
				goals = append(goals, e.Text)
			}
		}
	}
	q := ParseQuery(query, goals...)
	if held = slices.DeleteFunc(held, func(t Tier) bool { return t == Working }); len(held) > 0 {
		all, err := m.search(ctx, agent, held, q, at)
		if err != nil {
			return "", nil, err
		}
		for i := range all {
			found[all[i].Tier] = append(found[all[i].Tier], &all[i])
		}
	}
	for i := range unasked {
		e := &unasked[i]
		if e.Tier != Working && !slices.ContainsFunc(found[e.Tier], func(o *Entry) bool { return o.ID == e.ID }) {
			found[e.Tier] = append(found[e.Tier], e)
		}
	}
	best := 0.0
	for tier, all := range found {
		if tier == Working {
			continue
		}
		sortByScore(all, q, at)
		best = max(best, score(all[0], q, at))
	}
	if best < threshold {
		found = map[Tier][]*Entry{Working: found[Working]}
	}
	text, shown := fill(found, budget, at)
	return text, shown, nil
}

// Find returns the entries of a tier that match a query, by score, or the latest if the
// query is "".
func (m *Memory) Find(ctx context.Context, agent string, tier Tier, query string, limit int) ([]Entry, error) {
	at := m.Now().UnixMicro()
	if query == "" {
		return m.Store.Latest(ctx, agent, "", tier, at, limit)
	}
	q := ParseQuery(query)
	all, err := m.search(ctx, agent, []Tier{tier}, q, at)
	if err != nil {
		return nil, err
	}
	best := make([]*Entry, len(all))
	for i := range all {
		best[i] = &all[i]
	}
	sortByScore(best, q, at)
	out := make([]Entry, min(len(all), limit))
	for i := range out {
		out[i] = *best[i]
	}
	return out, nil
}

// search removes entries that match only in the index, which has words without the
// punctuation between them.
func (m *Memory) search(ctx context.Context, agent string, tiers []Tier, q Query, at int64) ([]Entry, error) {
	if len(q.Terms) == 0 {
		return nil, nil
	}
	all, err := m.Store.Search(ctx, agent, tiers, q.Phrases(), at)
	if err != nil {
		return nil, err
	}
	var scratch []byte
	for i := range all {
		all[i].Share, scratch = q.share(&all[i], scratch)
	}
	return slices.DeleteFunc(all, func(e Entry) bool { return e.Share == 0 }), nil
}

// sortByScore sorts entries of a tier. No two of them may have the same id.
func sortByScore(all []*Entry, q Query, at int64) {
	type scored struct {
		*Entry

		score float64
	}
	scores := make([]scored, len(all))
	for i, e := range all {
		scores[i] = scored{e, score(e, q, at)}
	}
	slices.SortFunc(scores, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.At, a.At), cmp.Compare(a.ID, b.ID))
	})
	for i, s := range scores {
		all[i] = s.Entry
	}
}

// score returns the score of an entry at a time, 0 to 1.
func score(e *Entry, q Query, at int64) float64 {
	days := max(0, float64(at-e.At)/float64(24*time.Hour/time.Microsecond))
	recency := math.Exp(-days / 30)
	if q.Days > 0 {
		recency = 0
		if days <= float64(q.Days) {
			recency = 1
		}
	}
	match := 0.0
	if e.Rank > 0 {
		match = (e.Rank + e.Share) / 2
	}
	category := 0.5
	if e.Tier == Semantic && len(q.Categories) > 0 {
		category = 0
		if slices.Contains(q.Categories, e.Kind) {
			category = 1
		}
	}
	return weightMatch*match + weightRecency*recency + weightConfidence*e.Weight +
		weightFrequency*(1-math.Exp(-float64(e.Accessed)/5)) + weightCategory*category
}

// fill renders entries: each tier in its order, within its share of the budget and what
// the tiers before it left. Entries that do not fit are skipped.
func fill(found map[Tier][]*Entry, budget, at int64) (string, []*Entry) {
	var shown []*Entry
	var b block
	carry := -Tokens(preamble)
	for _, tier := range Tiers() {
		have := budget*shares[tier]/wholeBudget + carry
		lines := make([]line, 0, len(found[tier]))
		used := int64(0)
		for _, e := range found[tier] {
			text := render(e, at, false)
			cost := Tokens(text)
			if len(lines) == 0 {
				cost += Tokens(headings[tier])
			}
			if used+cost <= have {
				used += cost
				lines = append(lines, line{e, text})
			}
		}
		carry = have - used
		if len(lines) == 0 {
			continue
		}
		if tier == Episodic { // episodes are shown in the order of time
			slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.entry.At, b.entry.At) })
		}
		b.section(tier, lines)
		for _, l := range lines {
			shown = append(shown, l.entry)
		}
	}
	return b.String(), shown
}

// ours reports whether a memory needs no mark: its origin is the agent, its creator or
// heartbeat.
func ours(by api.Principal) bool { return by.Kind.Authority() >= api.HeartbeatKind.Authority() }

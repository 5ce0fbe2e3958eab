package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// Bounds of a search, for each tier. They make its cost independent of the number of an
// agent's memories.
const (
	maxCandidates = 50   // texts that are ranked; the last phrase may exceed it
	maxWithFirst  = 1000 // texts with one word of a phrase that are checked for the other
	maxPhrases    = 32   // phrases that are looked up
)

// searchable are the tiers that have an index.
var searchable = []memory.Tier{memory.Episodic, memory.Semantic, memory.Procedural, memory.Relationship}

// searching are the statements of [Memory.Search], by engine. $1 is a JSON list with
// maxPhrases elements for each of the searchable tiers. An element is "", the one word of
// a phrase, or two words of a phrase separated by a space, with their marks. $2 is the
// agent, $3 the current time.
var searching = map[sqldb.Engine]string{
	sqldb.SQLite: searchStatement(`select key as k, substr(value, 1, instr(value || ' ', ' ') - 1) as word, substr(value, instr(value || ' ', ' ') + 1) as other
		from json_each($1) where value <> ''`),
	sqldb.Postgres: searchStatement(`select k - 1 as k, split_part(value, ' ', 1) as word, split_part(value, ' ', 2) as other
		from jsonb_array_elements_text($1::text::jsonb) with ordinality as x(value, k) where value <> ''`),
}

// searchStatement returns a statement that finds the latest texts with each of the
// requested phrases. It orders the phrases of a tier by frequency and takes the texts of
// the rarest ones, until these have maxCandidates texts together, as candidates. A common
// phrase selects too many texts to be useful here; it still counts in [memory.Rank]. In
// addition to the candidates the statement returns the number of texts with each phrase.
func searchStatement(asked string) string {
	common, most, tier := strconv.Itoa(memory.MaxFrequency), strconv.Itoa(maxCandidates), strconv.Itoa(maxPhrases)
	// latest selects the latest n texts with a word, and other those that also have the
	// second word.
	latest := func(n int) string {
		return `w.word = a.word and w.doc >= coalesce((select x.doc from memory_word x where x.word = a.word order by x.doc desc limit 1 offset ` + strconv.Itoa(n-1) + `), 0)`
	}
	other := latest(maxWithFirst) + ` and exists (select 1 from memory_word y where y.word = a.other and y.doc = w.doc)`
	var b strings.Builder
	// SQLite executes cross joins in the order in which they are written. The texts of a
	// phrase are counted first, up to MaxFrequency, and listed only if the phrase is
	// rare.
	b.WriteString(`with asked as materialized (` + asked + `),
		counted as materialized (
			select a.k, a.word, a.other, case when a.other = ''
				then (select count(*) from (select 1 from memory_word w where w.word = a.word limit ` + common + `) c)
				else (select count(*) from (select 1 from memory_word w where ` + other + ` limit ` + common + `) c) end as n
			from asked a),
		rare as materialized (select k / ` + tier + ` as tier, word, other from (
			select k, word, other, coalesce(sum(n) over (partition by k / ` + tier + ` order by n, k rows between unbounded preceding and 1 preceding), 0) as rarer
			from counted where n > 0) f
			where rarer < ` + most + `),
		candidates as materialized (
			select a.tier, w.doc from rare a cross join memory_word w where a.other = '' and ` + latest(memory.MaxFrequency) + `
			union
			select a.tier, w.doc from rare a cross join memory_word w where a.other <> '' and ` + other + `)
		select '' as tier, '', '', '', '', '', '', n, k, '', '', 0, 0, 0, 0, '' from counted where n > 0`)
	for i, tier := range searchable {
		v := views[tier]
		// In SQLite an indexed expression has no type affinity, and a column has one.
		fmt.Fprintf(&b, `
		union all
		select '%[1]s', %[5]s, %[2]s, m.accessed, m.accessed_at, m.doc, m.body from candidates c cross join memory_text m cross join %[3]s
			where c.tier = %[4]d and m.doc = c.doc and m.scope = ($2 || '/%[1]s') and t.agent = $2 and (%[5]s) = (m.id || '')%[6]s`,
			tier, v.columns, v.table, i, v.id, v.alive("$3"))
	}
	return b.String()
}

// Search implements [memory.Store]. An index of words finds the candidates and
// [memory.Rank] ranks them: the ranking functions of the engines cost 10 µs for each text
// with a common word, and PostgreSQL's does not weigh a word by its rarity.
func (s Memory) Search(ctx context.Context, agent string, tiers []memory.Tier, phrases []string, at int64) ([]memory.Entry, error) {
	words := make([][]string, 0, len(phrases)) // of the phrases
	for _, p := range phrases {
		if of := memory.Words(p); len(of) > 0 && len(words) < maxPhrases {
			words = append(words, of)
		}
	}
	asked := make([]string, len(searchable)*maxPhrases)
	marks := map[memory.Tier][]string{}
	for i, tier := range searchable {
		if !slices.Contains(tiers, tier) {
			continue
		}
		in := mark(scope(agent, tier))
		and := " " + in
		marks[tier] = make([]string, len(words))
		for k, of := range words {
			all := in + strings.Join(of, and)
			if marks[tier][k] = all; len(of) > 1 {
				all = in + strings.Join(longest(of), and)
			}
			asked[i*maxPhrases+k] = all
		}
	}
	if len(words) == 0 || len(marks) == 0 {
		return nil, nil
	}
	for asked[len(asked)-1] == "" {
		asked = asked[:len(asked)-1]
	}
	question, err := api.Encode(asked)
	if err != nil {
		return nil, err
	}
	all, err := s.entries(ctx, searching[s.db.Engine], string(question), agent, at)
	if err != nil {
		return nil, err
	}
	frequency := map[memory.Tier][]int{}
	found := map[memory.Tier][]*memory.Entry{}
	for tier, all := range marks {
		frequency[tier] = make([]int, len(all))
	}
	for i := range all {
		e := &all[i]
		if e.Tier != "" {
			found[e.Tier] = append(found[e.Tier], e)
			continue
		}
		frequency[searchable[e.Count/maxPhrases]][e.Count%maxPhrases] = int(math.Round(e.Weight * 1000))
	}
	out := make([]memory.Entry, 0, min(len(all), maxCandidates*len(tiers)))
	for _, tier := range tiers {
		ranked := found[tier]
		slices.SortFunc(ranked, func(a, b *memory.Entry) int { return cmp.Compare(b.Doc, a.Doc) })
		memory.Rank(ranked, marks[tier], frequency[tier])
		for _, e := range ranked[:min(len(ranked), maxCandidates)] {
			if e.Rank > 0 { // 0: the text has the words, but not as a phrase
				out = append(out, *e)
			}
		}
	}
	return out, nil
}

// longest returns the two longest words of a phrase, which are usually the rarest. Only
// they are looked up.
func longest(words []string) []string {
	words = slices.Clone(words)
	slices.SortStableFunc(words, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	words = slices.Compact(words)
	return words[:min(len(words), 2)]
}

// maxOwn is the number of latest episodes among which those of other sessions are
// selected.
const maxOwn = 200

// listed returns a query for the entries of a tier, in its order, from the given rows. $1
// is the agent.
func listed(tier memory.Tier, rows string, limit string) string {
	v := views[tier]
	return `select '` + string(tier) + `' as tier, ` + v.id + `, ` + v.columns + `, coalesce(m.accessed, 0), coalesce(m.accessed_at, 0), coalesce(m.doc, 0), ''
		from (select t.* from ` + rows + ` order by ` + v.order + ` limit ` + limit + `) t
		left join memory_text m on m.scope = ($1 || '/` + string(tier) + `') and m.id = (` + v.id + `)`
}

// unasked is the statement of [Memory.Unasked]. $1 is the agent, $2 the session, $3 the
// current time.
var unasked = func() string {
	latest := strconv.Itoa(memory.MaxLatest)
	working := strconv.Itoa(2 * memory.MaxWorking)
	live := func(tier memory.Tier) string { return views[tier].alive("$3") }
	return strings.Join([]string{
		listed(memory.Working, `working_memory t where t.agent = $1 and t.session = $2`+live(memory.Working), working),
		listed(memory.Working, `working_memory t where t.agent = $1 and t.kind = 'goal' and t.session <> $2`+live(memory.Working), working),
		// The ids are joined to their rows by a cross join. With an IN list, SQLite scans
		// all episodes of an agent that has no other session.
		listed(memory.Episodic, `(select l.id as found from (select t.id, t.session, t.created_at from episodic_memory t
			where t.agent = $1 order by `+views[memory.Episodic].order+` limit `+strconv.Itoa(maxOwn)+`) l where l.session <> $2 order by l.created_at desc, l.id limit `+latest+`) f
			cross join episodic_memory t where t.agent = $1 and t.id = f.found`, latest),
		listed(memory.Semantic, `semantic_memory t where t.agent = $1`+live(memory.Semantic), latest),
		listed(memory.Procedural, `procedural_memory t where t.agent = $1`, latest),
		listed(memory.Relationship, `relationship_memory t where t.agent = $1 and t.trust >= 300`, latest), // docs/reference/memory.md, Relations
		// The entries above do not show whether these tiers have any row.
		`select 'episodic', '', '', '', '', '', '', 0, 0, '', '', 0, 0, 0, 0, '' where exists (select 1 from episodic_memory where agent = $1)`,
		`select 'relationship', '', '', '', '', '', '', 0, 0, '', '', 0, 0, 0, 0, '' where exists (select 1 from relationship_memory where agent = $1)`,
	}, `
		union all
		`)
}()

// Unasked implements [memory.Store].
func (s Memory) Unasked(ctx context.Context, agent, session string, at int64) (all []memory.Entry, held []memory.Tier, err error) {
	rows, err := s.entries(ctx, unasked, agent, session, at)
	has := map[memory.Tier]bool{}
	for _, e := range rows {
		has[e.Tier] = true
		if e.ID != "" {
			all = append(all, e)
		}
	}
	for _, tier := range memory.Tiers() {
		if has[tier] {
			held = append(held, tier)
		}
	}
	// The rows of a union have no defined order.
	slices.SortStableFunc(all, func(a, b memory.Entry) int {
		if a.Tier != memory.Working || b.Tier != memory.Working {
			return 0
		}
		return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(b.At, a.At), cmp.Compare(a.ID, b.ID))
	})
	return all, held, err
}

// Latest implements [memory.Store].
func (s Memory) Latest(ctx context.Context, agent, session string, tier memory.Tier, at int64, limit int) ([]memory.Entry, error) {
	v, known := views[tier]
	if !known {
		return nil, api.Errorf(api.Invalid, "there is no memory %q", tier)
	}
	args := parameters{agent}
	where := ` where t.agent = $1`
	if v.live != "" {
		where += v.alive(args.add(at))
	}
	switch {
	case session == "":
	case tier == memory.Working:
		where += ` and (t.kind = 'goal' or t.session = ` + args.add(session) + `)`
	case tier == memory.Episodic:
		where += ` and t.session <> ` + args.add(session)
	case tier == memory.Relationship:
		where += ` and t.trust >= 300` // docs/reference/memory.md, Relations
	}
	return s.entries(ctx, listed(tier, v.table+where, args.add(limit))+` order by `+v.order, args...)
}

// Entry implements [memory.Store].
func (s Memory) Entry(ctx context.Context, agent string, tier memory.Tier, id string, at int64) (*memory.Entry, error) {
	v, known := views[tier]
	if !known {
		return nil, api.Errorf(api.Invalid, "there is no memory %q", tier)
	}
	args := parameters{agent}
	where := ` where t.agent = $1 and (` + v.id + `) = ` + args.add(id)
	if v.live != "" {
		where += v.alive(args.add(at))
	}
	all, err := s.entries(ctx, listed(tier, v.table+where, `1`), args...)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// Touch implements [memory.Store].
func (s Memory) Touch(ctx context.Context, docs []int64, at int64) error {
	for chunk := range slices.Chunk(docs, 500) {
		var args parameters
		when, before := args.add(at), args.add(at-memory.ShownFor.Microseconds())
		places := args.list(len(chunk), func(i int) any { return chunk[i] })
		if _, err := s.db.ExecDeferred(ctx, `update memory_text set accessed = accessed + 1, accessed_at = `+when+`
			where accessed_at <= `+before+` and doc in (`+places+`)`, args...); err != nil {
			return err
		}
	}
	return nil
}

// FactHistory returns earlier values of an agent's facts and refused values, the latest
// first.
func (s Memory) FactHistory(ctx context.Context, agent string, limit int) ([]memory.Entry, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (memory.Entry, error) {
		e := memory.Entry{Tier: memory.Semantic}
		err := r.Scan(&e.Kind, &e.Title, &e.Text, &e.Extra, &e.Weight, &e.Count, &e.By.Kind, &e.By.Address, &e.At, &e.Ended, &e.Outcome)
		e.ID = e.Kind + "/" + e.Title
		return e, err
	}, `select category, key, value, source, confidence, version, origin, origin_address, observed_at, ended_at, fate
		from semantic_history where agent = $1 order by ended_at desc, category, key, version desc limit $2`, agent, limit)
}

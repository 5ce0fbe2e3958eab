package sqlstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// views make an [memory.Entry] of each tier's rows t; the first column is its id.
var views = map[memory.Tier]struct{ columns, from, live string }{
	memory.Working: {
		`t.id, t.session, t.kind, '', t.content, '', t.priority, 0, t.origin, t.origin_address, t.created_at`,
		`working_memory t`, ` and (t.expires_at = 0 or t.expires_at > %s)`,
	},
	memory.Episodic: {
		`t.id, t.session, t.outcome, t.event_type, t.summary, t.detail, t.importance, 0, t.origin, t.origin_address, t.created_at`,
		`episodic_memory t`, ``,
	},
	memory.Semantic: {
		`t.category || '/' || t.key, '', t.category, t.key, t.value, t.source, cast(round(cast(t.confidence as numeric) * 1000) as bigint),
			t.versions, t.origin, t.origin_address, case when t.verified_at > t.updated_at then t.verified_at else t.updated_at end`,
		`semantic_memory t`, ` and (t.expires_at = 0 or t.expires_at > %s)`,
	},
	memory.Procedural: {
		`t.name, '', '', t.name, t.description, t.steps, (t.success_count + 1) * 1000 / (t.success_count + t.failure_count + 2),
			t.success_count + t.failure_count, t.origin, t.origin_address, t.updated_at`,
		`procedural_memory t`, ``,
	},
	memory.Relationship: {
		`t.entity_address, '', t.relationship_type, t.entity_name, t.notes, '', t.trust, t.interaction_count, t.origin, t.origin_address, t.updated_at`,
		`relationship_memory t`, ``,
	},
}

// order of a tier that is read unasked (spec-core-4 §7.1).
var order = map[memory.Tier]string{
	memory.Working:      `t.priority desc, t.created_at desc, t.id`,
	memory.Episodic:     `t.created_at desc, t.id`,
	memory.Semantic:     `t.confidence desc, t.updated_at desc, t.category, t.key`,
	memory.Procedural:   `t.success_count desc, t.updated_at desc, t.name`,
	memory.Relationship: `t.trust desc, t.interaction_count desc, t.entity_address`,
}

// parameters collects a query's arguments.
type parameters []any

func (p *parameters) add(v any) string {
	*p = append(*p, v)
	return "$" + strconv.Itoa(len(*p))
}

func entryRow(tier memory.Tier) func(sqldb.Scanner) (memory.Entry, error) {
	return func(r sqldb.Scanner) (memory.Entry, error) {
		e := memory.Entry{Tier: tier}
		var weight int64
		err := r.Scan(&e.ID, &e.Session, &e.Kind, &e.Title, &e.Text, &e.Extra, &weight, &e.Count, &e.By.Kind, &e.By.Address, &e.At,
			&e.Accessed, &e.Shown, &e.Doc, &e.Words)
		e.Weight = float64(weight) / 1000
		return e, err
	}
}

// maxCandidates are read and ranked, the latest that have one of a query's rare
// phrases.
const maxCandidates = 100

// Search implements [memory.Reader]. The engine's index finds the candidates, and
// [memory.Rank] ranks them: the engines' own ranking costs ten microseconds for
// each text that has a common word, and Postgres' does not know which words are
// rare.
func (s Memory) Search(ctx context.Context, agent string, tier memory.Tier, phrases []string, at int64, limit int) ([]memory.Entry, error) {
	v, known := views[tier]
	if !known || tier == memory.Working {
		return nil, nil
	}
	within := scope(agent, tier)
	var sought []string
	for _, p := range phrases {
		if words := marked(within, p); len(words) > 0 {
			sought = append(sought, strings.Join(words, " "))
		}
	}
	if len(sought) == 0 {
		return nil, nil
	}
	frequency, err := s.frequencies(ctx, sought)
	if err != nil {
		return nil, err
	}
	var rare []string
	for _, i := range memory.Rare(frequency, maxCandidates) {
		rare = append(rare, sought[i])
	}
	if len(rare) == 0 {
		return nil, nil
	}
	var args parameters
	hits := s.hits(&args, rare...) + ` order by doc desc limit ` + strconv.Itoa(maxCandidates)
	owner := args.add(agent)
	live := ""
	if v.live != "" {
		live = fmt.Sprintf(v.live, args.add(at))
	}
	id, _, _ := strings.Cut(v.columns, ",")
	// A cross join is what SQLite does in the order in which it is written; it would
	// begin with all that there is of the scope.
	all, err := sqldb.All(ctx, s.db, entryRow(tier), `select `+v.columns+`, m.accessed, m.accessed_at, m.doc, m.body from (`+hits+`) f
		cross join memory_text m cross join `+v.from+`
		where m.doc = f.doc and m.scope = `+args.add(within)+` and t.agent = `+owner+` and (`+id+`) = m.id`+live+` order by m.doc desc`, args...)
	memory.Rank(all, sought, frequency)
	return all[:min(len(all), limit)], err
}

// hits selects the documents in which any of the phrases is.
func (s Memory) hits(args *parameters, phrases ...string) string {
	// Words have letters and digits alone, so none is an operator.
	alternatives := make([]string, len(phrases))
	if s.db.Engine == sqldb.Postgres {
		for i, p := range phrases {
			alternatives[i] = "(" + strings.ReplaceAll(p, " ", " <-> ") + ")"
		}
		return `select doc from memory_text where words @@ to_tsquery('pg_catalog.simple', ` + args.add(strings.Join(alternatives, " | ")) + `)`
	}
	for i, p := range phrases {
		alternatives[i] = `"` + p + `"`
	}
	return `select rowid as doc from memory_index where memory_index match ` + args.add(strings.Join(alternatives, " OR "))
}

// frequencies are the numbers of documents that have each phrase.
func (s Memory) frequencies(ctx context.Context, phrases []string) ([]int, error) {
	var args parameters
	counts, out, into := make([]string, len(phrases)), make([]int, len(phrases)), make([]any, len(phrases))
	for i, p := range phrases {
		counts[i] = `(select count(*) from (` + s.hits(&args, p) + ` limit ` + strconv.Itoa(memory.MaxFrequency) + `) c)`
		into[i] = &out[i]
	}
	return out, s.db.QueryRowContext(ctx, `select `+strings.Join(counts, ", "), args...).Scan(into...)
}

// Latest implements [memory.Reader].
func (s Memory) Latest(ctx context.Context, agent, session string, tier memory.Tier, at int64, limit int) ([]memory.Entry, error) {
	v, known := views[tier]
	if !known {
		return nil, api.Errorf(api.Invalid, "there is no memory %q", tier)
	}
	var args parameters
	owner := args.add(agent)
	where := ""
	if v.live != "" {
		where = fmt.Sprintf(v.live, args.add(at))
	}
	switch {
	case session == "":
	case tier == memory.Working:
		where += ` and (t.kind = 'goal' or t.session = ` + args.add(session) + `)`
	case tier == memory.Episodic:
		where += ` and t.session <> ` + args.add(session)
	case tier == memory.Relationship:
		where += ` and t.trust >= 300` // spec-core-4 §7.4
	}
	id, _, _ := strings.Cut(v.columns, ",")
	return sqldb.All(ctx, s.db, entryRow(tier), `select `+v.columns+`, coalesce(m.accessed, 0), coalesce(m.accessed_at, 0), coalesce(m.doc, 0), ''
		from `+v.from+` left join memory_text m on m.scope = `+args.add(scope(agent, tier))+` and m.id = (`+id+`)
		where t.agent = `+owner+where+` order by `+order[tier]+` limit `+args.add(limit), args...)
}

// Held implements [memory.Reader].
func (s Memory) Held(ctx context.Context, agent, session string) ([]memory.Tier, error) {
	all := memory.Tiers()
	columns, held, into := make([]string, len(all)), make([]bool, len(all)), make([]any, len(all))
	for i, tier := range all {
		where := `t.agent = $1`
		if tier == memory.Working {
			where += ` and (t.kind = 'goal' or t.session = $2)`
		}
		columns[i], into[i] = `exists (select 1 from `+views[tier].from+` where `+where+`)`, &held[i]
	}
	err := s.db.QueryRowContext(ctx, `select `+strings.Join(columns, ", "), agent, session).Scan(into...)
	var out []memory.Tier
	for i, tier := range all {
		if held[i] {
			out = append(out, tier)
		}
	}
	return out, err
}

// Touch implements [memory.Reader].
func (s Memory) Touch(ctx context.Context, docs []int64, at int64) error {
	if len(docs) == 0 {
		return nil
	}
	var args parameters
	when := args.add(at)
	places := make([]string, len(docs))
	for i, d := range docs {
		places[i] = args.add(d)
	}
	_, err := s.db.ExecContext(ctx, `update memory_text set accessed = accessed + 1, accessed_at = `+when+` where doc in (`+strings.Join(places, ", ")+`)`, args...)
	return err
}

// FactHistory returns what an agent's facts were before, and what was claimed against
// them, the latest first.
func (s Memory) FactHistory(ctx context.Context, agent string, limit int) ([]memory.Entry, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (memory.Entry, error) {
		e := memory.Entry{Tier: memory.Semantic}
		var confidence string
		err := r.Scan(&e.Kind, &e.Title, &e.Text, &e.Extra, &confidence, &e.Count, &e.By.Kind, &e.By.Address, &e.At, &e.Ended, &e.Fate)
		e.ID = e.Kind + "/" + e.Title
		e.Weight, _ = strconv.ParseFloat(confidence, 64) // written by decimal
		return e, err
	}, `select category, key, value, source, confidence, version, origin, origin_address, observed_at, ended_at, fate
		from semantic_history where agent = $1 order by ended_at desc, category, key, version desc limit $2`, agent, limit)
}

package sqlstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// view says how a [memory.Entry] is made of a row t of a tier.
type view struct {
	table, id string // id is the entry's id
	columns   string // the entry's other columns
	live      string // condition of a row that has not expired, with %s for the time
	order     string // of [Memory.Latest] and [Memory.Unasked] (docs/reference/memory.md, Tiers)
}

var views = map[memory.Tier]view{
	memory.Working: {
		`working_memory as t`, `t.id`,
		`t.session, t.kind, '', t.content, '', t.priority, 0, t.origin, t.origin_address, t.created_at`,
		` and (t.expires_at = 0 or t.expires_at > %s)`, `t.priority desc, t.created_at desc, t.id`,
	},
	memory.Episodic: {
		`episodic_memory as t`, `t.id`,
		`t.session, t.outcome, t.event_type, t.summary, t.detail, t.importance, 0, t.origin, t.origin_address, t.created_at`,
		``, `t.created_at desc, t.id`,
	},
	memory.Semantic: {
		`semantic_memory as t`, `t.category || '/' || t.key`,
		`'', t.category, t.key, t.value, t.source, cast(round(cast(t.confidence as numeric) * 1000) as bigint),
			t.versions, t.origin, t.origin_address, case when t.verified_at > t.updated_at then t.verified_at else t.updated_at end`,
		` and (t.expires_at = 0 or t.expires_at > %s)`, `t.confidence desc, t.updated_at desc, t.category, t.key`,
	},
	memory.Procedural: {
		`procedural_memory as t`, `t.name`,
		`'', '', t.name, t.description, t.steps, (t.success_count + 1) * 1000 / (t.success_count + t.failure_count + 2),
			t.success_count + t.failure_count, t.origin, t.origin_address, t.updated_at`,
		``, `t.success_count desc, t.updated_at desc, t.name`,
	},
	memory.Relationship: {
		`relationship_memory as t`, `t.entity_address`,
		`'', t.relationship_type, t.entity_name, t.notes, '', t.trust, t.interaction_count, t.origin, t.origin_address, t.updated_at`,
		``, `t.trust desc, t.interaction_count desc, t.entity_address`,
	},
}

// alive returns the condition of a row that has not expired at a time.
func (v view) alive(at string) string { return strings.ReplaceAll(v.live, "%s", at) }

// parameters are the arguments of a query that is being built.
type parameters []any

func (p *parameters) add(v any) string {
	*p = append(*p, v)
	return "$" + strconv.Itoa(len(*p))
}

// list adds the results of value for 0 to n-1 and returns their placeholders.
func (p *parameters) list(n int, value func(i int) any) string {
	var places strings.Builder
	for i := range n {
		if i > 0 {
			places.WriteString(", ")
		}
		places.WriteString(p.add(value(i)))
	}
	return places.String()
}

// entries runs a query with the columns tier, those of a view, and those of the index.
func (s Memory) entries(ctx context.Context, query string, args ...any) (all []memory.Entry, err error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	// All rows are scanned into the same variables: a text that equals that of the
	// previous row, as most tiers, kinds and origins do, is not copied then.
	var e memory.Entry
	var weight int64
	columns := []any{
		&e.Tier, &e.ID, &e.Session, &e.Kind, &e.Title, &e.Text, &e.Extra, &weight, &e.Count, &e.By.Kind, &e.By.Address, &e.At,
		&e.Accessed, &e.Shown, &e.Doc, &e.Words,
	}
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return nil, err
		}
		e.Weight = float64(weight) / 1000
		if len(all) == cap(all) {
			all = slices.Grow(all, 32+len(all))
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

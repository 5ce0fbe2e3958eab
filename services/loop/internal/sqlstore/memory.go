package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// Memory implements [memory.Store] and [soul.Store] on a Store.
type Memory struct{ *Store }

// maxBody is the most text of one memory that the index has, in bytes.
const maxBody = 10_000

// scope returns the name of an agent's tier in the index.
func scope(agent string, tier memory.Tier) string { return agent + "/" + string(tier) }

// mark returns the beginning of each word of a scope in the index, 4 bytes of the scope's
// hash. Without marks, intersecting a common word with all texts of an agent would cost
// more than the rest of a search. Two scopes with the same mark share entries of the
// index; the search then filters the memories by scope.
func mark(scope string) string {
	sum := sha256.Sum256([]byte(scope))
	return "x" + hex.EncodeToString(sum[:4])
}

// index writes a memory's words to the index, in the transaction that writes the memory.
func index(ctx context.Context, tx *sqldb.Tx, agent string, tier memory.Tier, id string, parts ...string) {
	in := scope(agent, tier)
	tx.Queue(ctx, textsIn[1], in, id, indexed(in, parts...))
}

// indexed returns the text that the index has of a memory: its marked words, up to
// [maxBody] bytes.
func indexed(scope string, parts ...string) string {
	var body strings.Builder
	in := mark(scope)
	for _, w := range memory.Words(strings.Join(parts, " ")) {
		if body.Len()+1+len(in)+len(w) > maxBody {
			break
		}
		body.WriteString(in)
		body.WriteString(w)
		body.WriteByte(' ')
	}
	return body.String()
}

func unindex(ctx context.Context, tx *sqldb.Tx, agent string, tier memory.Tier, id string) {
	tx.Queue(ctx, `delete from memory_text where scope = $1 and id = $2`, scope(agent, tier), id)
}

func decimal(f float64) string { return strconv.FormatFloat(min(max(f, 0), 1), 'f', -1, 64) }

func perMille(f float64) int64 { return int64(math.Round(min(max(f, 0), 1) * 1000)) }

// Remember implements [memory.Store].
func (s Memory) Remember(ctx context.Context, agent string, f memory.Fact) (memory.Outcome, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (memory.Outcome, error) { return s.remember(ctx, tx, agent, f) })
}

// standing is a fact as it is stored.
type standing struct {
	memory.Fact
	version, versions, expiry int64
}

func (s Memory) remember(ctx context.Context, tx *sqldb.Tx, agent string, f memory.Fact) (memory.Outcome, error) {
	f.Category, f.Key, f.Value, f.Source = text(f.Category), text(f.Key), text(f.Value), text(f.Source)
	old := standing{Fact: memory.Fact{Category: f.Category, Key: f.Key}}
	err := tx.QueryRowContext(ctx, `select value, confidence, source, origin, origin_address, turn, version, versions, expires_at, updated_at
		from semantic_memory where agent = $1 and category = $2 and key = $3`+s.db.ForUpdate(), agent, f.Category, f.Key).
		Scan(&old.Value, &old.Confidence, &old.Source, &old.By.Kind, &old.By.Address, &old.Turn, &old.version, &old.versions, &old.expiry, &old.At)
	if errors.Is(err, sqldb.ErrNotFound) {
		return s.learn(ctx, tx, agent, f)
	}
	if err != nil {
		return "", err
	}
	expired := old.expiry != 0 && old.expiry <= f.At
	if f.Counts {
		replaceFact(ctx, tx, agent, memory.Counted(old.Value, f), old.version, old.versions)
		return memory.FactSame, nil
	}
	switch {
	case f.Value == old.Value && !expired:
		verify(ctx, tx, agent, f, old)
		return memory.FactSame, nil
	case f.At < old.At:
		return memory.FactSame, nil // a newer value is stored
	case !expired && !f.MayReplace(old.By):
		return memory.FactRefused, claim(ctx, tx, agent, f, old)
	}
	was := "superseded"
	if expired {
		was = "expired"
	}
	history(ctx, tx, agent, old.Fact, old.version, was, f.At)
	replaceFact(ctx, tx, agent, f, old.versions+1, old.versions+1)
	return memory.FactSuperseded, nil
}

// learn inserts a fact that is not stored yet. Errors: [sqldb.ErrBusy] if a concurrent
// transaction inserted it; [sqldb.InTx] then retries.
func (s Memory) learn(ctx context.Context, tx *sqldb.Tx, agent string, f memory.Fact) (memory.Outcome, error) {
	if f.Counts {
		f = memory.Counted("", f)
	}
	res, err := tx.ExecContext(ctx, `insert into semantic_memory (agent, category, key, value, confidence, source, origin, origin_address, turn,
			version, versions, expires_at, created_at, updated_at)
		select $1, $2, $3, $4, $5, $6, $7, $8, $9, n, n, $10, $11, $11
		from (select coalesce(max(version), 0) + 1 as n from semantic_history where agent = $1 and category = $2 and key = $3) v
		where true on conflict do nothing`, // a concurrent insert may violate the index of ids first
		agent, f.Category, f.Key, f.Value, decimal(f.Confidence), f.Source, string(f.By.Kind), f.By.Address, f.Turn, f.Expires, f.At)
	if err != nil {
		return "", err
	}
	if n, _ := res.RowsAffected(); n == 0 {
		return "", fmt.Errorf("fact %s: %w", f.ID(), sqldb.ErrBusy) // inserted by a concurrent transaction: retry
	}
	if err := s.crowdOut(ctx, tx, agent, f.At); err != nil {
		return "", err
	}
	index(ctx, tx, agent, memory.Semantic, f.ID(), f.Category, f.Key, f.Value, f.Source)
	return memory.FactNew, nil
}

func replaceFact(ctx context.Context, tx *sqldb.Tx, agent string, f memory.Fact, version, versions int64) {
	tx.Queue(ctx, `update semantic_memory set value = $4, confidence = $5, source = $6, origin = $7, origin_address = $8, turn = $9,
		version = $10, versions = $11, expires_at = $12, updated_at = $13 where agent = $1 and category = $2 and key = $3`,
		agent, f.Category, f.Key, f.Value, decimal(f.Confidence), f.Source, f.By.Kind, f.By.Address, f.Turn, version, versions, f.Expires, f.At)
	index(ctx, tx, agent, memory.Semantic, f.ID(), f.Category, f.Key, f.Value, f.Source)
}

// verify records that a fact with the stored value was observed again. If the new source
// has at least the authority of the stored one, the confidence becomes the higher of the
// two; if it has more, it also becomes the fact's source.
func verify(ctx context.Context, tx *sqldb.Tx, agent string, f memory.Fact, old standing) {
	confidence, by, expires := old.Confidence, old.By, old.expiry
	switch is, was := f.By.Kind.Authority(), old.By.Kind.Authority(); {
	case is > was:
		confidence, by, expires = max(confidence, f.Confidence), f.By, f.Expires
	case is == was: // a source of the same authority does not lower the confidence
		confidence, expires = max(confidence, f.Confidence), later(expires, f.Expires)
	}
	tx.Queue(ctx, `update semantic_memory set confidence = $4, origin = $5, origin_address = $6, expires_at = $7,
		verified_at = case when verified_at > $8 then verified_at else $8 end where agent = $1 and category = $2 and key = $3`,
		agent, f.Category, f.Key, decimal(confidence), by.Kind, by.Address, expires, f.At)
}

// later returns the later of two expiry times; 0 means never.
func later(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	return max(a, b)
}

// claim records in the history a value that may not replace the stored one (see
// [memory.Fact.MayReplace]). The same value of the same turn is recorded once.
func claim(ctx context.Context, tx *sqldb.Tx, agent string, f memory.Fact, old standing) error {
	known, err := sqldb.One[bool](ctx, tx, `select exists (select 1 from semantic_history where agent = $1 and category = $2 and key = $3
		and fate = 'refused' and turn = $4 and value = $5)`, agent, f.Category, f.Key, f.Turn, f.Value)
	if err != nil || known {
		return err
	}
	history(ctx, tx, agent, f, old.versions+1, "refused", f.At)
	tx.Queue(ctx, `update semantic_memory set versions = versions + 1 where agent = $1 and category = $2 and key = $3`, agent, f.Category, f.Key)
	return nil
}

func history(ctx context.Context, tx *sqldb.Tx, agent string, f memory.Fact, version int64, fate string, ended int64) {
	tx.Queue(ctx, `insert into semantic_history (agent, category, key, version, value, confidence, source, origin, origin_address, turn,
			fate, observed_at, ended_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		agent, f.Category, f.Key, version, f.Value, decimal(f.Confidence), f.Source, f.By.Kind, f.By.Address, f.Turn, fate, f.At, ended)
	tx.Queue(ctx, `delete from semantic_history where agent = $1 and category = $2 and key = $3 and version <= $4`,
		agent, f.Category, f.Key, version-memory.MaxVersions)
}

// crowdOut removes the facts beyond [memory.MaxFacts], at most 100. Facts of peers and of
// external origin are removed first, whatever their confidence, so that an untrusted
// source cannot displace the agent's own facts. Among the others those with the lowest
// confidence are removed first, and of equals the oldest.
func (s Memory) crowdOut(ctx context.Context, tx *sqldb.Tx, agent string, at int64) error {
	_, err := s.drop(ctx, tx, agent, "crowded_out", at, `order by case when origin in ('creator', 'self', 'heartbeat') then 0 else 1 end,
		confidence desc, updated_at desc, category, key limit 100 offset `+strconv.Itoa(memory.MaxFacts))
	return err
}

// drop moves the facts that a condition selects into the history, with a fate, and
// returns their number.
func (s Memory) drop(ctx context.Context, tx *sqldb.Tx, agent, fate string, at int64, which string, args ...any) (n int, err error) {
	all, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (standing, error) {
		var f standing
		err := r.Scan(&f.Category, &f.Key, &f.Value, &f.Confidence, &f.Source, &f.By.Kind, &f.By.Address, &f.Turn, &f.version, &f.At)
		return f, err
	}, `select category, key, value, confidence, source, origin, origin_address, turn, version, updated_at from semantic_memory
		where agent = $1 `+which, append([]any{agent}, args...)...)
	if err != nil {
		return 0, err
	}
	for _, f := range all {
		res, err := tx.ExecContext(ctx, `delete from semantic_memory where agent = $1 and category = $2 and key = $3`, agent, f.Category, f.Key)
		if err != nil {
			return n, err
		}
		if gone, _ := res.RowsAffected(); gone == 0 {
			continue // removed by a concurrent transaction
		}
		history(ctx, tx, agent, f.Fact, f.version, fate, at)
		unindex(ctx, tx, agent, memory.Semantic, f.ID())
		n++
	}
	return n, nil
}

// AddNote implements [memory.Store].
func (s Memory) AddNote(ctx context.Context, agent string, n memory.Note) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		addNote(ctx, tx, agent, n)
		return nil
	})
}

func addNote(ctx context.Context, tx *sqldb.Tx, agent string, n memory.Note) {
	n.Content = text(n.Content)
	tx.Queue(ctx, `insert into working_memory (agent, id, session, kind, content, priority, tokens, turn, origin, origin_address, expires_at, created_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) on conflict (agent, id) do nothing`,
		agent, n.ID, n.Session, n.Kind, n.Content, perMille(n.Priority), memory.Tokens(n.Content), n.Turn, n.By.Kind, n.By.Address, n.Expires, n.At)
	tx.Queue(ctx, `delete from working_memory where agent = $1 and id in (select id from working_memory where agent = $1 and session = $2
		order by priority desc, created_at desc, id limit 1000 offset `+strconv.Itoa(memory.MaxWorking)+`)`, agent, n.Session)
}

// ReachGoal implements [memory.Store]. The episode has the goal's id, by which a
// repeated call finds it and changes nothing.
func (s Memory) ReachGoal(ctx context.Context, agent, goal, outcome string, by api.Principal, at int64) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		e := memory.Episode{
			ID: goal, Type: "goal", Outcome: "success", Class: memory.Strategic, Importance: 0.9, Detail: outcome, By: by, At: at,
		}
		var content string
		err := tx.QueryRowContext(ctx, `select session, content from working_memory where agent = $1 and id = $2 and kind = 'goal'`+s.db.ForUpdate(), agent, goal).
			Scan(&e.Session, &content)
		if errors.Is(err, sqldb.ErrNotFound) {
			reached, err := sqldb.One[bool](ctx, tx, `select exists (select 1 from episodic_memory where agent = $1 and id = $2 and event_type = 'goal')`, agent, goal)
			if err == nil && !reached {
				err = &api.Error{Code: api.NotFound, Message: "there is no goal " + goal, Next: "review_memory shows your goals and their ids"}
			}
			return err
		}
		if err != nil {
			return err
		}
		e.Summary = "Goal reached: " + content
		tx.Queue(ctx, `delete from working_memory where agent = $1 and id = $2`, agent, goal)
		addEpisodes(ctx, tx, []ofAgent{{agent, e}})
		return nil
	})
}

// ofAgent is an episode with its agent.
type ofAgent struct {
	agent string
	memory.Episode
}

// together holds the numbers of rows that one statement inserts, in descending order.
// They are few, because there is a compiled statement for each.
var together = []int{16, 4, 1}

// episodesIn and textsIn are the statements that insert episodes and their words, by the
// number of rows.
var episodesIn, textsIn = func() (episodes, texts map[int]string) {
	episodes, texts = map[int]string{}, map[int]string{}
	for _, n := range together {
		episodes[n] = `insert into episodic_memory (agent, id, session, event_type, summary, detail, outcome, importance, class, tokens,
			origin, origin_address, created_at) values ` + rows(n, 13) + ` on conflict (agent, id) do nothing`
		texts[n] = `insert into memory_text (scope, id, body) values ` + rows(n, 3) + `
			on conflict (scope, id) do update set body = excluded.body where memory_text.body <> excluded.body`
	}
	return episodes, texts
}()

// addEpisodes inserts episodes. No two of them may have the same agent and id.
func addEpisodes(ctx context.Context, tx *sqldb.Tx, all []ofAgent) {
	for len(all) > 0 {
		n := together[slices.IndexFunc(together, func(n int) bool { return n <= len(all) })]
		episodes, texts := make([]any, 0, 13*n), make([]any, 0, 3*n)
		for _, e := range all[:n] {
			e.Summary, e.Detail = text(e.Summary), text(e.Detail)
			episodes = append(episodes, e.agent, e.ID, e.Session, text(e.Type), e.Summary, e.Detail, e.Outcome, perMille(e.Importance), string(e.Class),
				memory.Tokens(e.Summary+e.Detail), string(e.By.Kind), e.By.Address, e.At)
			in := scope(e.agent, memory.Episodic)
			texts = append(texts, in, e.ID, indexed(in, e.Type, e.Summary, e.Detail))
		}
		tx.Queue(ctx, episodesIn[n], episodes...)
		tx.Queue(ctx, textsIn[n], texts...)
		all = all[n:]
	}
}

// SaveProcedure implements [memory.Store]. A procedure that exists keeps its counters.
func (s Memory) SaveProcedure(ctx context.Context, agent string, p memory.Procedure) error {
	steps, err := api.Encode(p.Steps)
	if err != nil {
		return err
	}
	p.Name, p.Description = text(p.Name), text(p.Description)
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		tx.Queue(ctx, `insert into procedural_memory (agent, name, description, steps, origin, origin_address, created_at, updated_at)
			values ($1, $2, $3, $4, $5, $6, $7, $7)
			on conflict (agent, name) do update set description = excluded.description, steps = excluded.steps, origin = excluded.origin,
				origin_address = excluded.origin_address, updated_at = excluded.updated_at`,
			agent, p.Name, p.Description, text(string(steps)), p.By.Kind, p.By.Address, p.At)
		index(ctx, tx, agent, memory.Procedural, p.Name, p.Name, p.Description, string(steps))
		return nil
	})
}

// NoteRelation implements [memory.Store].
func (s Memory) NoteRelation(ctx context.Context, agent string, r memory.Relation) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error { return s.noteRelation(ctx, tx, agent, r) })
}

func (s Memory) noteRelation(ctx context.Context, tx *sqldb.Tx, agent string, r memory.Relation) error {
	address := strings.ToLower(text(r.Address))
	met, last := int64(0), int64(0)
	if r.Met {
		met, last = 1, r.At
	}
	// Insert the row first, so that there is one to lock.
	tx.Queue(ctx, `insert into relationship_memory (agent, entity_address, relationship_type, origin, origin_address, created_at, updated_at)
		values ($1, $2, $3, $4, $5, $6, $6) on conflict (agent, entity_address) do nothing`,
		agent, address, text(r.Kind), r.By.Kind, r.By.Address, r.At)
	var name, kind, notes string
	var trust int64
	var by api.Principal
	if err := tx.QueryRowContext(ctx, `select entity_name, relationship_type, notes, trust, origin, origin_address from relationship_memory
		where agent = $1 and entity_address = $2`+s.db.ForUpdate(), agent, address).Scan(&name, &kind, &notes, &trust, &by.Kind, &by.Address); err != nil {
		return err
	}
	if r.Name != "" && (name == "" || !r.Met) {
		name = text(r.Name)
	}
	if !r.Met {
		kind, by = text(r.Kind), r.By
	}
	if r.Notes != "" {
		notes = text(r.Notes)
	}
	tx.Queue(ctx, `update relationship_memory set entity_name = $3, relationship_type = $4, notes = $5, trust = $6, origin = $7, origin_address = $8,
		interaction_count = interaction_count + $9, last_interaction_at = case when last_interaction_at > $10 then last_interaction_at else $10 end,
		updated_at = $11 where agent = $1 and entity_address = $2`,
		agent, address, name, kind, notes, perMille(r.TrustAfter(float64(trust)/1000)), by.Kind, by.Address, met, last, r.At)
	index(ctx, tx, agent, memory.Relationship, address, address, name, kind, notes)
	return nil
}

// Forget implements [memory.Store]. It moves a fact into the history.
func (s Memory) Forget(ctx context.Context, agent string, tier memory.Tier, id string, at int64) (bool, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (there bool, err error) {
		v, known := views[tier]
		switch {
		case !known:
			return false, api.Errorf(api.Invalid, "there is no memory %q", tier)
		case tier == memory.Semantic:
			category, key, _ := strings.Cut(id, "/")
			n, err := s.drop(ctx, tx, agent, "forgotten", at, `and category = $2 and key = $3`, category, key)
			return n > 0, err
		case tier == memory.Relationship:
			id = strings.ToLower(id)
		}
		res, err := tx.ExecContext(ctx, `delete from `+v.table+` where t.agent = $1 and `+v.id+` = $2`, agent, id)
		if err != nil {
			return false, err
		}
		unindex(ctx, tx, agent, tier, id)
		n, _ := res.RowsAffected()
		return n > 0, nil
	})
}

package sqlstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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
		if _, err := s.mayChange(ctx, tx, agent, memory.Working, goal, by); err != nil { // the note of the goal is deleted
			return err
		}
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
			origin, origin_address, created_at) values ` + sqldb.Placeholders(n, 13) + ` on conflict (agent, id) do nothing`
		texts[n] = `insert into memory_text (scope, id, body) values ` + sqldb.Placeholders(n, 3) + `
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

// mayChange returns an error if a turn of by may not change the memory of a tier with an
// id. there reports whether the memory exists.
func (s Memory) mayChange(ctx context.Context, tx *sqldb.Tx, agent string, tier memory.Tier, id string, by api.Principal) (there bool, err error) {
	v := views[tier]
	var standing api.Principal
	err = tx.QueryRowContext(ctx, `select t.origin, t.origin_address from `+v.table+` where t.agent = $1 and `+v.id+` = $2`+s.db.ForUpdate(), agent, id).
		Scan(&standing.Kind, &standing.Address)
	switch {
	case errors.Is(err, sqldb.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case tier == memory.Relationship: // a peer could note something to become the origin, and a new relation has more trust
		standing = api.Principal{Kind: api.Self}
	}
	if !memory.MayChange(by, standing) {
		return true, &api.Error{
			Code: api.Denied, Message: "a turn with a message of a peer cannot change this memory",
			Next: "change it in a turn of your own, if that is right",
		}
	}
	return true, nil
}

// SaveProcedure implements [memory.Store]. A procedure that exists keeps its counters.
func (s Memory) SaveProcedure(ctx context.Context, agent string, p memory.Procedure) error {
	steps, err := api.Encode(p.Steps)
	if err != nil {
		return err
	}
	p.Name, p.Description = text(p.Name), text(p.Description)
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		if _, err := s.mayChange(ctx, tx, agent, memory.Procedural, p.Name, p.By); err != nil {
			return err
		}
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
func (s Memory) Forget(ctx context.Context, agent string, tier memory.Tier, id string, by api.Principal, at int64) (bool, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (bool, error) { return s.forget(ctx, tx, agent, tier, id, by, at) })
}

// ForgetOnce is [Memory.Forget] for a request that may be repeated: a repetition with the
// same key removes nothing, and returns what the first request did. Keys are stored for a
// week and longer.
func (s Memory) ForgetOnce(ctx context.Context, key, agent string, tier memory.Tier, id string, by api.Principal, at int64) (bool, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (bool, error) {
		res, err := tx.ExecContext(ctx, `insert into request_keys (run, fingerprint, at) values ($1, $2, $3) on conflict (run) do nothing`,
			key, fingerprint("forget", agent, string(tier), id), at)
		if err != nil {
			return false, err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err == nil, err
		}
		there, err := s.forget(ctx, tx, agent, tier, id, by, at)
		if err == nil && !there {
			tx.Queue(ctx, `delete from request_keys where run = $1`, key)
		}
		return there, err
	})
}

func (s Memory) forget(ctx context.Context, tx *sqldb.Tx, agent string, tier memory.Tier, id string, by api.Principal, at int64) (bool, error) {
	v, known := views[tier]
	switch {
	case !known:
		return false, api.Errorf(api.Invalid, "there is no memory %q", tier)
	case tier == memory.Relationship:
		id = strings.ToLower(id)
	}
	if there, err := s.mayChange(ctx, tx, agent, tier, id, by); err != nil || !there {
		return false, err
	}
	if tier == memory.Semantic {
		category, key, _ := strings.Cut(id, "/")
		gone, err := s.drop(ctx, tx, agent, "forgotten", at, `and category = $2 and key = $3`, category, key)
		return len(gone) > 0, err
	}
	res, err := tx.ExecContext(ctx, `delete from `+v.table+` where t.agent = $1 and `+v.id+` = $2`, agent, id)
	if err != nil {
		return false, err
	}
	unindex(ctx, tx, agent, tier, id)
	n, _ := res.RowsAffected()
	return n > 0, nil
}

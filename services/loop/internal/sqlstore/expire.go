package sqlstore

import (
	"context"
	"strconv"
	"sync"

	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// expiries holds the times, in Unix microseconds, at which this process last removed the
// expired memories of each agent. It is safe for concurrent use.
type expiries struct {
	mu   sync.Mutex
	last map[string]int64 // by agent
}

func (e *expiries) due(agent string, at int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, known := e.last[agent]
	return !known || at-last >= expireEvery.Microseconds() || at < last
}

func (e *expiries) note(agents []string, at int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.last) > 10_000 {
		clear(e.last) // an early removal only costs statements
	}
	for _, a := range agents {
		if e.last == nil {
			e.last = map[string]int64{}
		}
		e.last[a] = at
	}
}

// expireDue removes expired memories of the agents for which this process has not done so
// within the last hour. It returns the agents of which none is left.
func (s Memory) expireDue(ctx context.Context, tx *sqldb.Tx, all []taken, at int64) (done []string, err error) {
	seen := map[string]bool{}
	for _, of := range all {
		if seen[of.agent] || !s.expired.due(of.agent, at) {
			continue
		}
		seen[of.agent] = true
		more, err := s.expire(ctx, tx, of.agent, at)
		if err != nil {
			return nil, err
		}
		if !more { // otherwise the next ingestion continues
			done = append(done, of.agent)
		}
	}
	return done, nil
}

// The number of facts and of episodes that one transaction removes.
const (
	factsAtOnce    = 100
	episodesAtOnce = 500
)

// expire removes an agent's expired notes and facts and its episodes that are older than
// [memory.EpisodeLife]. more reports whether there may be more of them.
func (s Memory) expire(ctx context.Context, tx *sqldb.Tx, agent string, at int64) (more bool, err error) {
	tx.Queue(ctx, `delete from working_memory where agent = $1 and expires_at > 0 and expires_at <= $2`, agent, at)
	facts, err := s.drop(ctx, tx, agent, "expired", at, `and expires_at > 0 and expires_at <= $2 order by category, key limit `+strconv.Itoa(factsAtOnce), at)
	if err != nil {
		return false, err
	}
	if err := s.indexOld(ctx, tx, agent); err != nil {
		return false, err
	}
	old, err := sqldb.All(ctx, tx, sqldb.Column[string],
		`select id from episodic_memory where agent = $1 and created_at < $2 order by created_at limit `+strconv.Itoa(episodesAtOnce), agent, at-memory.EpisodeLife.Microseconds())
	for _, id := range old {
		tx.Queue(ctx, `delete from episodic_memory where agent = $1 and id = $2`, agent, id)
		unindex(ctx, tx, agent, memory.Episodic, id)
	}
	return len(facts) == factsAtOnce || len(old) == episodesAtOnce, err
}

// indexOld indexes facts that were written by a release without an index.
func (s Memory) indexOld(ctx context.Context, tx *sqldb.Tx, agent string) error {
	all, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (f memory.Fact, err error) {
		err = r.Scan(&f.Category, &f.Key, &f.Value, &f.Source)
		return f, err
	}, `select category, key, value, source from semantic_memory t where agent = $1 and not exists (
			select 1 from memory_text m where m.scope = $2 and m.id = (t.category || '/' || t.key))
		order by category, key limit 100`, agent, scope(agent, memory.Semantic))
	for _, f := range all {
		index(ctx, tx, agent, memory.Semantic, f.ID(), f.Category, f.Key, f.Value, f.Source)
	}
	return err
}

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

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
	case !expired && !memory.MayChange(f.By, old.By):
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
	index(ctx, tx, agent, memory.Semantic, f.ID(), f.Category, f.Key, f.Value, f.Source)
	gone, err := s.crowdOut(ctx, tx, agent, f.At) // last, because it may remove the new fact and its text
	if slices.Contains(gone, f.ID()) {
		return memory.FactCrowdedOut, err
	}
	return memory.FactNew, err
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
// [memory.MayChange]). The same value of the same turn is recorded once.
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
// confidence are removed first, and of equals the oldest. It returns the ids of the facts
// that it has removed.
func (s Memory) crowdOut(ctx context.Context, tx *sqldb.Tx, agent string, at int64) ([]string, error) {
	return s.drop(ctx, tx, agent, "crowded_out", at, `order by case when origin in ('creator', 'self', 'heartbeat') then 0 else 1 end,
		confidence desc, updated_at desc, category, key limit 100 offset `+strconv.Itoa(memory.MaxFacts))
}

// drop moves the facts that a condition selects into the history, with a fate, and
// returns their ids.
func (s Memory) drop(ctx context.Context, tx *sqldb.Tx, agent, fate string, at int64, which string, args ...any) (gone []string, err error) {
	all, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (standing, error) {
		var f standing
		err := r.Scan(&f.Category, &f.Key, &f.Value, &f.Confidence, &f.Source, &f.By.Kind, &f.By.Address, &f.Turn, &f.version, &f.At)
		return f, err
	}, `select category, key, value, confidence, source, origin, origin_address, turn, version, updated_at from semantic_memory
		where agent = $1 `+which, append([]any{agent}, args...)...)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		res, err := tx.ExecContext(ctx, `delete from semantic_memory where agent = $1 and category = $2 and key = $3`, agent, f.Category, f.Key)
		if err != nil {
			return gone, err
		}
		if n, _ := res.RowsAffected(); n == 0 {
			continue // removed by a concurrent transaction
		}
		history(ctx, tx, agent, f.Fact, f.version, fate, at)
		unindex(ctx, tx, agent, memory.Semantic, f.ID())
		gone = append(gone, f.ID())
	}
	return gone, nil
}

package sqlstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/memory"
)

// Bounds of one transaction of ingestion. On SQLite other writers wait for it.
const (
	digestAtOnce   = 50 // turns
	sessionsAtOnce = 16
)

// expireEvery is the least time between two removals of an agent's expired memories by
// one process.
const expireEvery = time.Hour

// behindAtOnce is the number of sessions that one call of [Memory.Behind] checks.
const behindAtOnce = 1000

// Behind checks the first 1000 sessions with ids greater than after and returns those
// that have turns which are not ingested. last is the id to continue after, or "" if
// there are no more sessions.
func (s Memory) Behind(ctx context.Context, after string) (behind []string, last string, err error) {
	_, err = sqldb.All(ctx, s.db, func(r sqldb.Scanner) (none struct{}, err error) {
		var id string
		var more bool
		if err = r.Scan(&id, &more); more {
			behind = append(behind, id)
		} else {
			last = id
		}
		return none, err
	}, `with page as (select id, turns from sessions where id > $1 order by id limit `+strconv.Itoa(behindAtOnce)+`)
		select id, 1 from page where turns > coalesce((select position from memory_progress p where p.session = page.id), 0)
		union all select max(id), 0 from page having count(*) = `+strconv.Itoa(behindAtOnce), after)
	return behind, last, err
}

// Ingest writes the memories of turns that are not ingested yet, in the order of each
// session, and returns the number of turns. A transaction contains the memories of
// several sessions and the new positions of their progress, so each turn is ingested
// exactly once, also when it is requested again or by concurrent replicas. After an
// error, some of the sessions may be complete.
func (s Memory) Ingest(ctx context.Context, at int64, sessions ...string) (int, error) {
	sessions = slices.Compact(slices.Sorted(slices.Values(sessions)))
	done := 0
	for len(sessions) > 0 {
		now := sessions[:min(len(sessions), sessionsAtOnce)]
		n, left, err := s.ingest(ctx, now, at)
		if err != nil {
			return done, err
		}
		done += n
		sessions = append(left, sessions[len(now):]...)
	}
	return done, nil
}

// ingest ingests turns of some sessions, which are sorted, in one transaction. left are
// the sessions that may have more turns.
func (s Memory) ingest(ctx context.Context, sessions []string, at int64) (n int, left []string, err error) {
	from, err := progress(ctx, s.db, sessions, "")
	if err != nil {
		return 0, nil, err
	}
	// A turn never changes, so it may be read before the transaction.
	var args parameters
	which := make([]string, len(sessions))
	for i, id := range sessions {
		after := from[id]
		which[i] = `session = ` + args.add(id) + ` and position > ` + args.add(after) + ` and position <= ` + args.add(after+digestAtOnce)
	}
	turns, err := s.turns(ctx, `where `+strings.Join(which, ` or `)+` order by session, position limit `+strconv.Itoa(digestAtOnce), args...)
	if err != nil || len(turns) == 0 {
		return 0, nil, err
	}
	// Its digest does not change either. Digesting here keeps the transaction short.
	var all []taken
	for _, t := range turns {
		if len(all) == 0 || all[len(all)-1].session != t.Session {
			all = append(all, taken{session: t.Session, agent: t.Agent})
		}
		to := &all[len(all)-1]
		to.turns, to.digests, to.through = append(to.turns, t.Turn), append(to.digests, memory.DigestTurn(t.Turn)), t.Position
	}
	took := map[string]bool{} // sessions with all their turns ingested
	var expired []string
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		n, expired = 0, nil
		clear(took)
		mine, err := s.claimProgress(ctx, tx, all, from)
		if err != nil || len(mine) == 0 {
			return err
		}
		if n, err = s.takeIn(ctx, tx, mine); err != nil {
			return err
		}
		for _, of := range mine {
			took[of.session] = len(turns) < digestAtOnce || of.session != turns[len(turns)-1].Session
		}
		expired, err = s.expireDue(ctx, tx, mine, at)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	s.expired.note(expired, at)
	for _, id := range sessions {
		// A session that a concurrent replica ingested first may have more turns since.
		asked := slices.ContainsFunc(all, func(t taken) bool { return t.session == id })
		if !took[id] && (asked || len(turns) == digestAtOnce) {
			left = append(left, id)
		}
	}
	return n, left, nil
}

// taken holds the turns of one session that one transaction ingests.
type taken struct {
	session, agent string
	turns          []api.Turn
	digests        []memory.Digest
	through        int64 // position of the last turn
}

// progress returns the positions up to which sessions are ingested. lock is the end of
// the query.
func progress(ctx context.Context, q sqldb.Querier, sessions []string, lock string) (map[string]int64, error) {
	at := map[string]int64{}
	var args parameters
	in := args.list(len(sessions), func(i int) any { return sessions[i] })
	_, err := sqldb.All(ctx, q, func(r sqldb.Scanner) (none struct{}, err error) {
		var session string
		var position int64
		err = r.Scan(&session, &position)
		at[session] = position
		return none, err
	}, `select session, position from memory_progress where session in (`+in+`)`+lock, args...)
	return at, err
}

// claimProgress locks the progress rows of sessions, which are sorted, and advances them.
// It returns the sessions whose progress is still as in from; a concurrent replica
// ingests the others.
func (s Memory) claimProgress(ctx context.Context, tx *sqldb.Tx, all []taken, from map[string]int64) (mine []taken, err error) {
	names := make([]string, len(all))
	for i, t := range all {
		names[i] = t.session
		if s.db.Engine == sqldb.Postgres { // so that there is a row to lock
			tx.Queue(ctx, `insert into memory_progress (session, position) values ($1, 0) on conflict (session) do nothing`, t.session)
		}
	}
	now, err := progress(ctx, tx, names, ` order by session`+s.db.ForUpdate())
	if err != nil {
		return nil, err
	}
	var args []any
	for _, t := range all {
		if now[t.session] == from[t.session] {
			mine, args = append(mine, t), append(args, t.session, t.through)
		}
	}
	if len(mine) > 0 {
		tx.Queue(ctx, `insert into memory_progress (session, position) values `+sqldb.Placeholders(len(mine), 2)+`
			on conflict (session) do update set position = excluded.position`, args...)
	}
	return mine, nil
}

// takeIn writes the memories of turns and returns the number of turns.
func (s Memory) takeIn(ctx context.Context, tx *sqldb.Tx, all []taken) (n int, err error) {
	var runs []string
	var episodes []ofAgent
	for _, of := range all {
		for _, d := range of.digests {
			episodes = append(episodes, ofAgent{of.agent, d.Episode})
		}
	}
	addEpisodes(ctx, tx, episodes)
	for _, of := range all {
		for i, t := range of.turns {
			if err := s.digest(ctx, tx, t, of.digests[i]); err != nil {
				return 0, fmt.Errorf("turn %s: %w", t.ID, err)
			}
			runs = append(runs, t.Run)
		}
		n += len(of.turns)
	}
	if err := s.summarise(ctx, tx, all); err != nil {
		return 0, err
	}
	return n, s.rateProcedures(ctx, tx, all, slices.Compact(runs))
}

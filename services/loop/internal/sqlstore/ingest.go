package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
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
		tx.Queue(ctx, `insert into memory_progress (session, position) values `+rows(len(mine), 2)+`
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

// digest writes the memories of a turn, except its episode and its session's summary.
func (s Memory) digest(ctx context.Context, tx *sqldb.Tx, t api.Turn, d memory.Digest) error {
	for _, f := range d.Facts {
		if _, err := s.remember(ctx, tx, t.Agent, f); err != nil {
			return err
		}
	}
	for _, r := range d.Met {
		if err := s.noteRelation(ctx, tx, t.Agent, r); err != nil {
			return err
		}
	}
	for _, n := range d.Notes {
		addNote(ctx, tx, t.Agent, n)
	}
	return nil
}

// rateProcedures counts a run as a success or a failure of each procedure that it
// recalled by name. It does so when the run's last turn is ingested.
func (s Memory) rateProcedures(ctx context.Context, tx *sqldb.Tx, all []taken, runs []string) error {
	last := map[string]api.Turn{}
	for _, of := range all {
		for _, t := range of.turns {
			last[t.Run] = t
		}
	}
	type recall struct {
		run, arguments string
		end            engine.End
	}
	args := parameters{string(api.OutcomeOK)}
	places := args.list(len(runs), func(i int) any { return runs[i] })
	recalls, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (c recall, err error) {
		var turns int
		err = r.Scan(&c.run, &turns, sqldb.JSON(&c.end), &c.arguments)
		if turns != last[c.run].Number {
			c.run = "" // its last turn is ingested later
		}
		return c, err
	}, `select r.id, r.turns, r.ending, c.arguments from runs r join turns t on t.run = r.id join tool_calls c on c.turn_id = t.id
		where r.id in (`+places+`) and r.ending is not null and c.name = 'recall_procedure' and c.outcome = $1
		order by r.id, t.number, c.idx`, args...)
	if err != nil {
		return err
	}
	counted := map[[2]string]bool{}
	for _, c := range recalls {
		name := memory.ProcedureOf(c.arguments)
		if c.run == "" || counted[[2]string{c.run, name}] {
			continue
		}
		counted[[2]string{c.run, name}] = true
		worked, not := 1, 0
		if !c.end.Success {
			worked, not = 0, 1
		}
		t := last[c.run]
		tx.Queue(ctx, `update procedural_memory set success_count = success_count + $3, failure_count = failure_count + $4,
			last_used_at = $5 where agent = $1 and name = $2`, t.Agent, name, worked, not, t.EndedAt)
	}
	return nil
}

// maxDecisions is the number of decisions that a session's summary has, the latest ones.
const maxDecisions = 10

// summarise updates the summaries of sessions, which are sorted, with the turns that are
// ingested.
func (s Memory) summarise(ctx context.Context, tx *sqldb.Tx, all []taken) error {
	type summary struct {
		said       string
		made, used []string
		count      map[string]int
	}
	before := map[string]summary{}
	var args parameters
	in := args.list(len(all), func(i int) any { return all[i].session })
	_, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (none struct{}, err error) {
		var session string
		var v summary
		err = r.Scan(&session, &v.said, sqldb.JSON(&v.made), sqldb.JSON(&v.used), sqldb.JSON(&v.count))
		before[session] = v
		return none, err
	}, `select session, summary, key_decisions, tools_used, outcomes from session_summaries where session in (`+in+`) order by session`+s.db.ForUpdate(), args...)
	if err != nil {
		return fmt.Errorf("summaries of sessions: %w", err)
	}
	const columns = 11
	values := make([]any, 0, columns*len(all))
	for _, of := range all {
		v, known := before[of.session]
		if !known {
			v = summary{made: []string{}, used: []string{}, count: map[string]int{}}
		}
		var spent int64 // tokens
		var cost api.Micros
		for i, t := range of.turns {
			d := of.digests[i]
			for _, n := range d.Notes {
				if n.Kind == "decision" {
					v.made = append(v.made, n.Content)
				}
			}
			for _, c := range t.Calls {
				if !slices.Contains(v.used, c.Tool) {
					v.used = append(v.used, c.Tool)
				}
			}
			v.count[d.Episode.Outcome]++
			if len(t.Calls) == 0 && t.Thinking != "" {
				v.said = d.Episode.Summary
			}
			spent, cost = spent+t.InputTokens+t.OutputTokens, cost+t.Cost
		}
		slices.Sort(v.used)
		made, err1 := api.Encode(v.made[max(0, len(v.made)-maxDecisions):])
		used, err2 := api.Encode(v.used)
		count, err3 := api.Encode(v.count)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
		at := of.turns[len(of.turns)-1].EndedAt
		values = append(values, of.session, of.agent, text(v.said), text(string(made)), text(string(used)), string(count), int64(len(of.turns)), spent, int64(cost), at, at)
	}
	tx.Queue(ctx, `insert into session_summaries (session, agent, summary, key_decisions, tools_used, outcomes, turns, tokens, cost, created_at, updated_at)
		values `+rows(len(all), columns)+`
		on conflict (session) do update set summary = excluded.summary, key_decisions = excluded.key_decisions, tools_used = excluded.tools_used,
			outcomes = excluded.outcomes, turns = session_summaries.turns + excluded.turns, tokens = session_summaries.tokens + excluded.tokens,
			cost = session_summaries.cost + excluded.cost, updated_at = excluded.updated_at`, values...)
	return nil
}

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

// expireDue removes the expired memories of the agents for which this process has not
// done so within the last hour. It returns these agents.
func (s Memory) expireDue(ctx context.Context, tx *sqldb.Tx, all []taken, at int64) (done []string, err error) {
	for _, of := range all {
		if slices.Contains(done, of.agent) || !s.expired.due(of.agent, at) {
			continue
		}
		if err := s.expire(ctx, tx, of.agent, at); err != nil {
			return nil, err
		}
		done = append(done, of.agent)
	}
	return done, nil
}

// expire removes an agent's expired notes and facts and its episodes that are older than
// [memory.EpisodeLife].
func (s Memory) expire(ctx context.Context, tx *sqldb.Tx, agent string, at int64) error {
	tx.Queue(ctx, `delete from working_memory where agent = $1 and expires_at > 0 and expires_at <= $2`, agent, at)
	if _, err := s.drop(ctx, tx, agent, "expired", at, `and expires_at > 0 and expires_at <= $2 order by category, key limit 100`, at); err != nil {
		return err
	}
	if err := s.indexOld(ctx, tx, agent); err != nil {
		return err
	}
	old, err := sqldb.All(ctx, tx, sqldb.Column[string],
		`select id from episodic_memory where agent = $1 and created_at < $2 order by created_at, id limit 500`, agent, at-memory.EpisodeLife.Microseconds())
	for _, id := range old {
		tx.Queue(ctx, `delete from episodic_memory where agent = $1 and id = $2`, agent, id)
		unindex(ctx, tx, agent, memory.Episodic, id)
	}
	return err
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

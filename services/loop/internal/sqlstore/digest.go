package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/memory"
)

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
		values `+sqldb.Placeholders(len(all), columns)+`
		on conflict (session) do update set summary = excluded.summary, key_decisions = excluded.key_decisions, tools_used = excluded.tools_used,
			outcomes = excluded.outcomes, turns = session_summaries.turns + excluded.turns, tokens = session_summaries.tokens + excluded.tokens,
			cost = session_summaries.cost + excluded.cost, updated_at = excluded.updated_at`, values...)
	return nil
}

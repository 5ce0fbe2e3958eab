package sqlstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

func paid(id, hold, text string) sqlstore.StoredCall {
	return sqlstore.StoredCall{
		Call: sqlstore.Call{
			ID: id, Agent: "lucky", Session: "s", Turn: "r.1", Task: api.TaskTurn, Tier: api.TierHigh, Model: "m", Provider: "p",
			Tokens: sqlstore.Tokens{Input: 10, CachedInput: 4, CacheWrite: 2, Output: 3, Reasoning: 1, Estimated: true},
			Cost:   42, LatencyMS: 5, Trace: "t", At: 1_000_000,
		},
		Hold:   hold,
		Answer: api.Completion{Model: "m", Provider: "p", Text: text, Finish: "stop", InputTokens: 10, OutputTokens: 3, Cost: 42, LatencyMS: 5},
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db)
		ctx := t.Context()
		want := paid("c1", "c1/0", "first")
		if got, err := s.Record(ctx, want); err != nil || !cmp.Equal(got, want) {
			t.Fatalf("record: %+v, %v", got, err)
		}
		if got, err := s.Record(ctx, paid("c1", "c1/1", "second")); err != nil || got.Answer.Text != "first" || got.Hold != "c1/0" {
			t.Errorf("the same call again: %+v, %v, want the first", got, err)
		}
		for name, find := range map[string]func() (sqlstore.StoredCall, bool, error){
			"by id":   func() (sqlstore.StoredCall, bool, error) { return s.Find(ctx, "c1") },
			"by hold": func() (sqlstore.StoredCall, bool, error) { return s.FindByHold(ctx, "c1/0") },
			"lookup": func() (sqlstore.StoredCall, bool, error) {
				p, found, _, err := s.Lookup(ctx, "c1")
				return p, found, err
			},
		} {
			got, found, err := find()
			if diff := cmp.Diff(want, got); err != nil || !found || diff != "" {
				t.Errorf("%s: %v, %v\n%s", name, found, err, diff)
			}
		}
		if _, err := s.Record(ctx, paid("free", "", "free")); err != nil {
			t.Fatal(err)
		}
		for name, find := range map[string]func() (sqlstore.StoredCall, bool, error){
			"an unknown id":      func() (sqlstore.StoredCall, bool, error) { return s.Find(ctx, "c2") },
			"an unknown hold":    func() (sqlstore.StoredCall, bool, error) { return s.FindByHold(ctx, "c1/1") },
			"what is held by no": func() (sqlstore.StoredCall, bool, error) { return s.FindByHold(ctx, "") },
		} {
			if got, found, err := find(); err != nil || found {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		var wg sync.WaitGroup
		texts := make([]string, 16)
		for i := range texts {
			wg.Go(func() {
				got, err := s.Record(ctx, paid("race", fmt.Sprintf("race/%d", i), fmt.Sprint(i)))
				if err != nil {
					t.Errorf("record: %v", err)
				}
				texts[i] = got.Answer.Text
			})
		}
		wg.Wait()
		for _, x := range texts {
			if x != texts[0] {
				t.Errorf("replicas disagree: %v", texts)
				break
			}
		}
	})
}

func TestSpent(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db)
		for i, c := range []struct {
			agent, model string
			at           int64
		}{{"lucky", "m", 1_000_000}, {"lucky", "m", 2_000_000}, {"lucky", "n", 2_000_000}, {"bob", "m", 2_000_000}, {"lucky", "m", 3_000_000}} {
			p := paid(fmt.Sprintf("c%d", i), "", "x")
			p.Call.Agent, p.Call.Model, p.Call.At = c.agent, c.model, c.at
			if _, err := s.Record(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		m := sqlstore.Spending{Model: "m", Cost: 84, Calls: 2, InputTokens: 20, OutputTokens: 6}
		n := sqlstore.Spending{Model: "n", Cost: 42, Calls: 1, InputTokens: 10, OutputTokens: 3}
		for model, want := range map[string][]sqlstore.Spending{"": {m, n}, "m": {m}, "none": nil} {
			got, err := s.Spent(t.Context(), "lucky", model, time.UnixMicro(1_000_000))
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("model %q: %v (-want +got):\n%s", model, err, diff)
			}
		}
	})
}

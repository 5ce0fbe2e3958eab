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
	"github.com/anima-run/anima/services/policy/internal/sqlstore"
)

func decision(id, turn string, index int, at int64, action api.Action) api.Decision {
	return api.Decision{
		ID: id, Agent: "lucky", Session: "lucky-main", Turn: turn, Index: index, Tool: "exec", ArgsHash: "h", By: api.Principal{Kind: api.Peer, Address: "0x1"},
		Authority: 40, Risk: "caution", Action: action, Code: "ALLOWED", Message: "go on", Evaluated: []string{"a", "b"}, Triggered: []string{},
		Version: "v", Trace: "t", LatencyUS: 3, At: at,
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db)
		ctx := t.Context()
		d := decision("d1", "r.1", 0, 1_000_000, api.Allow)
		before := db.Stats()
		if got, first, err := s.Record(ctx, d, "r"); err != nil || !first || !cmp.Equal(got, d) {
			t.Fatalf("record: %+v, first %v, %v", got, first, err)
		}
		if n := db.Stats().Statements - before.Statements; n != 1 {
			t.Errorf("%d statements for a decision, want one", n)
		}
		other := decision("d2", "r.1", 0, 2_000_000, api.Deny)
		got, first, err := s.Record(ctx, other, "r")
		if diff := cmp.Diff(d, got); err != nil || first || diff != "" {
			t.Errorf("the same call again: first %v, %v, want the first decision\n%s", first, err, diff)
		}
		var wg sync.WaitGroup
		ids := make([]string, 16)
		for i := range ids {
			wg.Go(func() {
				r, _, err := s.Record(ctx, decision(fmt.Sprintf("c%d", i), "r.2", 0, 3_000_000, api.Allow), "r")
				if err != nil {
					t.Errorf("record: %v", err)
				}
				ids[i] = r.ID
			})
		}
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Errorf("replicas disagree: %v", ids)
				break
			}
		}
		for at, want := range map[int64]int{0: 2, 1_000_000: 1, 3_000_000: 0} {
			if n, err := s.AllowedSince(ctx, "lucky", "exec", time.UnixMicro(at)); err != nil || n != want {
				t.Errorf("allowed since %d: %d, %v, want %d", at, n, err, want)
			}
		}
		if n, err := s.AllowedSince(ctx, "lucky", "sleep", time.UnixMicro(0)); err != nil || n != 0 {
			t.Errorf("another tool: %d, %v", n, err)
		}
		list, err := s.List(ctx, api.ListDecisions{Agent: "lucky", Limit: 10}, sqlstore.Place{})
		if err != nil || len(list) != 2 || list[0].At < list[1].At {
			t.Errorf("list: %+v, %v", list, err)
		}
		if all, err := s.List(ctx, api.ListDecisions{Limit: 10}, sqlstore.Place{At: 1_790_000_000_000_000}); err != nil || len(all) != 2 {
			t.Errorf("behind a time that is to come: got %d, %v, want both", len(all), err)
		}
		for i, d := range list {
			rest, err := s.List(ctx, api.ListDecisions{Agent: "lucky", Limit: 10}, sqlstore.Place{At: d.At, Turn: d.Turn, Index: d.Index})
			if err != nil || len(rest) != len(list)-i-1 || len(rest) > 0 && rest[0].ID != list[i+1].ID {
				t.Errorf("behind %s: got %+v, %v, want the rest of the list", d.ID, rest, err)
			}
		}
		if list, err := s.List(ctx, api.ListDecisions{Agent: "unknown", Limit: 10}, sqlstore.Place{}); err != nil || list == nil || len(list) != 0 {
			t.Errorf("of an unknown agent: %+v, %v, want an empty list", list, err)
		}
	})
}

// TestRecordCounted tests that concurrent calls of one agent and tool each count the ones
// before, on both databases.
func TestRecordCounted(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db)
		const limit = 3
		record := func(turn string) (api.Decision, bool, error) {
			return s.RecordCounted(t.Context(), "lucky", "exec", time.UnixMicro(0), "r", func(allowed int) api.Decision {
				action := api.Allow
				if allowed >= limit {
					action = api.Deny
				}
				return decision("d-"+turn, turn, 0, 1_000_000, action)
			})
		}
		var wg sync.WaitGroup
		decisions := make([]api.Decision, 20)
		for i := range decisions {
			wg.Go(func() {
				d, first, err := record(fmt.Sprintf("r.%d", i))
				if err != nil || !first {
					t.Errorf("record %d: first %v, %v, want it stored", i, first, err)
				}
				decisions[i] = d
			})
		}
		wg.Wait()
		n := 0
		for i, d := range decisions {
			if d.Action == api.Allow {
				n++
			}
			again, first, err := record(d.Turn)
			if diff := cmp.Diff(d, again); err != nil || first || diff != "" {
				t.Errorf("call %d again: first %v, %v, want the first decision\n%s", i, first, err, diff)
			}
		}
		if n != limit {
			t.Errorf("got %d allowed calls, want %d", n, limit)
		}
	})
}

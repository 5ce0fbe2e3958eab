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
		if _, found, err := s.Find(ctx, "r.1", 0); err != nil || found {
			t.Fatalf("an empty store: %v, %v", found, err)
		}
		d := decision("d1", "r.1", 0, 1_000_000, api.Allow)
		if got, err := s.Record(ctx, d, "r"); err != nil || !cmp.Equal(got, d) {
			t.Fatalf("record: %+v, %v", got, err)
		}
		other := decision("d2", "r.1", 0, 2_000_000, api.Deny)
		if got, err := s.Record(ctx, other, "r"); err != nil || got.ID != "d1" || got.Action != api.Allow {
			t.Errorf("the same call again: %+v, %v, want the first decision", got, err)
		}
		got, found, err := s.Find(ctx, "r.1", 0)
		if diff := cmp.Diff(d, got); err != nil || !found || diff != "" {
			t.Errorf("find: %v, %v\n%s", found, err, diff)
		}
		var announced int
		if err := db.QueryRowContext(ctx, `select count(*) from outbox`).Scan(&announced); err != nil || announced != 1 {
			t.Errorf("%d announcements, %v, want one for one decision", announced, err)
		}
		var wg sync.WaitGroup
		ids := make([]string, 16)
		for i := range ids {
			wg.Go(func() {
				r, err := s.Record(ctx, decision(fmt.Sprintf("c%d", i), "r.2", 0, 3_000_000, api.Allow), "r")
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
		if list, err := s.List(ctx, api.ListDecisions{Agent: "nobody", Limit: 10}, sqlstore.Place{}); err != nil || list == nil || len(list) != 0 {
			t.Errorf("nobody's: %+v, %v, want an empty list", list, err)
		}
	})
}

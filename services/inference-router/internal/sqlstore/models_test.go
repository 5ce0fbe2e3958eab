package sqlstore_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/registry"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

func always(c registry.Changes) func(registry.State) (registry.Changes, error) {
	return func(registry.State) (registry.Changes, error) { return c, nil }
}

// TestRegistry checks that the store returns what was stored, with the versions of prices.
func TestRegistry(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s, ctx := sqlstore.New(db), t.Context()
		row := registry.Row{
			Provider: "p", ID: "m", Lifecycle: api.LifeDiscovered, URL: "http://u/v1", ContextWindow: 8000, MaxOutput: 500, Tools: true, Vision: true,
			TokenParam: model.MaxCompletionTokens, TierMinimum: api.TierLow, Fallback: true, NotChat: true, Remote: "host", CreatedAt: 5,
		}
		price := registry.Price{Provider: "p", ID: "m", Lifecycle: api.LifeOperator, Prices: api.Prices{Input: 1, Output: 2, Cached: 3, Write: 4, Reasoning: 5}, From: 6}
		list := registry.List{Provider: "p", URL: "http://u/v1", State: registry.ListRead}
		want := registry.State{Generation: 1, Rows: []registry.Row{row}, Prices: []registry.Price{price, price}, Lists: []registry.List{list}}
		for i := range want.Prices {
			want.Prices[i].Version, want.Prices[i].At = int64(i+1), 7
		}
		generation, changed, err := s.ChangeRegistry(ctx, always(registry.Changes{At: 7, Put: []registry.Row{row}, Prices: []registry.Price{price, price}, Lists: []registry.List{list}}))
		if err != nil || !changed || generation != 1 {
			t.Fatalf("got %d, %t, %v; want generation 1", generation, changed, err)
		}
		got, err := s.Registry(ctx)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("registry (-want +got), %v:\n%s", err, diff)
		}
		if generation, changed, err := s.ChangeRegistry(ctx, always(registry.Changes{})); err != nil || changed || generation != 1 {
			t.Errorf("no change: got %d, %t, %v; want generation 1 as before", generation, changed, err)
		}
		refused := errors.New("refused")
		if _, _, err := s.ChangeRegistry(ctx, func(registry.State) (registry.Changes, error) {
			return registry.Changes{Put: []registry.Row{row}}, refused
		}); !errors.Is(err, refused) {
			t.Errorf("a refused plan: got %v, want its error", err)
		}
		row.ContextWindow, row.VanishedAt = 9, 8
		if _, _, err := s.ChangeRegistry(ctx, always(registry.Changes{At: 9, Put: []registry.Row{row}, Withdraw: want.Prices[:1], Prices: []registry.Price{price}})); err != nil {
			t.Fatal(err)
		}
		if got, err = s.Registry(ctx); err != nil || got.Generation != 2 || !slices.Equal(got.Rows, []registry.Row{row}) || len(got.Prices) != 2 || got.Prices[1].Version != 3 {
			t.Errorf("after a change: got %+v, %v; want the changed row, and the versions 2 and 3", got, err)
		}
		if all, err := s.PriceHistory(ctx, "", "m"); err != nil || len(all) != 3 || all[0].Version != 3 || all[2].Withdrawn != 9 {
			t.Errorf("history: got %+v, %v; want three versions, the latest first, the first withdrawn at 9", all, err)
		}
		if _, _, err := s.ChangeRegistry(ctx, always(registry.Changes{At: 10, Delete: []registry.Row{row}})); err != nil {
			t.Fatal(err)
		}
		if got, err = s.Registry(ctx); err != nil || len(got.Rows) != 0 || len(got.Prices) != 2 {
			t.Errorf("after a deletion: got %+v, %v; want no row, and the prices", got, err)
		}
	})
}

// TestRegistryChangesInTurn checks that concurrent changes are planned one after another, so
// that no version is given twice and no change is lost.
func TestRegistryChangesInTurn(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db)
		k := registry.Key{Provider: "p", ID: "m"}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				_, _, err := s.ChangeRegistry(t.Context(), func(state registry.State) (registry.Changes, error) {
					last, _ := state.At(int64(len(state.Prices))).By(k, api.LifeOperator, "")
					return registry.SetPrice(state, k, api.Prices{Input: last.Prices.Input + 1, Output: api.Micros(i)}, 0, int64(len(state.Prices)+1)), nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		state, err := s.Registry(t.Context())
		if err != nil || state.Generation != 8 || len(state.Prices) != 8 {
			t.Fatalf("got %+v, %v; want 8 changes", state, err)
		}
		if last := state.Prices[7]; last.Version != 8 || last.Prices.Input != 8 {
			t.Errorf("got %+v, want version 8 with the sum of all changes", last)
		}
	})
}

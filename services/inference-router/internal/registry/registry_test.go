package registry_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/registry"
)

const (
	name = "openai"
	url  = "http://models.test/v1"
)

// apply returns the state after changes, as the store would have it.
func apply(s registry.State, c registry.Changes) registry.State {
	s.Rows, s.Prices, s.Lists = slices.Clone(s.Rows), slices.Clone(s.Prices), slices.Clone(s.Lists)
	same := func(a, b registry.Row) bool {
		return a.Key() == b.Key() && a.Lifecycle == b.Lifecycle && a.URL == b.URL
	}
	for _, m := range c.Put {
		if i := slices.IndexFunc(s.Rows, func(r registry.Row) bool { return same(r, m) }); i >= 0 {
			m.CreatedAt = s.Rows[i].CreatedAt
			s.Rows[i] = m
		} else {
			s.Rows = append(s.Rows, m)
		}
	}
	s.Rows = slices.DeleteFunc(s.Rows, func(r registry.Row) bool {
		return slices.ContainsFunc(c.Delete, func(m registry.Row) bool { return same(r, m) })
	})
	s.Prices = slices.DeleteFunc(s.Prices, func(p registry.Price) bool { return slices.Contains(c.Withdraw, p) })
	for _, p := range c.Prices {
		p.Version, p.At = int64(len(s.Prices)+1), c.At
		s.Prices = append(s.Prices, p)
	}
	for _, l := range c.Lists {
		s.Lists = slices.DeleteFunc(s.Lists, func(old registry.List) bool { return old.Provider == l.Provider && old.URL == l.URL })
		s.Lists = append(s.Lists, l)
	}
	return s
}

// rows returns the rows of some life cycles.
func rows(s registry.State, lives ...api.Lifecycle) (all []registry.Row) {
	for _, r := range s.Rows {
		if slices.Contains(lives, r.Lifecycle) {
			all = append(all, r)
		}
	}
	return all
}

func seeded() registry.State {
	return apply(registry.State{}, registry.Seed(registry.State{}, model.Baseline(), 1))
}

// price returns the price in use of a model, in micro-USD for the input.
func price(t *testing.T, s registry.State, id string, now int64) (input api.Micros, version int64) {
	t.Helper()
	p, _ := s.At(now).Of(registry.Key{Provider: name, ID: id}, url)
	return p.Prices.Input, p.Version
}

// TestBaseline checks the six models of seed 003 with their prices, and that the same
// release changes nothing when it starts again.
func TestBaseline(t *testing.T) {
	t.Parallel()
	s := seeded()
	want := map[string]api.Micros{"gpt-5.2": 1_750_000, "gpt-5.3": 2_000_000, "gpt-5-mini": 800_000, "gpt-4.1": 2_000_000, "gpt-4.1-mini": 400_000, "gpt-4.1-nano": 100_000}
	got := map[string]api.Micros{}
	for _, r := range rows(s, api.LifeBaseline) {
		got[r.ID], _ = price(t, s, r.ID, 1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("prices (-want +got):\n%s", diff)
	}
	if c := registry.Seed(s, model.Baseline(), 2); !c.Empty() {
		t.Errorf("the same release again: got %+v, want no changes", c)
	}
	dearer := model.Baseline()
	dearer[0].InputPrice++
	c := registry.Seed(s, dearer, 2)
	if len(c.Put) != 0 || len(c.Prices) != 1 || c.Prices[0].ID != "gpt-5.2" {
		t.Errorf("another price: got %+v, want one version of gpt-5.2 and no row", c)
	}
}

// TestRefreshChangesOnlyItsRows checks that no list changes a row or a price of the release
// or of the operator, whatever it has.
func TestRefreshChangesOnlyItsRows(t *testing.T) {
	t.Parallel()
	s := seeded()
	own := registry.Row{Provider: name, ID: "own", Lifecycle: api.LifeOperator, ContextWindow: 1000, MaxOutput: 100, TierMinimum: api.TierLow, CreatedAt: 2}
	c, err := registry.Declare(s, own, api.Prices{Input: 5, Output: 6}, 2)
	if err != nil {
		t.Fatal(err)
	}
	s = apply(s, c)
	before := rows(s, api.LifeBaseline, api.LifeOperator)
	for n, list := range [][]provider.Listed{
		{{ID: "own", ContextWindow: 9, Priced: true, InputPrice: 1, OutputPrice: 1, NoTools: true}, {ID: "gpt-5.2", ContextWindow: 8, Priced: true, InputPrice: 3, OutputPrice: 3}, {ID: "new"}},
		{{ID: "new", ContextWindow: 7}},
		{},
	} {
		c, _ := registry.Refresh(s, name, url, list, int64(10+n))
		s = apply(s, c)
		if diff := cmp.Diff(before, rows(s, api.LifeBaseline, api.LifeOperator)); diff != "" {
			t.Errorf("list %d changed rows of others (-before +after):\n%s", n, diff)
		}
		if again, _ := registry.Refresh(s, name, url, list, int64(20+n)); !again.Empty() {
			t.Errorf("list %d again: got %+v, want no changes", n, again)
		}
		if in, _ := price(t, s, "own", 100); in != 5 {
			t.Errorf("list %d: price of the operator's model: got %d, want 5", n, in)
		}
	}
	if in, _ := price(t, s, "gpt-5.2", 100); in != 3 {
		t.Errorf("gpt-5.2: got %d, want 3: the price of the list precedes that of the release", in)
	}
	if _, err := registry.Declare(s, registry.Row{Provider: name, ID: "gpt-5.2", Lifecycle: api.LifeOperator}, api.Prices{}, 3); api.CodeOf(err) != api.Conflict {
		t.Errorf("a declaration of a baseline model: got %v, want %s", err, api.Conflict)
	}
}

// TestVanished checks that a model that its list has no more keeps its row and its last
// price, that it comes back, and that it can be removed.
func TestVanished(t *testing.T) {
	t.Parallel()
	listed := provider.Listed{ID: "m", Priced: true, InputPrice: 7, OutputPrice: 9}
	c, _ := registry.Refresh(registry.State{}, name, url, []provider.Listed{listed}, 1)
	s := apply(registry.State{}, c)
	c, done := registry.Refresh(s, name, url, nil, 2)
	s = apply(s, c)
	if in, _ := price(t, s, "m", 3); len(done.Vanished) != 1 || in != 7 || s.Rows[0].VanishedAt != 2 {
		t.Fatalf("got %+v, rows %+v, price %d; want m vanished at 2 with the price 7", done, s.Rows, in)
	}
	c, back := registry.Refresh(s, name, url, []provider.Listed{listed}, 3)
	if again := apply(s, c); len(back.Back) != 1 || again.Rows[0].VanishedAt != 0 || len(c.Prices) != 0 {
		t.Errorf("listed again: got %+v, rows %+v, prices %+v", back, again.Rows, c.Prices)
	}
	if s = apply(s, registry.Remove(s, registry.Key{Provider: name, ID: "m"}, 4)); len(s.Rows) != 0 {
		t.Errorf("removed: got %+v", s.Rows)
	}
}

// TestPaidModelDoesNotBecomeFree checks the flaw of V-14: a list with the price 0, or
// without prices, does not make a paid model free.
func TestPaidModelDoesNotBecomeFree(t *testing.T) {
	t.Parallel()
	s := seeded()
	c, _ := registry.Refresh(s, name, url, []provider.Listed{{ID: "m", Priced: true, InputPrice: 7, OutputPrice: 9}}, 1)
	s = apply(s, c)
	for _, l := range []provider.Listed{{ID: "m", Priced: true}, {ID: "m"}} {
		c, done := registry.Refresh(s, name, url, []provider.Listed{l, {ID: "gpt-5.2", Priced: true}}, 2)
		s = apply(s, c)
		if in, _ := price(t, s, "m", 3); in != 7 || l.Priced != slices.Contains(done.Free, "m") || !slices.Contains(done.Free, "gpt-5.2") {
			t.Errorf("%+v: got price %d, reported %v; want 7, and each ignored price", l, in, done.Free)
		}
		if in, _ := price(t, s, "gpt-5.2", 3); in != 1_750_000 {
			t.Errorf("gpt-5.2: got %d, want its price of the release", in)
		}
	}
	c, _ = registry.Refresh(s, name, url, []provider.Listed{{ID: "gift", Priced: true}, {ID: "odd", Priced: true, InputPrice: -1}}, 4)
	s = apply(s, c)
	for id, want := range map[string]bool{"gift": true, "odd": false} {
		if _, ok := s.At(5).Of(registry.Key{Provider: name, ID: id}, url); ok != want {
			t.Errorf("%s: got a price %t, want %t", id, ok, want)
		}
	}
}

// TestPriceVersions checks the order of prices: by the time from which they apply, and that
// of the operator before the others.
func TestPriceVersions(t *testing.T) {
	t.Parallel()
	s := seeded()
	k := registry.Key{Provider: name, ID: "gpt-5.2"}
	s = apply(s, registry.SetPrice(s, k, api.Prices{Input: 10}, 0, 100))
	s = apply(s, registry.SetPrice(s, k, api.Prices{Input: 30}, 300, 101))
	s = apply(s, registry.SetPrice(s, k, api.Prices{Input: 20}, 0, 102))
	for now, want := range map[int64]api.Micros{99: 1_750_000, 100: 10, 102: 20, 299: 20, 300: 30, 1000: 30} {
		if got, _ := price(t, s, "gpt-5.2", now); got != want {
			t.Errorf("at %d: got %d, want %d", now, got, want)
		}
	}
	if next := s.At(200).Next(); next != 300 {
		t.Errorf("next: got %d, want 300", next)
	}
	for _, same := range []registry.Changes{registry.SetPrice(s, k, api.Prices{Input: 20}, 0, 103), registry.SetPrice(s, k, api.Prices{Input: 30}, 300, 103)} {
		if !same.Empty() {
			t.Errorf("the same price again: got %+v, want no changes", same)
		}
	}
	s = apply(s, registry.Remove(s, k, 400))
	if got, _ := price(t, s, "gpt-5.2", 500); got != 1_750_000 {
		t.Errorf("after a removal: got %d, want the price of the release", got)
	}
}

package registry

import (
	"slices"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Seed plans the rows of the life cycle baseline as the program has them. Rows that the
// program has no more stay, because a replica of another release may have them. A price is
// appended if the latest one of the program differs.
func Seed(s State, baseline []model.Model, now int64) Changes {
	c := Changes{At: now}
	prices := s.At(now)
	for _, m := range baseline {
		row := Row{
			Provider: m.Provider, ID: m.ID, Lifecycle: api.LifeBaseline, ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutput, Tools: m.Tools, Vision: m.Vision,
			TokenParam: m.TokenParam, TierMinimum: m.TierMinimum, Fallback: m.Fallback, CreatedAt: now,
		}
		if old, ok := s.Find(row.Key(), api.LifeBaseline, ""); !ok || !row.same(old) {
			c.Put = append(c.Put, row)
		}
		price := Price{Provider: m.Provider, ID: m.ID, Lifecycle: api.LifeBaseline, Prices: PricesOf(m), From: now}
		if old, ok := prices.By(row.Key(), api.LifeBaseline, ""); !ok || old.Prices != price.Prices {
			c.Prices = append(c.Prices, price)
		}
	}
	return c
}

// PricesOf returns the prices of a model.
func PricesOf(m model.Model) api.Prices {
	return api.Prices{
		Input: api.Micros(m.InputPrice), Output: api.Micros(m.OutputPrice), Cached: api.Micros(m.CachedPrice), Write: api.Micros(m.WritePrice), Reasoning: api.Micros(m.ReasonPrice),
	}
}

// Refreshed is what a list has changed, for people.
type Refreshed struct {
	Vanished []string // models that the list has no more
	Back     []string // models that the list has again
	Free     []string // models whose price the list gives as 0, after another one, and which keep that
}

// NoList plans the state of a provider that has no list. Its models of earlier lists stay
// as they are.
func NoList(s State, name, url string, now int64) Changes {
	c := Changes{At: now}
	if s.List(name, url) != ListNone {
		c.Lists = []List{{name, url, ListNone}}
	}
	return c
}

// Refresh plans the rows of the life cycle discovered for the list of a provider. It
// changes no other row.
//
// A model that the list has no more keeps its row and its last price, and gets the time.
// The price of a model that was paid does not become 0 by a list: that is more often a
// fault of the list than a gift, and a paid model must never be called as a free one. A list
// without prices leaves the last ones.
func Refresh(s State, name, url string, list []provider.Listed, now int64) (Changes, Refreshed) {
	c, done := Changes{At: now}, Refreshed{}
	if s.List(name, url) != ListRead {
		c.Lists = []List{{name, url, ListRead}}
	}
	old := map[string]Row{}
	for _, r := range s.Rows {
		if r.Provider == name && r.Lifecycle == api.LifeDiscovered && r.URL == url {
			old[r.ID] = r
		}
	}
	prices, seen := s.At(now), map[string]bool{}
	for _, l := range list {
		if seen[l.ID] || !api.ValidModelID(l.ID) {
			continue
		}
		seen[l.ID] = true
		row := Row{
			Provider: name, ID: l.ID, Lifecycle: api.LifeDiscovered, URL: url, ContextWindow: max(0, l.ContextWindow), MaxOutput: max(0, l.MaxOutput), Tools: !l.NoTools, Vision: l.Vision,
			NotChat: l.NotChat, Remote: l.Remote, CreatedAt: now,
		}
		before, known := old[l.ID]
		delete(old, l.ID)
		if known && before.VanishedAt != 0 {
			done.Back = append(done.Back, l.ID)
		}
		if !known || !row.same(before) {
			c.Put = append(c.Put, row)
		}
		price := Price{
			Provider: name, ID: l.ID, Lifecycle: api.LifeDiscovered, URL: url, From: now,
			Prices: api.Prices{
				Input: api.Micros(l.InputPrice), Output: api.Micros(l.OutputPrice), Cached: api.Micros(l.CachedPrice), Write: api.Micros(l.WritePrice), Reasoning: api.Micros(l.ReasonPrice),
			},
		}
		if !l.Priced || price.Prices.Fault() != "" {
			continue
		}
		last, priced := prices.By(row.Key(), api.LifeDiscovered, url)
		switch {
		case priced && last.Prices == price.Prices:
		case price.Prices == api.Prices{} && paid(prices, row.Key(), url):
			done.Free = append(done.Free, l.ID)
		default:
			c.Prices = append(c.Prices, price)
		}
	}
	for id, r := range old {
		if r.VanishedAt == 0 {
			r.VanishedAt = now
			c.Put = append(c.Put, r)
			done.Vanished = append(done.Vanished, id)
		}
	}
	slices.Sort(done.Vanished)
	return c, done
}

// paid reports whether the list or the program has a price above 0 for a model.
func paid(p *Prices, k Key, url string) bool {
	for _, v := range p.all[k] {
		if v.Lifecycle != api.LifeOperator && (v.URL == url || v.URL == "") && v.Prices != (api.Prices{}) {
			return true
		}
	}
	return false
}

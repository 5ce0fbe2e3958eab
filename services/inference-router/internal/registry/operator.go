package registry

import (
	"github.com/anima-run/anima/pkg/api"
)

// Declare plans the row of a model that the operator declares, with its price from now on.
// It changes no other row. Errors: Conflict for a baseline model.
func Declare(s State, row Row, prices api.Prices, now int64) (Changes, error) {
	if _, ok := s.Find(row.Key(), api.LifeBaseline, ""); ok {
		return Changes{}, &api.Error{
			Code: api.Conflict, Message: row.ID + " is a baseline model", Next: "set its price with anima model set-price " + row.ID,
		}
	}
	c := SetPrice(s, row.Key(), prices, 0, now)
	if old, ok := s.Find(row.Key(), api.LifeOperator, ""); !ok || !row.same(old) {
		c.Put = []Row{row}
	}
	return c, nil
}

// SetPrice plans a price of the operator from a time on, 0 for now. There is none to store
// if the operator's price is the same at that time.
func SetPrice(s State, k Key, prices api.Prices, from, now int64) Changes {
	c := Changes{At: now}
	at := max(from, now)
	if old, ok := s.At(at).By(k, api.LifeOperator, ""); ok && old.Prices == prices && (from == 0 || old.From <= from) {
		return c
	}
	c.Prices = []Price{{Provider: k.Provider, ID: k.ID, Lifecycle: api.LifeOperator, Prices: prices, From: at}}
	return c
}

// Remove plans the end of all that the operator has set about a model, and the removal of
// its discovered row if it has vanished. It is empty if there is nothing of that.
func Remove(s State, k Key, now int64) Changes {
	c := Changes{At: now}
	for _, r := range s.Rows {
		if r.Key() == k && (r.Lifecycle == api.LifeOperator || r.VanishedAt != 0) {
			c.Delete = append(c.Delete, r)
		}
	}
	for _, p := range s.Prices {
		if p.Provider == k.Provider && p.ID == k.ID && p.Lifecycle == api.LifeOperator {
			c.Withdraw = append(c.Withdraw, p)
		}
	}
	return c
}

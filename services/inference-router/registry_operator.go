package router

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/registry"
)

// all returns the models that are shown: those that can be selected, and those that cannot.
func (c *catalog) all() []model.Model {
	now := c.current.Load()
	return append(now.All(), now.unused...)
}

// shown returns a model in the form of the contract, without the state of its breaker.
func (c *catalog) shown(m model.Model) api.Model {
	why := m.Unusable()
	if why == "" && !c.configured(m.Provider) {
		why = model.NotConfiguredText(m.Provider)
	}
	return api.Model{
		ID: m.ID, Provider: m.Provider, InputPrice: api.Micros(m.InputPrice), OutputPrice: api.Micros(m.OutputPrice), CachedPrice: api.Micros(m.CachedPrice),
		WritePrice: api.Micros(m.WritePrice), ReasonPrice: api.Micros(m.ReasonPrice), PriceVersion: m.PriceVersion, PriceUnknown: !m.Known,
		ContextWindow: m.ContextWindow, MaxOutput: m.MaxOutput, TierMinimum: m.TierMinimum, Vision: m.Vision, Usable: why == "", Why: why, Lifecycle: m.Lifecycle, Vanished: m.Vanished,
	}
}

// find returns the model of a request of the operator. Errors: NotFound; Invalid, if several
// providers have the model and none is named.
func (c *catalog) find(id, name string) (model.Model, error) {
	var found []model.Model
	for _, m := range c.all() {
		if m.ID == id && (name == "" || m.Provider == name) {
			found = append(found, m)
		}
	}
	switch {
	case len(found) == 0:
		return model.Model{}, &api.Error{Code: api.NotFound, Message: "there is no model " + id, Next: "anima model list shows the ones there are; anima model add adds one"}
	case len(found) > 1:
		return model.Model{}, &api.Error{Code: api.Invalid, Message: "several providers have a model " + id, Next: "name the provider: --provider " + found[0].Provider}
	}
	return found[0], nil
}

func (c *catalog) notConfigured(name string) error {
	var names []string
	for _, s := range c.sources {
		names = append(names, s.provider.Name())
	}
	return api.Errorf(api.Invalid, "provider %s is not configured; configured are %s", name, strings.Join(names, ", "))
}

// maxWindow is the largest context window and output limit of a declared model, in
// tokens.
const maxWindow = 100_000_000

// add stores the declaration of a model and its price. The same request again changes
// nothing. See [catalog.change] for a crash.
func (c *catalog) add(ctx context.Context, m api.AddModel) (api.Model, error) {
	m.Provider = cmp.Or(m.Provider, c.sources[0].provider.Name())
	m.TierMinimum = cmp.Or(m.TierMinimum, api.TierCritical)
	fault := m.Prices.Fault()
	switch {
	case !api.ValidModelID(m.Model):
		fault = "a model needs an id of at most 200 bytes without spaces"
	case !c.configured(m.Provider):
		return api.Model{}, c.notConfigured(m.Provider)
	case !slices.Contains(api.Tiers(), m.TierMinimum):
		fault = "there is no tier " + string(m.TierMinimum)
	case min(m.ContextWindow, m.MaxOutput) < 0 || max(m.ContextWindow, m.MaxOutput) > maxWindow:
		fault = "a limit is a number of tokens up to 100000000"
	}
	if fault != "" {
		return api.Model{}, api.Errorf(api.Invalid, "%s", fault)
	}
	now := c.now().UnixMicro()
	row := registry.Row{
		Provider: m.Provider, ID: m.Model, Lifecycle: api.LifeOperator, ContextWindow: m.ContextWindow, MaxOutput: maxOutput(m.MaxOutput, m.ContextWindow),
		Tools: !m.NoTools, Vision: m.Vision, TierMinimum: m.TierMinimum, Fallback: m.Fallback, CreatedAt: now,
	}
	err := c.change(ctx, func(s registry.State) (registry.Changes, error) { return registry.Declare(s, row, m.Prices, now) })
	if err != nil {
		return api.Model{}, err
	}
	return c.answer(m.Model, m.Provider)
}

// setPrice stores a price of the operator. The same request again changes nothing.
func (c *catalog) setPrice(ctx context.Context, m api.SetModelPrice) (api.Model, error) {
	found, err := c.find(m.Model, m.Provider)
	if err != nil {
		return api.Model{}, err
	}
	now := c.now().UnixMicro()
	switch fault := m.Prices.Fault(); {
	case fault != "":
		return api.Model{}, api.Errorf(api.Invalid, "%s", fault)
	case m.From != 0 && m.From < now:
		return api.Model{}, api.Errorf(api.Invalid, "a price cannot begin in the past: calls have been paid by another one")
	}
	k := registry.Key{Provider: found.Provider, ID: found.ID}
	err = c.change(ctx, func(s registry.State) (registry.Changes, error) {
		return registry.SetPrice(s, k, m.Prices, m.From, now), nil
	})
	if err != nil {
		return api.Model{}, err
	}
	return c.answer(found.ID, found.Provider)
}

func (c *catalog) answer(id, name string) (api.Model, error) {
	m, err := c.find(id, name)
	return c.shown(m), err
}

// remove removes what the operator has set about a model, and a vanished model. The answer
// is the model as it was. A repeated request is NotFound or a Conflict.
func (c *catalog) remove(ctx context.Context, m api.RemoveModel) (api.Model, error) {
	found, err := c.find(m.Model, m.Provider)
	if err != nil {
		return api.Model{}, err
	}
	now := c.now().UnixMicro()
	err = c.change(ctx, func(s registry.State) (registry.Changes, error) {
		changes := registry.Remove(s, registry.Key{Provider: found.Provider, ID: found.ID}, now)
		if changes.Empty() {
			return changes, &api.Error{
				Code: api.Conflict, Message: "model " + found.ID + " was not added by anima model add, and the operator has set no price for it",
				Next: "remove it where it is: in ANIMA_INFERENCE_ROUTER_MODELS, or at its provider; anima model matrix set chooses other models",
			}
		}
		return changes, nil
	})
	return c.shown(found), err
}

// prices answers with the versions of prices.
func (c *catalog) prices(ctx context.Context, m api.ListModelPrices) (api.ModelPrices, error) {
	all, err := c.store.PriceHistory(ctx, m.Provider, m.Model)
	if err != nil {
		return api.ModelPrices{}, err
	}
	if len(all) == 0 { // a misspelt name must not look like one without prices
		if m.Provider != "" && !c.configured(m.Provider) {
			return api.ModelPrices{}, c.notConfigured(m.Provider)
		}
		if _, err := c.find(m.Model, m.Provider); m.Model != "" && api.CodeOf(err) == api.NotFound {
			return api.ModelPrices{}, err
		}
	}
	type version struct {
		registry.Key
		n int64
	}
	used := map[version]bool{}
	for _, m := range c.all() {
		used[version{registry.Key{Provider: m.Provider, ID: m.ID}, m.PriceVersion}] = true
	}
	out := api.ModelPrices{Prices: []api.ModelPrice{}}
	for _, p := range all {
		out.Prices = append(out.Prices, api.ModelPrice{
			Provider: p.Provider, Model: p.ID, Version: p.Version, Lifecycle: p.Lifecycle, Prices: p.Prices, From: p.From, At: p.At, Withdrawn: p.Withdrawn,
			InUse: used[version{registry.Key{Provider: p.Provider, ID: p.ID}, p.Version}],
		})
	}
	return out, nil
}

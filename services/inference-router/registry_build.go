package router

import (
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/registry"
)

// view is a stored registry, arranged for the building of the models.
type view struct {
	state  registry.State
	prices *registry.Prices
}

// build joins the stored registry with the settings. Of two models with the same id it uses
// that of the first provider at which it can be called; one that it replaces is only shown.
// Models of providers that are not configured follow the others,
// so that an explanation can name them, except those that a configured provider serves
// under a longer id, like openai/gpt-5.2: they would hide it.
func (c *catalog) build(state registry.State) (*models, error) {
	v := view{state, state.At(c.now().UnixMicro())}
	out := &models{stored: state, next: v.prices.Next()}
	var all []model.Model
	seen := map[string]int{} // positions in all
	add := func(m model.Model) {
		at, ok := seen[m.ID]
		switch {
		case !ok:
			seen[m.ID] = len(all)
			all = append(all, m)
		case all[at].Unusable() != "" && m.Unusable() == "":
			out.unused = append(out.unused, all[at])
			all[at] = m
		}
	}
	for _, s := range c.sources {
		for _, m := range s.models(v) {
			add(m)
		}
	}
	served, err := model.NewRegistry(all...)
	if err != nil {
		return nil, err
	}
	for _, r := range state.Rows {
		_, known := seen[r.ID]
		switch {
		case r.Lifecycle == api.LifeDiscovered:
		case !c.configured(r.Provider) && served.Find(r.ID) == nil:
			add(v.model(r, ""))
		case !c.configured(r.Provider):
		case !known:
			m := v.model(r, "")
			m.Absent = "provider " + r.Provider + " does not serve it"
			out.unused = append(out.unused, m)
		}
	}
	out.Registry, err = model.NewRegistry(all...)
	return out, err
}

// model returns the model of a row, with the price that applies.
func (v view) model(r registry.Row, url string) model.Model {
	m := model.Model{
		ID: r.ID, Provider: r.Provider, ContextWindow: r.ContextWindow, MaxOutput: r.MaxOutput, Tools: r.Tools, Vision: r.Vision, TokenParam: r.TokenParam,
		TierMinimum: r.TierMinimum, Fallback: r.Fallback, Lifecycle: r.Lifecycle,
	}
	v.setPrice(&m, url)
	return m
}

// setPrice sets the price that applies, and leaves the model as it is if there is none.
func (v view) setPrice(m *model.Model, url string) {
	p, ok := v.prices.Of(registry.Key{Provider: m.Provider, ID: m.ID}, url)
	if !ok {
		return
	}
	m.Known, m.PriceVersion, m.PriceFrom = true, p.Version, p.From
	m.InputPrice, m.OutputPrice, m.ReasonPrice = int64(p.Prices.Input), int64(p.Prices.Output), int64(p.Prices.Reasoning)
	m.CachedPrice, m.WritePrice = int64(p.Prices.Cached), int64(p.Prices.Write)
}

// rows returns the models of a provider in a life cycle, in the order of their creation.
func (v view) rows(name string, life api.Lifecycle, url string) (all []registry.Row) {
	for _, r := range v.state.Rows {
		if r.Provider == name && r.Lifecycle == life && r.URL == url {
			all = append(all, r)
		}
	}
	return all
}

// models returns the models of the provider: those of the settings, then those that the
// operator has declared, then the others.
func (s *source) models(v view) []model.Model {
	name := s.provider.Name()
	set := slices.Clone(s.static)
	for i := range set {
		set[i].Lifecycle = api.LifeOperator
		if _, ok := v.prices.By(registry.Key{Provider: name, ID: set[i].ID}, api.LifeOperator, ""); ok {
			v.setPrice(&set[i], s.url)
		}
	}
	for _, r := range v.rows(name, api.LifeOperator, "") {
		if !slices.ContainsFunc(set, func(m model.Model) bool { return m.ID == r.ID }) {
			set = append(set, v.model(r, s.url))
		}
	}
	var known []model.Model
	for _, r := range v.rows(name, api.LifeBaseline, "") {
		known = append(known, v.model(r, s.url))
	}
	state := v.state.List(name, s.url)
	switch {
	case s.url != "" && state == registry.ListRead:
		return s.fromList(v, set, known)
	case len(s.static) > 0 && !s.official:
		return set
	case s.official || state == registry.ListNone:
		return append(known, set...)
	}
	return set
}

// fromList joins the list with the models that the settings, the operator (set) and the
// program (known) have. A model that is not listed is marked as absent.
func (s *source) fromList(v view, set, known []model.Model) []model.Model {
	rows := v.rows(s.provider.Name(), api.LifeDiscovered, s.url)
	listed, gone := map[string]registry.Row{}, map[string]int64{}
	for _, r := range rows {
		if r.VanishedAt == 0 {
			listed[r.ID] = r
		} else {
			gone[r.ID] = r.VanishedAt
		}
	}
	var out []model.Model
	seen := map[string]bool{}
	chosen := false // a model of the settings or of the operator is listed
	for _, m := range set {
		r, ok := listed[m.ID]
		if !ok {
			r, ok = listed[m.ID+":latest"] // Ollama's full name of the model
		}
		if ok {
			m.ID, chosen = r.ID, true
			m.Tools, m.Vision = m.Tools && r.Tools, m.Vision || r.Vision
		} else {
			s.absent(&m, gone)
		}
		seen[m.ID] = true
		out = append(out, m)
	}
	for _, m := range known {
		isVersion := func(r registry.Row) bool { return r.VanishedAt == 0 && undated(r.ID) == m.ID }
		if !s.official || seen[m.ID] || listed[m.ID].ID != "" {
			continue
		}
		if !slices.ContainsFunc(rows, isVersion) {
			s.absent(&m, gone)
		}
		seen[m.ID] = true
		out = append(out, m)
	}
	for _, r := range rows {
		if !seen[r.ID] {
			m := s.fromRow(v, r, known)
			if r.VanishedAt != 0 {
				s.absent(&m, gone)
			}
			out = append(out, m)
		}
	}
	if s.local && !chosen {
		chooseDefault(out)
	}
	return out
}

// absent marks a model as one that the list does not have, or has no more.
func (s *source) absent(m *model.Model, gone map[string]int64) {
	m.Absent = s.url + " does not list it"
	if at := gone[m.ID]; at != 0 {
		m.Vanished = at
		m.Absent = s.url + " does not list it any more, since " + time.UnixMicro(at).UTC().Format(time.DateTime)
	}
}

// fromRow returns a listed model that the settings and the operator do not name.
func (s *source) fromRow(v view, r registry.Row, known []model.Model) model.Model {
	_, priced := v.prices.By(r.Key(), api.LifeDiscovered, s.url)
	for _, m := range known {
		if priced {
			break
		}
		if m.ID == r.ID {
			return m
		}
		if m.ID == undated(r.ID) { // the model without a date is the fallback
			m.ID, m.Fallback, m.Lifecycle = r.ID, false, api.LifeDiscovered
			v.setPrice(&m, s.url)
			return m
		}
	}
	m := model.Model{
		ID: r.ID, Provider: r.Provider, ContextWindow: r.ContextWindow, MaxOutput: maxOutput(r.MaxOutput, r.ContextWindow), Tools: r.Tools, Vision: r.Vision,
		TierMinimum: api.TierCritical, Lifecycle: api.LifeDiscovered,
	}
	v.setPrice(&m, s.url)
	switch {
	case r.NotChat:
		m.Absent = "it is not made for conversations"
	case r.Remote != "" && !m.Known:
		m.Absent = "price unknown: it runs at " + r.Remote + "; " + priceHint
	case !m.Known && s.local:
		m.Known = true
	case !m.Known:
		m.Absent = "price unknown: " + s.url + " does not give it; " + priceHint
	}
	return m
}

// undated returns a model id without the date of its version, as in
// claude-haiku-4-5-20251001.
func undated(id string) string {
	at := strings.LastIndexByte(id, '-')
	if at < 0 || len(id)-at != len("-20251001") || strings.Trim(id[at+1:], "0123456789") != "" {
		return id
	}
	return id[:at]
}

const priceHint = "set it with anima model set-price, or in ANIMA_INFERENCE_ROUTER_MODELS"

// maxOutput returns the output limit of a listed model, at most a quarter of its window;
// the rest is for the prompt.
func maxOutput(listed, window int64) int64 {
	most := int64(4096)
	if listed > 0 {
		most = listed
	}
	if window > 0 {
		most = min(most, window/4)
	}
	return max(1, most)
}

// chooseDefault marks one free model as the fallback for agents that request no model:
// the first one that takes tools, else the first one. With more than one, a local server
// would load one model after another.
func chooseDefault(models []model.Model) {
	best := -1
	for i, m := range models {
		if m.Unusable() == "" && m.Free() && (best < 0 || m.Tools && !models[best].Tools) {
			best = i
		}
	}
	if best >= 0 {
		models[best].Fallback = true
	}
}

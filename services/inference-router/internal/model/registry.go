package model

import (
	"fmt"

	"github.com/anima-run/anima/pkg/api"
)

// Registry is an immutable set of models and the routing matrix over them.
type Registry struct {
	models map[string]Model
	order  []string // order of registration; a model that replaces another keeps its position
	matrix map[api.Tier]map[api.Task]Cell
}

// NewRegistry returns a registry of the models in the given order. Of two models with the
// same id, it uses the later one. It returns an error for a model without id or provider,
// with a negative price or limit, or with an unknown token parameter.
func NewRegistry(models ...Model) (*Registry, error) {
	r := &Registry{models: map[string]Model{}, matrix: Matrix()}
	for _, m := range models {
		if m.ID == "" || m.Provider == "" {
			return nil, fmt.Errorf("model %q of provider %q: id and provider are both needed", m.ID, m.Provider)
		}
		if min(m.InputPrice, m.OutputPrice, m.CachedPrice, m.WritePrice, m.ContextWindow, m.MaxOutput) < 0 {
			return nil, fmt.Errorf("model %q: prices and limits cannot be negative", m.ID)
		}
		switch m.TokenParam {
		case "":
			m.TokenParam = MaxTokens
		case MaxTokens, MaxCompletionTokens:
		default:
			return nil, fmt.Errorf("model %q: token parameter %q is neither %s nor %s", m.ID, m.TokenParam, MaxTokens, MaxCompletionTokens)
		}
		if _, ok := r.models[m.ID]; !ok {
			r.order = append(r.order, m.ID)
		}
		r.models[m.ID] = m
	}
	return r, nil
}

// Get returns the model with an id, usable or not. If there is none, Get looks for the id
// with the vendor prefix of OpenRouter (openai/gpt-5-mini) and then with Ollama's default
// tag (llama3.3:latest).
func (r *Registry) Get(id string) (Model, bool) {
	for _, name := range [...]string{id, "openai/" + id, id + ":latest"} {
		if m, ok := r.models[name]; ok {
			return m, true
		}
	}
	return Model{}, false
}

// All returns all models, usable or not, in order of registration.
func (r *Registry) All() []Model {
	all := make([]Model, 0, len(r.order))
	for _, id := range r.order {
		all = append(all, r.models[id])
	}
	return all
}

// Baseline returns OpenAI's six models with their exact list prices
// (docs/reference/inference-router.md, Baseline models).
func Baseline() []Model {
	base := func(id string, tier api.Tier, in, out, maxOutput int64) Model {
		return Model{
			ID: id, Provider: "openai", TierMinimum: tier,
			InputPrice: in, OutputPrice: out, Known: true,
			ContextWindow: 1_047_576, MaxOutput: maxOutput,
			Tools: true, TokenParam: MaxCompletionTokens,
		}
	}
	return []Model{
		base("gpt-5.2", api.TierNormal, 1_750_000, 14_000_000, 32_768),
		base("gpt-5.3", api.TierNormal, 2_000_000, 8_000_000, 32_768),
		base("gpt-5-mini", api.TierLow, 800_000, 3_200_000, 16_384),
		base("gpt-4.1", api.TierNormal, 2_000_000, 8_000_000, 32_768),
		base("gpt-4.1-mini", api.TierLow, 400_000, 1_600_000, 16_384),
		base("gpt-4.1-nano", api.TierCritical, 100_000, 400_000, 16_384),
	}
}

// Claude returns Anthropic's models with their list prices. An id stands for all versions
// of its model: the API lists them with a date.
func Claude() []Model {
	claude := func(id string, tier api.Tier, in, out, window, maxOutput int64) Model {
		return Model{
			ID: id, Provider: "anthropic", TierMinimum: tier, InputPrice: in, OutputPrice: out, Known: true,
			CachedPrice: in / 10, WritePrice: in + in/4, // a mark of the cache is valid for five minutes
			ContextWindow: window, MaxOutput: maxOutput, Tools: true,
		}
	}
	const usd = 1_000_000
	sonnet := claude("claude-sonnet-4-5", api.TierNormal, 3*usd, 15*usd, 200_000, 64_000)
	haiku := claude("claude-haiku-4-5", api.TierCritical, 1*usd, 5*usd, 200_000, 64_000)
	sonnet.Fallback, haiku.Fallback = true, true
	return []Model{
		sonnet, haiku,
		claude("claude-sonnet-4-6", api.TierNormal, 3*usd, 15*usd, 200_000, 64_000),
		claude("claude-opus-4-5", api.TierHigh, 5*usd, 25*usd, 200_000, 64_000),
		claude("claude-opus-4-6", api.TierHigh, 5*usd, 25*usd, 200_000, 64_000),
		claude("claude-opus-4-7", api.TierHigh, 5*usd, 25*usd, 200_000, 64_000),
		claude("claude-opus-4-8", api.TierHigh, 5*usd, 25*usd, 200_000, 64_000),
		claude("claude-opus-5", api.TierHigh, 5*usd, 25*usd, 200_000, 64_000),
	}
}

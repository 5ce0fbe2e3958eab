package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"
)

// Registry is an immutable set of models.
type Registry struct {
	models    []Model        // in order of registration; a model that replaces another keeps its position
	index     map[string]int // positions by id and by the short forms of Registry.find
	fallbacks []int          // positions of the models with Fallback
}

// NewRegistry returns a registry of the models in the given order. Of two models with the
// same id, it uses the later one. It returns an error for a model without id or provider,
// with a negative price or limit, or with an unknown token parameter.
func NewRegistry(models ...Model) (*Registry, error) {
	r := &Registry{index: map[string]int{}}
	for _, m := range models {
		if m.ID == "" || m.Provider == "" {
			return nil, fmt.Errorf("model %q of provider %q: id and provider are both needed", m.ID, m.Provider)
		}
		if min(m.InputPrice, m.OutputPrice, m.CachedPrice, m.WritePrice, m.ReasonPrice, m.ContextWindow, m.MaxOutput) < 0 {
			return nil, fmt.Errorf("model %q: prices and limits cannot be negative", m.ID)
		}
		switch m.TokenParam {
		case "":
			m.TokenParam = MaxTokens
		case MaxTokens, MaxCompletionTokens:
		default:
			return nil, fmt.Errorf("model %q: token parameter %q is neither %s nor %s", m.ID, m.TokenParam, MaxTokens, MaxCompletionTokens)
		}
		m.ImageTokens = chat.DenseImages(m.ID)
		at, ok := r.index[m.ID]
		if !ok {
			at = len(r.models)
			r.index[m.ID] = at
			r.models = append(r.models, Model{})
		}
		r.models[at] = m
	}
	r.indexShort(func(id string) (string, bool) { return strings.CutPrefix(id, "openai/") })
	r.indexShort(func(id string) (string, bool) { return strings.CutSuffix(id, ":latest") })
	for at := range r.models {
		if r.models[at].Fallback {
			r.fallbacks = append(r.fallbacks, at)
		}
	}
	return r, nil
}

// indexShort adds the short forms of the ids that have one and are not taken.
func (r *Registry) indexShort(short func(string) (string, bool)) {
	for at := range r.models {
		if id, ok := short(r.models[at].ID); ok {
			if _, taken := r.index[id]; !taken {
				r.index[id] = at
			}
		}
	}
}

// Find is the search for a requested model, see Registry.find. The caller must not change
// the model.
func (r *Registry) Find(id string) *Model { return r.find(id) }

// find returns the model with an id, usable or not; nil if there is none. It looks for the
// id, then with the vendor prefix of OpenRouter (openai/gpt-5-mini), and then with Ollama's
// default tag (llama3.3:latest).
func (r *Registry) find(id string) *Model {
	if at, ok := r.index[id]; ok {
		return &r.models[at]
	}
	return nil
}

// All returns all models, usable or not, in order of registration.
func (r *Registry) All() []Model { return slices.Clone(r.models) }

// Baseline returns OpenAI's six models with their exact list prices
// (docs/reference/inference-router.md, Baseline models).
func Baseline() []Model {
	base := func(id string, tier api.Tier, in, out, maxOutput int64) Model {
		return Model{
			ID: id, Provider: "openai", TierMinimum: tier,
			InputPrice: in, OutputPrice: out, Known: true,
			ContextWindow: 1_047_576, MaxOutput: maxOutput,
			Tools: true, Vision: id != "gpt-4.1-nano", TokenParam: MaxCompletionTokens, Lifecycle: api.LifeBaseline,
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
			ContextWindow: window, MaxOutput: maxOutput, Tools: true, Vision: true, Lifecycle: api.LifeBaseline,
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

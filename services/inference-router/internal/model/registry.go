package model

import (
	"fmt"
	"maps"
	"slices"
)

// Registry is an immutable set of models and the routing matrix over them.
type Registry struct {
	models map[string]Model
	order  []string // as given; later models with the same id keep the first place
	matrix map[Tier]map[Task]Cell
}

// NewRegistry holds the models in the order given; of two with one id the later
// stands. It refuses a model without id or provider, and with a negative number.
func NewRegistry(models ...Model) (*Registry, error) {
	return (&Registry{models: map[string]Model{}, matrix: Matrix()}).With(models...)
}

// With is a registry that also holds these models, which replace those of the
// same id. The receiver does not change.
func (r *Registry) With(models ...Model) (*Registry, error) {
	next := &Registry{models: maps.Clone(r.models), order: slices.Clone(r.order), matrix: r.matrix}
	for _, m := range models {
		if m.ID == "" || m.Provider == "" {
			return nil, fmt.Errorf("model %q of provider %q: id and provider are both needed", m.ID, m.Provider)
		}
		if min(m.InputPrice, m.OutputPrice, m.ContextWindow, m.MaxOutput) < 0 {
			return nil, fmt.Errorf("model %q: prices and limits cannot be negative", m.ID)
		}
		switch m.TokenParam {
		case "":
			m.TokenParam = MaxTokens
		case MaxTokens, MaxCompletionTokens:
		default:
			return nil, fmt.Errorf("model %q: token parameter %q is neither %s nor %s", m.ID, m.TokenParam, MaxTokens, MaxCompletionTokens)
		}
		if _, ok := next.models[m.ID]; !ok {
			next.order = append(next.order, m.ID)
		}
		next.models[m.ID] = m
	}
	return next, nil
}

// Get is the model with that id, usable or not. An id that is not there is looked
// for with the vendor of OpenRouter's names before it (openai/gpt-5-mini) and with
// the tag of Ollama's after it (llama3.3:latest).
func (r *Registry) Get(id string) (Model, bool) {
	for _, name := range [...]string{id, "openai/" + id, id + ":latest"} {
		if m, ok := r.models[name]; ok {
			return m, true
		}
	}
	return Model{}, false
}

// All models, usable or not, in registration order.
func (r *Registry) All() []Model {
	all := make([]Model, 0, len(r.order))
	for _, id := range r.order {
		all = append(all, r.models[id])
	}
	return all
}

// Baseline is the six models of spec 6.2 with their list prices. The spec's
// table rounds 1.75 $/M up to whole hundredths of a cent per thousand tokens;
// here it is exact.
func Baseline() []Model {
	base := func(id string, tier Tier, in, out, maxOutput int64) Model {
		return Model{
			ID: id, Provider: "openai", TierMinimum: tier,
			InputPrice: in, OutputPrice: out, Known: true,
			ContextWindow: 1_047_576, MaxOutput: maxOutput,
			Tools: true, TokenParam: MaxCompletionTokens,
		}
	}
	return []Model{
		base("gpt-5.2", TierNormal, 1_750_000, 14_000_000, 32_768),
		base("gpt-5.3", TierNormal, 2_000_000, 8_000_000, 32_768),
		base("gpt-5-mini", TierLow, 800_000, 3_200_000, 16_384),
		base("gpt-4.1", TierNormal, 2_000_000, 8_000_000, 32_768),
		base("gpt-4.1-mini", TierLow, 400_000, 1_600_000, 16_384),
		base("gpt-4.1-nano", TierCritical, 100_000, 400_000, 16_384),
	}
}

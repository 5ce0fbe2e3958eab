package api

import "strings"

// Messages of inference-router about its registry of models
// (docs/reference/inference-router.md, Registry), and of loop about the model that an agent
// has chosen.
//
// History: v1 2026-11 first version.

// Lifecycle says who adds, changes and removes a model of the registry. Each life cycle has
// its own rows: the rows of one are never written on behalf of another.
type Lifecycle string

// The life cycles.
const (
	LifeBaseline   Lifecycle = "baseline"   // a release of the program
	LifeDiscovered Lifecycle = "discovered" // the list of models of a provider
	LifeOperator   Lifecycle = "operator"   // the operator, by [AddModel] or the settings
)

// Prices are the prices of a model, in micro-USD per million tokens.
type Prices struct {
	Input     Micros `json:"input"`
	Output    Micros `json:"output"`
	Cached    Micros `json:"cached,omitempty"`    // prompt tokens read from the provider's cache; 0: Input
	Write     Micros `json:"write,omitempty"`     // prompt tokens written to the provider's cache; 0: Input
	Reasoning Micros `json:"reasoning,omitempty"` // answer tokens that are not part of the text; 0: Output
}

// MaxPrice is the highest price of a million tokens that the registry takes.
const MaxPrice = 1_000_000 * Dollar

// Fault returns why the prices cannot be used, "" if they can.
func (p Prices) Fault() string {
	for _, v := range []Micros{p.Input, p.Output, p.Cached, p.Write, p.Reasoning} {
		if v < 0 || v > MaxPrice {
			return "a price is from $0 to " + MaxPrice.String() + " for a million tokens"
		}
	}
	return ""
}

// ModelPrice is one version of the prices of a model. Versions are never changed: another
// price is another version, with a higher number.
type ModelPrice struct {
	Provider  string    `json:"provider"`
	Model     string    `json:"model"`
	Version   int64     `json:"version"`
	Lifecycle Lifecycle `json:"lifecycle"` // who has set it
	Prices    Prices    `json:"prices"`
	From      int64     `json:"from"`                  // Unix microseconds from which it applies
	At        int64     `json:"at"`                    // when it was stored
	Withdrawn int64     `json:"withdrawnAt,omitempty"` // when it was withdrawn with the operator's model; 0: it was not
	InUse     bool      `json:"inUse"`                 // it is the price of calls now
}

// AddModel declares a model of a provider, or replaces the declaration. Only the operator
// may send it. A model that the list of the provider has may be declared: the declaration
// precedes the list. The answer is the [Model]. The same request again changes nothing.
// Errors: Invalid (no id, no such provider, prices or limits out of range), Conflict (a
// baseline model, whose price [SetModelPrice] sets).
type AddModel struct {
	Model         string `json:"model"`
	Provider      string `json:"provider,omitempty"` // "": the first configured one
	Prices        Prices `json:"prices"`
	ContextWindow int64  `json:"contextWindow,omitempty"` // tokens; 0: unknown, which fits every prompt
	MaxOutput     int64  `json:"maxOutput,omitempty"`     // tokens; 0: 4096, at most a quarter of the window
	TierMinimum   Tier   `json:"tierMinimum,omitempty"`   // "": critical
	NoTools       bool   `json:"noTools,omitempty"`       // it takes no tool definitions
	Vision        bool   `json:"vision,omitempty"`        // it sees images
	Fallback      bool   `json:"fallback,omitempty"`      // it may be chosen without being named or in the matrix
}

// SetModelPrice sets the price of a model of any life cycle. The operator's price precedes
// that of the list and of the program. The answer is the [Model]. The same price again
// changes nothing. Errors: NotFound (no such model), Invalid (prices out of range, a From in
// the past).
type SetModelPrice struct {
	Model    string `json:"model"`
	Provider string `json:"provider,omitempty"` // "": the only provider that has the model
	Prices   Prices `json:"prices"`
	From     int64  `json:"from,omitempty"` // Unix microseconds; 0: now
}

// RemoveModel removes what the operator has set about a model: its declaration and its
// prices, which are withdrawn and not deleted. It also removes a model that has vanished
// from the list of its provider, and so ends the alert. Errors: NotFound, Conflict (a model
// that the program or the list of the provider has, without prices of the operator).
type RemoveModel struct {
	Model    string `json:"model"`
	Provider string `json:"provider,omitempty"` // "": the only provider that has the model
}

// RefreshModels reads the lists of the providers now, which the router also does each
// minute. The answer is the [Models].
type RefreshModels struct{}

// ListModelPrices requests the [ModelPrices] of a model, or of all models. Errors: NotFound
// (Model), Invalid (Provider).
type ListModelPrices struct {
	Model    string `json:"model,omitempty"`    // "": all models
	Provider string `json:"provider,omitempty"` // "": all providers
}

// ModelPrices holds versions of prices, by model, the latest first; at most 1000.
type ModelPrices struct {
	Prices []ModelPrice `json:"prices"`
}

// RegistryKey is the key of the [RegistryChange] in the coordination bucket.
const RegistryKey = "models"

// RegistryChange announces that the registry in the router's store has changed. Every
// replica reads the store then.
type RegistryChange struct {
	Generation int64  `json:"generation"` // of the registry, increases with each change
	By         string `json:"by"`         // the owner that made the change
}

// ChooseModel sets how an agent thinks, from its next model call on: it replaces the choice
// before. Loop stores it with the agent; a new definition of the agent ends it. The router
// sends it for the tools switch_model and enter_low_compute, after it has checked the model.
// The answer is the [Agent]. The same choice again changes nothing. Errors: NotFound,
// Invalid.
type ChooseModel struct {
	Agent string `json:"agent"`
	Model string `json:"model,omitempty"` // preferred model; "": that of the definition
	// LowCompute limits the agent to the tier low_compute, whatever its balance is, and
	// its prompts to [LowComputeWindow].
	LowCompute bool `json:"lowCompute,omitempty"`
}

// LowComputeWindow is the context window of an agent in low compute, in tokens: a quarter of
// the default window. The hold of a prompt of this size and of an answer of 4096 tokens is
// 6.4 cents by the price of gpt-5-mini, below the ceiling of 10 cents of the tier
// low_compute.
const LowComputeWindow = 32_000

// LowCompute returns the tier of an agent that has entered low compute: t, but at most
// low_compute.
func (t Tier) LowCompute() Tier {
	switch t {
	case TierHigh, TierNormal, TierUnknown:
		return TierLow
	case TierLow, TierCritical, TierDead:
	}
	return t
}

// ValidModelID reports whether a text can be the id of a model: up to 200 bytes without
// spaces and control characters.
func ValidModelID(id string) bool {
	return id != "" && len(id) <= maxModelID && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\uFFFD' })
}

func (ChooseModel) Subject() Subject     { return request(Loop, "choose_model") }
func (AddModel) Subject() Subject        { return request(Inference, "add_model") }
func (SetModelPrice) Subject() Subject   { return request(Inference, "set_model_price") }
func (RemoveModel) Subject() Subject     { return request(Inference, "remove_model") }
func (RefreshModels) Subject() Subject   { return request(Inference, "refresh_models") }
func (ListModelPrices) Subject() Subject { return request(Inference, "list_model_prices") }

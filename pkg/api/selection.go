package api

// Messages of inference-router about the selection of models
// (docs/reference/inference-router.md, Selection).
//
// History: v1 2026-11 first version.

// ExplainRoute requests the [Route] of a model call without making it. The router uses
// the same selection as for a call, with the models, prices and matrix of that time.
//
// Errors: NotFound (no such agent), Invalid (unknown task or tier), Unavailable.
type ExplainRoute struct {
	Agent string `json:"agent,omitempty"` // whose available credits limit the call; "": no credits are considered
	Tier  Tier   `json:"tier,omitempty"`  // "": that of the agent's balance
	Task  Task   `json:"task,omitempty"`  // "": agent_turn
	Model string `json:"model,omitempty"` // preference

	// LowCompute limits the tier to low_compute, as for an agent that has chosen that.
	LowCompute bool `json:"lowCompute,omitempty"`

	PromptTokens int64 `json:"promptTokens,omitempty"` // of the prompt with its tools
	ToolTokens   int64 `json:"toolTokens,omitempty"`   // of PromptTokens, those of the tools; 0: the prompt has no tools
	Images       int64 `json:"images,omitempty"`       // number of images in the prompt; PromptTokens includes their tokens
	MaxTokens    int64 `json:"maxTokens,omitempty"`    // 0: by the routing matrix
}

// Route is the selection of a model for a call. The first usable candidate is the one that
// is called; the next usable one is called if it fails.
type Route struct {
	Tier       Tier        `json:"tier"`
	Task       Task        `json:"task"`
	Chosen     string      `json:"chosen,omitempty"`    // id of the model; "": none can be called
	MaxTokens  int64       `json:"maxTokens,omitempty"` // output limit of the matrix; 0: the matrix does not serve the task in the tier
	Ceiling    Micros      `json:"ceiling"`             // of one call, by the matrix; -1: none
	Available  Micros      `json:"available"`           // credits of the agent; -1: not considered
	TimeoutMS  int64       `json:"timeoutMs"`           // for all attempts together
	Candidates []Candidate `json:"candidates"`          // in the order to try them
}

// Candidate is a model that was considered for a call.
type Candidate struct {
	Model        string `json:"model"`
	Provider     string `json:"provider,omitempty"` // "": no model has this id
	Usable       bool   `json:"usable"`
	Why          string `json:"why,omitempty"`          // why it is not usable
	MaxTokens    int64  `json:"maxTokens"`              // output limit of the call
	Cost         Micros `json:"cost"`                   // the most that the call can cost: the amount of its hold; 0 if the price is unknown
	Fewer        bool   `json:"fewerTokens,omitempty"`  // MaxTokens is lowered to fit the window or the money
	WithoutTools bool   `json:"withoutTools,omitempty"` // the model takes no tools: they are left out
}

// Tiers returns the known tiers, the richest first.
func Tiers() []Tier { return []Tier{TierHigh, TierNormal, TierLow, TierCritical, TierDead} }

// Tasks returns the five tasks.
func Tasks() []Task {
	return []Task{TaskTurn, TaskTriage, TaskSafety, TaskSummary, TaskPlanning}
}

func (ExplainRoute) Subject() Subject { return request(Inference, "explain_route") }

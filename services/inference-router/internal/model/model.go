// Package model describes the models: which exist, their prices and token limits, and
// which of them may serve an agent of a given survival tier
// (docs/reference/inference-router.md, Routing matrix and Baseline models).
//
// It must not do I/O, hold credits or depend on a provider's protocol. All amounts are
// int64 micro-USD. All values are immutable and safe for concurrent use.
package model

import (
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// rank orders tiers by balance. A model is allowed from its minimum tier upwards. The
// unknown tier of a balance that could not be read is routed like normal.
func rank(t api.Tier) int {
	switch t {
	case api.TierHigh:
		return 4
	case api.TierNormal, api.TierUnknown:
		return 3
	case api.TierLow:
		return 2
	case api.TierCritical:
		return 1
	case api.TierDead:
		return 0
	}
	return 0 // an unknown tier allows no model
}

// Timeout returns the limit of a call with all its candidates and retries
// (docs/reference/inference-router.md, Tasks). An unknown task has the longest limit.
func Timeout(task api.Task) time.Duration {
	switch task {
	case api.TaskTriage:
		return 15 * time.Second
	case api.TaskSafety:
		return 30 * time.Second
	case api.TaskSummary:
		return 60 * time.Second
	case api.TaskTurn, api.TaskPlanning:
	}
	return 120 * time.Second
}

// TokenParam is the request field for the output limit of a model. The zero value is
// max_tokens.
type TokenParam string

// The two fields in use.
const (
	MaxTokens           TokenParam = "max_tokens"
	MaxCompletionTokens TokenParam = "max_completion_tokens"
)

// Model describes one model of one provider.
type Model struct {
	ID            string
	Provider      string
	ContextWindow int64 // tokens of prompt and answer together; 0: unknown
	MaxOutput     int64 // tokens; 0: unknown
	InputPrice    int64 // micro-USD per million tokens
	OutputPrice   int64 // micro-USD per million tokens
	CachedPrice   int64 // of prompt tokens that the provider reads from its cache; 0: InputPrice
	WritePrice    int64 // of prompt tokens that the provider writes to its cache; 0: InputPrice
	ReasonPrice   int64 // of answer tokens that are not part of the text; 0: OutputPrice
	PriceVersion  int64 // of the prices in the store; 0: they are those of the settings or of the program
	PriceFrom     int64 // Unix microseconds from which the prices apply; 0: always
	// Known says that the prices are known. A model with unknown prices cannot be used; a
	// known price of 0 is free.
	Known       bool
	Tools       bool  // accepts tool definitions
	Vision      bool  // sees images
	ImageTokens int64 // of an image, beyond those of chat.ImageTokens
	TokenParam  TokenParam
	TierMinimum api.Tier // lowest tier that may choose it outside the matrix
	// Fallback allows the model for each tier and task of the matrix, after the
	// candidates of the matrix and within TierMinimum. Local models and the simulated
	// model use it.
	Fallback bool
	Absent   string // the reason why its provider does not serve it; empty if it does

	Lifecycle api.Lifecycle
	Vanished  int64 // Unix microseconds at which the list of its provider had it no more; 0: it did not vanish
}

// Free reports whether the model is known to cost nothing.
func (m Model) Free() bool {
	return m.Known && max(m.InputPrice, m.CachedPrice, m.WritePrice, m.dearestOutput()) == 0
}

// Unusable returns the reason why the model may not be called; empty if it may.
func (m Model) Unusable() string {
	switch {
	case m.Absent != "":
		return m.Absent
	case !m.Known:
		return "price unknown"
	}
	return ""
}

// Fits reports whether a prompt and an answer of these numbers of tokens fit the context
// window. An unknown window fits everything.
func (m Model) Fits(prompt, output int64) bool {
	return m.ContextWindow == 0 || prompt <= m.ContextWindow-output
}

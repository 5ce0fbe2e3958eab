// Package model is what the router knows about models without calling one:
// which exist, what they cost, how many tokens a prompt may be, and which of
// them may serve an agent of a given survival tier (spec 6.2 and 6.3).
//
// It does no I/O, holds no money and knows no provider's protocol. All amounts
// are int64 micro-USD; all values are safe to share, nothing here changes after
// it is built.
package model

import "time"

// Tier is an agent's survival tier, in the words of the contracts. The zero
// value means that the balance is not known, which is not the same as poor: it
// routes like normal.
type Tier string

// The tiers, from well funded to dead (design §1).
const (
	TierUnknown  Tier = ""
	TierHigh     Tier = "high"
	TierNormal   Tier = "normal"
	TierLow      Tier = "low_compute"
	TierCritical Tier = "critical"
	TierDead     Tier = "dead"
)

// rank orders tiers by wealth; a model is allowed from its minimum upwards.
func (t Tier) rank() int {
	switch t {
	case TierHigh:
		return 4
	case TierNormal, TierUnknown:
		return 3
	case TierLow:
		return 2
	case TierCritical:
		return 1
	case TierDead:
		return 0
	}
	return 0 // a word that is not a tier allows nothing
}

// Task is what a model call is for (spec 6.1).
type Task string

// The five tasks that the routing matrix knows.
const (
	TaskTurn     Task = "agent_turn"
	TaskTriage   Task = "heartbeat_triage"
	TaskSafety   Task = "safety_check"
	TaskSummary  Task = "summarization"
	TaskPlanning Task = "planning"
)

// Timeout is how long the whole call may take, every candidate and retry
// included (spec 6.1, 6.9). A task that is not known has the longest.
func (t Task) Timeout() time.Duration {
	switch t {
	case TaskTriage:
		return 15 * time.Second
	case TaskSafety:
		return 30 * time.Second
	case TaskSummary:
		return 60 * time.Second
	case TaskTurn, TaskPlanning:
	}
	return 120 * time.Second
}

// TokenParam is the request field in which a model takes its output limit. The
// zero value is max_tokens.
type TokenParam string

// The two fields in use.
const (
	MaxTokens           TokenParam = "max_tokens"
	MaxCompletionTokens TokenParam = "max_completion_tokens"
)

// Model is one model of one provider.
type Model struct {
	ID            string
	Provider      string
	ContextWindow int64 // tokens of prompt and answer together; 0: not known
	MaxOutput     int64 // tokens; 0: not known
	InputPrice    int64 // micro-USD per million tokens
	OutputPrice   int64 // micro-USD per million tokens
	// Known says that the prices are. A model without known prices cannot be
	// used; one that is known to cost 0 is free.
	Known       bool
	Tools       bool // takes tool definitions
	TokenParam  TokenParam
	TierMinimum Tier // poorest tier that may choose it outside the matrix
	// Fallback lets the model serve any tier and task that the matrix serves,
	// after the matrix' own candidates and within TierMinimum: local models, the
	// simulated one.
	Fallback bool
	Disabled bool
	Absent   string // why its provider does not serve it; empty when it does
}

// Free says that the model is known to cost nothing.
func (m Model) Free() bool { return m.Known && m.InputPrice == 0 && m.OutputPrice == 0 }

// Unusable says why the model may not be called at all; empty when it may.
func (m Model) Unusable() string {
	switch {
	case m.Disabled:
		return "disabled"
	case m.Absent != "":
		return m.Absent
	case !m.Known:
		return "price unknown"
	}
	return ""
}

// Fits says whether a prompt and an answer of so many tokens go into the
// context window. A window that is not known refuses nothing.
func (m Model) Fits(prompt, output int64) bool {
	return m.ContextWindow == 0 || prompt <= m.ContextWindow-output
}

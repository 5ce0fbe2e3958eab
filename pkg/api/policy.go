package api

import "encoding/json"

// policy judges every tool call before it may run (design §6).
//
// History: v1 2026-11 first version.

// Action is what policy says of a call.
type Action string

// The actions. Quarantine is refused today; it becomes a durable approval
// request when approvals arrive.
const (
	Allow      Action = "allow"
	Deny       Action = "deny"
	Quarantine Action = "quarantine"
)

// Evaluate asks whether a call may run. The answer, [Decision], is stored
// before it is sent. Asking again for the same turn and index with the same
// arguments returns the stored decision, with a fresh token if it allowed.
// Errors: Invalid (no tool, arguments over 256 KiB), Conflict (same turn and
// index, other arguments). A refusal is a Decision, not an error.
type Evaluate struct {
	Agent     string          `json:"agent"`
	Session   string          `json:"session"`
	Run       string          `json:"run"`
	Turn      string          `json:"turn"`
	Index     int             `json:"index"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	By        Principal       `json:"by"`
	Workspace string          `json:"workspace"`         // absolute folder the tools work in
	Tools     []string        `json:"tools"`             // tools that the agent's definition grants
	Network   bool            `json:"network,omitempty"` // its sandbox may reach the network
}

// Subject of the message.
func (Evaluate) Subject() Subject { return request(Policy, "evaluate") }

// Decision is what policy decided, and the token to act on it.
type Decision struct {
	ID        string    `json:"id"`
	Agent     string    `json:"agent"`
	Session   string    `json:"session"`
	Turn      string    `json:"turn"`
	Index     int       `json:"index"`
	Tool      string    `json:"tool"`
	ArgsHash  string    `json:"argsHash"`
	By        Principal `json:"by"`
	Authority int       `json:"authority"`
	Risk      string    `json:"risk"` // safe, caution, dangerous, forbidden
	Action    Action    `json:"action"`
	Code      string    `json:"code"` // ALLOWED, PROTECTED_FILE, … (spec-core-2 §4.3)
	Message   string    `json:"message,omitempty"`
	Evaluated []string  `json:"evaluated"`
	Triggered []string  `json:"triggered"`
	Version   string    `json:"version"` // of the rules
	Trace     string    `json:"trace,omitempty"`
	LatencyUS int64     `json:"latencyUs"`
	At        int64     `json:"at"`
	Token     string    `json:"token,omitempty"` // only in the answer, only when allowed
}

// ListDecisions answers [Decisions], the latest first; empty filters match
// everything, Limit 0 means 50. Errors: Invalid (limit, After).
type ListDecisions struct {
	Agent string `json:"agent,omitempty"`
	Turn  string `json:"turn,omitempty"`
	After string `json:"after,omitempty"` // Next of the page before
	Limit int    `json:"limit,omitempty"`
}

// Subject of the message.
func (ListDecisions) Subject() Subject { return request(Policy, "list_decisions") }

// Decisions is a list of decisions.
type Decisions struct {
	Decisions []Decision `json:"decisions"`
	Page
}

// ListRules answers [Rules], in the order they are evaluated.
type ListRules struct{}

// Subject of the message.
func (ListRules) Subject() Subject { return request(Policy, "list_rules") }

// Rules is the rule book in force.
type Rules struct {
	Version string `json:"version"`
	Rules   []Rule `json:"rules"`
}

// Rule is one rule, for people.
type Rule struct {
	ID       string   `json:"id"`
	Priority int      `json:"priority"`
	Tools    []string `json:"tools,omitempty"` // none: every tool
	Does     string   `json:"does"`
	Codes    []string `json:"codes"`
}

// ListKeys answers [Keys]: who may sign a decision token now.
type ListKeys struct{}

// Subject of the message.
func (ListKeys) Subject() Subject { return request(Policy, "list_keys") }

// Keys are Ed25519 public keys.
type Keys struct {
	Keys [][]byte `json:"keys"`
}

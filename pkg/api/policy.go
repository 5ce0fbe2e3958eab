package api

import "encoding/json"

// Messages of policy, which decides on every tool call before it is executed
// (docs/reference/policy.md, Evaluation).
//
// History: v1 2026-11 first version.

// Action is the result of a decision.
type Action string

// The actions. Quarantine means that an approval is required. Tool calls with it are
// refused, because there are no durable approval requests yet.
const (
	Allow      Action = "allow"
	Deny       Action = "deny"
	Quarantine Action = "quarantine"
)

// Evaluate requests a [Decision] on a tool call. Policy stores the decision before it
// sends it. Repeating the request for the same turn and index with the same arguments
// returns the stored decision, with a new token if it allows the call. Errors: Invalid
// (no tool, arguments over 256 KiB), Conflict (same turn and index, other arguments). A
// refusal is a Decision, not an error.
type Evaluate struct {
	Agent     string          `json:"agent"`
	Session   string          `json:"session"`
	Run       string          `json:"run"`
	Turn      string          `json:"turn"`
	Index     int             `json:"index"`
	Tool      string          `json:"tool"`
	Args      json.RawMessage `json:"args"`
	By        Principal       `json:"by"`
	Workspace string          `json:"workspace"`         // absolute path of the folder that the tools use
	Tools     []string        `json:"tools"`             // tools granted by the agent's definition
	Network   bool            `json:"network,omitempty"` // the agent's sandbox may use the network
}

// Decision is the decision on a tool call or a plan, with the token that allows the
// call.
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
	Code      string    `json:"code"` // ALLOWED, PROTECTED_FILE, … (docs/reference/policy.md, Reasons)
	Message   string    `json:"message,omitempty"`
	Evaluated []string  `json:"evaluated"`
	Triggered []string  `json:"triggered"`
	Version   string    `json:"version"` // of the rules
	Trace     string    `json:"trace,omitempty"`
	LatencyUS int64     `json:"latencyUs"`
	At        int64     `json:"at"`
	Token     string    `json:"token,omitempty"` // only in the answer, and only if the call is allowed
}

// ListDecisions requests [Decisions], the latest first. An empty filter matches all;
// Limit 0 means 50. Errors: Invalid (limit, After).
type ListDecisions struct {
	Agent string `json:"agent,omitempty"`
	Turn  string `json:"turn,omitempty"`
	After string `json:"after,omitempty"` // Next of the previous page
	Limit int    `json:"limit,omitempty"`
}

// Decisions is a list of decisions.
type Decisions struct {
	Decisions []Decision `json:"decisions"`
	Page
}

// ListRules requests the [Rules], in the order of their evaluation.
type ListRules struct{}

// Rules holds the current rules of policy.
type Rules struct {
	Version string `json:"version"`
	Rules   []Rule `json:"rules"`
}

// Rule describes one rule, for people.
type Rule struct {
	ID       string   `json:"id"`
	Priority int      `json:"priority"`
	Tools    []string `json:"tools,omitempty"` // empty: every tool
	Does     string   `json:"does"`
	Codes    []string `json:"codes"`
}

// ListKeys requests the [Keys] that may sign a decision token now.
type ListKeys struct{}

// Keys holds Ed25519 public keys.
type Keys struct {
	Keys [][]byte `json:"keys"`
}

// The implementations of [Message] by the types of this file.

func (Evaluate) Subject() Subject      { return request(Policy, "evaluate") }
func (ListDecisions) Subject() Subject { return request(Policy, "list_decisions") }
func (ListRules) Subject() Subject     { return request(Policy, "list_rules") }
func (ListKeys) Subject() Subject      { return request(Policy, "list_keys") }

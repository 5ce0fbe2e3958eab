// Package rule holds the rules that a tool call must pass before it may run, and the
// engine that evaluates them. It must not do I/O: no messages, no database, no clock, no
// file system. The caller counts earlier calls ([Facts]), records the decision and signs
// the grant.
//
// Rules are the second layer of protection. The first is the sandbox of the tools
// (Landlock, rlimits, a minimal environment, os.Root for files). Rules refuse
// recognisable violations early, with a reason that the model can act on; the sandbox
// stops the rest.
package rule

import (
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// Code is the machine-readable reason of a decision (docs/reference/policy.md, Reasons).
type Code string

// Codes of decisions.
const (
	Allowed           Code = "ALLOWED"
	UnknownTool       Code = "UNKNOWN_TOOL"             // not in the catalogue
	ToolNotGranted    Code = "TOOL_NOT_GRANTED"         // not in the agent's definition
	ValidationFailed  Code = "VALIDATION_FAILED"        // arguments do not fit the schema
	RuleError         Code = "RULE_ERROR"               // a rule failed; only this call is denied
	ProtectedFile     Code = "PROTECTED_FILE"           // write to a protected file
	SensitiveFileRead Code = "SENSITIVE_FILE_READ"      // read of a secret
	PathTraversal     Code = "PATH_TRAVERSAL"           // outside the workspace
	ForbiddenCommand  Code = "FORBIDDEN_COMMAND"        // shell command that is forbidden
	ShellParse        Code = "SHELL_PARSE"              // not a valid shell program
	ShellUnjudgeable  Code = "SHELL_UNJUDGEABLE"        // the command to run is only known at run time
	NetworkDenied     Code = "NETWORK_DENIED"           // sandbox has no network
	AuthorityTooLow   Code = "AUTHORITY_TOO_LOW"        // least trusted principal of the turn may not use the tool
	ExternalDangerous Code = "EXTERNAL_DANGEROUS_TOOL"  // dangerous tool, authority below 60
	ExternalSelfMod   Code = "EXTERNAL_SELF_MOD"        // write to a file that defines the agent
	ShellInjection    Code = "SHELL_INJECTION_DETECTED" // an argument with shell metacharacters
	SpendNeedsAssent  Code = "CONFIRMATION_REQUIRED"    // moves money with too little authority; the creator decides
	RateLimitMessages Code = "RATE_LIMIT_MESSAGES"      // too many messages in the last hour
	RateLimitSelfMod  Code = "RATE_LIMIT_SELF_MOD"      // too many changes of own files in the last hour
	RateLimitGenesis  Code = "RATE_LIMIT_GENESIS"       // the genesis prompt changed in the last 24 h
	RateLimitSpawn    Code = "RATE_LIMIT_SPAWN"         // too many children in the last 24 h
	DBUnavailable     Code = "DB_UNAVAILABLE"           // history unreadable, so a rate cannot be checked
)

// Input is one tool call to judge. The model supplies Tool and Args only; loop and the
// envelope of the message supply the other fields. Args is a JSON object, for which empty
// and null count as {}. Without an absolute Workspace every path and command is denied.
type Input struct {
	api.Evaluate

	// Facts is the history for the rate rules. nil means that it could not be read: the
	// rate rules then deny.
	Facts *Facts
}

// Facts holds the number of earlier allow decisions of the same agent for the same tool.
type Facts struct {
	Recent int // within the rolling window of the tool's rate, see [Engine.Window]
}

// Decision is the outcome for one [Input].
type Decision struct {
	Action         api.Action
	Code           Code
	Message        string       // advice; contains no argument values except names and paths
	Risk           catalog.Risk // risk of the tool; Forbidden if the tool is unknown
	Authority      int          // authority of Input.By
	RulesEvaluated []string
	RulesTriggered []string // rules that denied or quarantined
	Err            error    // cause of RULE_ERROR, for the log only, never for the model
}

// Finding is the objection of a rule to a call.
type Finding struct {
	Action  api.Action // Deny or Quarantine; anything else has no effect
	Code    Code
	Message string
}

// deny returns a finding with the action Deny.
func deny(code Code, format string, a ...any) *Finding {
	return &Finding{Action: api.Deny, Code: code, Message: fmt.Sprintf(format, a...)}
}

// Call is the input of a rule: an [Input] with a known tool and arguments that fit the
// tool's schema.
type Call struct {
	Input
	Spec      catalog.Tool
	Values    catalog.Args
	Authority int
}

// Rule is one rule of an [Engine]. Check returns nil if it has no objection. It must not
// retain the call and must be safe for concurrent use.
type Rule struct {
	ID       string
	Priority int // ascending; rules of one priority keep the order given to [New]
	Applies  Selector
	Does     string // one sentence for readers
	Codes    []Code // codes that Check can return
	Data     any    // tables of Check, hashed into the version; may be nil
	Check    func(*Call) (*Finding, error)
}

// Selector selects the tools that a rule applies to. A tool matches if one of the fields
// matches; the zero value selects every tool.
type Selector struct {
	Tools      []string           `json:"tools,omitempty"`
	Categories []catalog.Category `json:"categories,omitempty"`
	Risks      []catalog.Risk     `json:"risks,omitempty"`
}

// Package rule is what policy knows: the rules that a call of a tool of the
// catalogue must pass before it may run. It is pure: no
// messages, no database, no clock, no file system. Whoever calls it counts
// what happened before ([Facts]), records the decision and signs the grant.
//
// It is the second layer. The first is the sandbox that runs the tools
// (Landlock, rlimits, a bare environment, os.Root for files): rules refuse what
// can be recognised, early and with a reason the model can act on; the sandbox
// stops the rest.
package rule

import (
	"encoding/json"
	"fmt"

	"github.com/anima-run/anima/pkg/api/catalog"
)

// Action is the outcome of an evaluation.
type Action string

// The actions. The zero value is not an action.
const (
	Allow      Action = "allow"
	Deny       Action = "deny"
	Quarantine Action = "quarantine" // wait for the creator's approval
)

// Code is the machine-readable reason of a decision (spec-core-2 §4.3).
type Code string

// The codes.
const (
	Allowed           Code = "ALLOWED"
	UnknownTool       Code = "UNKNOWN_TOOL"             // not in the catalogue
	ToolNotGranted    Code = "TOOL_NOT_GRANTED"         // not in the agent's definition
	ValidationFailed  Code = "VALIDATION_FAILED"        // arguments do not fit the schema
	RuleError         Code = "RULE_ERROR"               // a rule broke; this call alone is denied
	ProtectedFile     Code = "PROTECTED_FILE"           // write to a guarded file
	SensitiveFileRead Code = "SENSITIVE_FILE_READ"      // read of a secret
	PathTraversal     Code = "PATH_TRAVERSAL"           // outside the workspace
	ForbiddenCommand  Code = "FORBIDDEN_COMMAND"        // shell command that may not run
	ShellParse        Code = "SHELL_PARSE"              // not a shell program
	ShellUnjudgeable  Code = "SHELL_UNJUDGEABLE"        // what would run is decided at run time
	NetworkDenied     Code = "NETWORK_DENIED"           // sandbox has no network
	AuthorityTooLow   Code = "AUTHORITY_TOO_LOW"        // who caused the turn may not use the tool
	ExternalDangerous Code = "EXTERNAL_DANGEROUS_TOOL"  // dangerous tool, authority below 60
	ExternalSelfMod   Code = "EXTERNAL_SELF_MOD"        // write to a file that makes the agent what it is
	ShellInjection    Code = "SHELL_INJECTION_DETECTED" // an argument that reads like a shell program
	SpendNeedsAssent  Code = "CONFIRMATION_REQUIRED"    // moves money for somebody who may not; the creator decides
	RateLimitMessages Code = "RATE_LIMIT_MESSAGES"      // too many messages in the last hour
	RateLimitSelfMod  Code = "RATE_LIMIT_SELF_MOD"      // too many changes of own files in the last hour
	RateLimitGenesis  Code = "RATE_LIMIT_GENESIS"       // the genesis prompt changed in the last 24 h
	RateLimitSpawn    Code = "RATE_LIMIT_SPAWN"         // too many children in the last 24 h
	DBUnavailable     Code = "DB_UNAVAILABLE"           // history unknown, so a rate cannot be checked
)

// Input is one tool call to judge. Everything but Tool and Args comes from the
// loop and the envelope, never from the model.
type Input struct {
	Agent   string
	Session string
	Run     string
	Turn    string
	Index   int // of the call within its turn

	Tool string
	Args json.RawMessage // a JSON object; empty and null mean {}

	// By is the least trusted principal whose input the turn has seen.
	By Principal

	// Workspace is the absolute folder the tools work in; it is also their
	// HOME, so "~" means it. Empty or relative denies every path and command.
	Workspace string

	// Tools are granted by the agent's definition; none grants none.
	Tools []string

	// Network says that the agent's sandbox may reach the network.
	Network bool

	// Facts is the history the rate rules need. nil means it could not be read:
	// they deny then.
	Facts *Facts
}

// Facts counts earlier allow decisions of the same agent for the same tool.
type Facts struct {
	Recent int // within the rolling window of the tool's rate, see [Book.Window]
}

// Decision is the outcome for one [Input].
type Decision struct {
	Action         Action
	Code           Code
	Message        string       // what to do next; never holds argument values beyond names and paths
	Risk           catalog.Risk // of the tool; Forbidden when the tool is unknown
	Authority      int          // of Input.By
	RulesEvaluated []string
	RulesTriggered []string // denied or quarantined
	Err            error    // with RULE_ERROR: why, for the operator's log, never for the model
}

// Finding is what a rule has against a call.
type Finding struct {
	Action  Action // Deny or Quarantine; anything else has no effect
	Code    Code
	Message string
}

// deny is the usual finding.
func deny(code Code, format string, a ...any) *Finding {
	return &Finding{Action: Deny, Code: code, Message: fmt.Sprintf(format, a...)}
}

// Call is what a rule sees: an input whose tool exists and whose arguments fit
// the tool's schema.
type Call struct {
	Input
	Spec      catalog.Tool
	Values    catalog.Args
	Authority int
}

// Rule is one opinion. Check returns nil to let the call pass to the next rule.
// It must not keep the call, and it is used by many goroutines at once.
type Rule struct {
	ID       string
	Priority int // ascending; rules of one priority keep the order of the book
	Applies  Selector
	Does     string // one sentence for people
	Codes    []Code // what Check can answer
	Data     any    // the tables behind Check, hashed into the version; may be nil
	Check    func(*Call) (*Finding, error)
}

// Selector says which tools a rule applies to. Set fields are alternatives;
// the zero value selects every tool.
type Selector struct {
	Tools      []string           `json:"tools,omitempty"`
	Categories []catalog.Category `json:"categories,omitempty"`
	Risks      []catalog.Risk     `json:"risks,omitempty"`
}

// Package agent parses AGENT.md, the file in which a creator defines an agent: YAML
// frontmatter with settings, followed by the genesis prompt in Markdown. It checks only
// the text and must do no I/O: whether a model or a wallet exists is not checked.
package agent

import (
	"encoding/json"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// Limits of a definition, which Parse checks (docs/reference/loop.md, AGENT.md).
const (
	MaxFile        = 64 << 10   // bytes of an AGENT.md
	MaxBody        = 16_000     // characters of a genesis prompt
	MaxDescription = 500        // characters of a description
	MaxMessage     = 2_000      // characters of the creator's message
	MaxSchedules   = 32         // schedule entries of an agent
	MaxTokens      = 10_000_000 // largest value of a setting of the context, in tokens
	MinWindow      = 1_000      // smallest context window that a definition may set, in tokens

	maxName = 64
	maxLine = 200 // length of model, version and reason, in characters
)

// Definition is a valid AGENT.md, with defaults for all settings that the file does not
// contain.
type Definition struct {
	Name        string     `json:"name" yaml:"name"`                         // 1 to 64 characters of A-Z, a-z, 0-9 and -
	Description string     `json:"description" yaml:"description,omitempty"` // at most MaxDescription characters; may be empty
	Version     string     `json:"version" yaml:"version,omitempty"`         // chosen by the creator; may be empty
	Model       string     `json:"model" yaml:"model,omitempty"`             // empty means that the router chooses
	Creator     string     `json:"creator" yaml:"creator,omitempty"`         // 0x and 40 hex digits as written, or empty
	Message     string     `json:"message" yaml:"message,omitempty"`         // first message of the creator; at most MaxMessage characters, may be empty
	Autonomy    bool       `json:"autonomy" yaml:"autonomy"`                 // the agent wakes some time after it had nothing to do; otherwise only on an event
	Tools       []string   `json:"tools" yaml:"tools"`                       // names of built-in tools; mcp_… for tools of MCP servers, mcp_* for all of them
	Schedule    []Schedule `json:"schedule" yaml:"schedule,omitempty"`
	Limits      Limits     `json:"limits" yaml:"limits"`
	Context     Context    `json:"context" yaml:"context"`
	Sandbox     Sandbox    `json:"sandbox" yaml:"sandbox"`
	Body        string     `json:"body" yaml:"-"` // genesis prompt; at most MaxBody characters
}

// UnmarshalJSON decodes a stored definition. Limits, Context and Sandbox have their
// defaults for fields that are missing in data, as in definitions that an older release
// stored.
func (d *Definition) UnmarshalJSON(data []byte) error {
	type plain Definition // without this method, to avoid recursion
	v := plain{Limits: DefaultLimits(), Context: DefaultContext(), Sandbox: DefaultSandbox()}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	*d = Definition(v)
	return nil
}

// Schedule is a recurring wake of the agent.
type Schedule struct {
	Name   string `json:"name" yaml:"name"`               // unique in the definition; same characters as an agent's name
	Cron   string `json:"cron" yaml:"cron"`               // five fields in UTC, separated by single spaces
	Reason string `json:"reason" yaml:"reason,omitempty"` // shown to the agent when it wakes; may be empty
}

// Beats returns the schedule as a message to heartbeat. It is not nil.
func (d Definition) Beats() []api.Beat {
	beats := []api.Beat{}
	for _, s := range d.Schedule {
		beats = append(beats, api.Beat{Name: s.Name, Cron: s.Cron, Reason: s.Reason})
	}
	return beats
}

// Limits are the limits of one run of the agent.
type Limits struct {
	MaxTurns     int           `json:"maxTurns"`     // 1 to 100
	MaxToolCalls int           `json:"maxToolCalls"` // per turn, 1 to 10
	Timeout      time.Duration `json:"timeout"`      // of a run, 1 s to 1 h, whole seconds
	QueueTimeout time.Duration `json:"queueTimeout"` // maximum wait of a message for its session, 1 s to 1 h, whole seconds
}

// Context is the use of the model's context window, in tokens
// (docs/reference/context.md, Window).
type Context struct {
	Window  int `json:"window" yaml:"window"`   // 0 means the model's own; otherwise MinWindow to MaxTokens, and more than Flush
	Reserve int `json:"reserve" yaml:"reserve"` // tokens left free for the answer: the context is compacted before it uses them; 1 to MaxTokens
	Flush   int `json:"flush" yaml:"flush"`     // tokens left free for a memory flush: the agent writes its notes before the context uses them; Reserve to MaxTokens
}

// Sandbox holds the settings of the agent's sandbox.
type Sandbox struct {
	Network bool          `json:"network"` // whether commands may use the network
	Timeout time.Duration `json:"timeout"` // of one command, 1 s to 10 min, whole seconds
}

// DefaultLimits returns the limits of a file that sets none.
func DefaultLimits() Limits {
	return Limits{MaxTurns: 25, MaxToolCalls: 10, Timeout: 600 * time.Second, QueueTimeout: 30 * time.Second}
}

// DefaultContext returns the context settings of a file that sets none
// (docs/reference/loop.md, AGENT.md).
func DefaultContext() Context { return Context{Window: 0, Reserve: 4_000, Flush: 8_000} }

// DefaultSandbox returns the sandbox settings of a file that sets none.
func DefaultSandbox() Sandbox {
	return Sandbox{Network: false, Timeout: 30 * time.Second}
}

// Known holds the names that Parse accepts.
type Known struct {
	Tools []string // all tools that an agent may name
	Basic []string // tools of a file that names none
}

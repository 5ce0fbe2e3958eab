// Package agentmd reads AGENT.md, the file in which a creator defines an
// agent: YAML frontmatter for what machines need, then Markdown for what the
// agent is told. It judges the text alone: it opens no file and asks no
// service whether a model or a wallet exists.
package agentmd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Bounds of a definition, which Parse checks.
const (
	// MaxFile is the longest AGENT.md in bytes.
	MaxFile = 64 << 10
	// MaxBody is the longest genesis prompt in characters.
	MaxBody = 16_000
	// MaxDescription is the longest description in characters.
	MaxDescription = 500
	// MaxMessage is the longest message of a creator in characters (spec-core-2 §3).
	MaxMessage = 2_000
	// MaxSchedules is how many schedule entries an agent may have.
	MaxSchedules = 32
	// MaxTokens is the most tokens that a part of the context may be given.
	MaxTokens = 10_000_000
	// MinWindow is the smallest context window that is not the model's own.
	MinWindow = 1_000

	maxName   = 64
	maxLine   = 200 // model, version and reason, in characters
	maxFaults = 100 // keeps an answer that carries them far below a message's limit
)

// Definition is a valid AGENT.md with every default filled in.
type Definition struct {
	Name        string     `json:"name"`        // 1 to 64 of A-Z, a-z, 0-9 and -
	Description string     `json:"description"` // at most MaxDescription characters; may be empty
	Version     string     `json:"version"`     // the creator's own; may be empty
	Model       string     `json:"model"`       // empty: the router chooses
	Creator     string     `json:"creator"`     // 0x and 40 hex digits as written, or empty
	Message     string     `json:"message"`     // of the creator, said at birth; at most MaxMessage characters, may be empty
	Autonomy    bool       `json:"autonomy"`    // it wakes by itself a while after it had nothing to do; otherwise something must happen
	Tools       []string   `json:"tools"`       // built-in ones by name; mcp_… for those of MCP servers, mcp_* for all of them
	Schedule    []Schedule `json:"schedule"`
	Limits      Limits     `json:"limits"`
	Context     Context    `json:"context"`
	Sandbox     Sandbox    `json:"sandbox"`
	Body        string     `json:"body"` // the genesis prompt; at most MaxBody characters
}

// UnmarshalJSON reads a stored definition. What was not there yet when it was
// stored has its default.
func (d *Definition) UnmarshalJSON(data []byte) error {
	type plain Definition // without this method
	v := plain{Limits: DefaultLimits(), Context: DefaultContext(), Sandbox: DefaultSandbox()}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	*d = Definition(v)
	return nil
}

// Schedule is a time at which the agent is woken.
type Schedule struct {
	Name   string `json:"name"`   // unique in the definition; same alphabet as an agent's name
	Cron   string `json:"cron"`   // five fields in UTC, one space between them
	Reason string `json:"reason"` // told to the agent when it wakes; may be empty
}

// Limits bound one run of the agent.
type Limits struct {
	MaxTurns     int           `json:"maxTurns"`     // 1 to 100
	MaxToolCalls int           `json:"maxToolCalls"` // per turn, 1 to 10
	Timeout      time.Duration `json:"timeout"`      // of a run, 1 s to 1 h, whole seconds
	QueueTimeout time.Duration `json:"queueTimeout"` // how long a message waits for its session, 1 s to 1 h, whole seconds
}

// Context says how much of a model's window the agent uses, in tokens (seed 004).
type Context struct {
	Window  int `json:"window"`  // 0: the model's own; otherwise MinWindow to MaxTokens, and more than Flush
	Reserve int `json:"reserve"` // kept free for the answer: beyond it the context is compacted; 1 to MaxTokens
	Flush   int `json:"flush"`   // kept free for notes: beyond it memories are written first; Reserve to MaxTokens
}

// Sandbox says how the agent's commands are held.
type Sandbox struct {
	Network bool          `json:"network"` // whether a command may use the network
	Timeout time.Duration `json:"timeout"` // of one command, 1 s to 10 min, whole seconds
}

// DefaultLimits returns the limits of a file that names none.
func DefaultLimits() Limits {
	return Limits{MaxTurns: 25, MaxToolCalls: 10, Timeout: 600 * time.Second, QueueTimeout: 30 * time.Second}
}

// DefaultContext returns the context of a file that names none; the numbers are
// seed 004's.
func DefaultContext() Context { return Context{Window: 0, Reserve: 4_000, Flush: 8_000} }

// DefaultSandbox returns the sandbox of a file that names none.
func DefaultSandbox() Sandbox {
	return Sandbox{Network: false, Timeout: 30 * time.Second}
}

// Known is what Parse checks names against.
type Known struct {
	Tools []string // every tool that an agent may name
	Basic []string // the tools of a file that names none
}

// Fault is one thing wrong with a file.
type Fault struct {
	Line    int // from 1, in the file
	Message string
}

// String returns the fault as people read it: "line 4: name is empty".
func (f Fault) String() string {
	return fmt.Sprintf("line %d: %s", f.Line, f.Message)
}

// sorted puts faults in the order of the file and cuts a list that nobody
// would read to its end.
func sorted(faults []Fault) []Fault {
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	if more := len(faults) - maxFaults; more > 0 {
		last := faults[maxFaults-1].Line
		faults = append(faults[:maxFaults:maxFaults],
			Fault{last, fmt.Sprintf("%d more faults follow; mend these first", more)})
	}
	return faults
}

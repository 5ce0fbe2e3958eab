// Package agentmd reads AGENT.md, the file in which a creator defines an
// agent: YAML frontmatter for what machines need, then Markdown for what the
// agent is told. It judges the text alone: it opens no file and asks no
// service whether a model or a wallet exists.
package agentmd

import (
	"cmp"
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
	// MaxSchedules is how many schedule entries an agent may have.
	MaxSchedules = 32

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
	Tools       []string   `json:"tools"`
	Schedule    []Schedule `json:"schedule"`
	Limits      Limits     `json:"limits"`
	Sandbox     Sandbox    `json:"sandbox"`
	Body        string     `json:"body"` // the genesis prompt; at most MaxBody characters
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
}

// Sandbox says how the agent's commands are held.
type Sandbox struct {
	Network bool          `json:"network"` // whether a command may use the network
	Timeout time.Duration `json:"timeout"` // of one command, 1 s to 10 min, whole seconds
}

// DefaultLimits returns the limits of a file that names none.
func DefaultLimits() Limits {
	return Limits{MaxTurns: 25, MaxToolCalls: 10, Timeout: 600 * time.Second}
}

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

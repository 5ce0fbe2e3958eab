package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// Tool is a tool that the executor has.
type Tool struct {
	Name        string
	Description string
	Schema      json.RawMessage
	Effect      catalog.Effect
	Mutating    bool          // changes something: the agent is not idle
	Status      bool          // only looks at the agent's own state
	Spends      bool          // may move the agent's money
	Timeout     time.Duration // of one call; 0: 30 s (seed 004). It ends the context of Run
	// Offered says whether the tool can be used by an agent now; nil: always. A tool
	// that is not offered and called all the same must refuse by itself.
	Offered func(Agent) bool
	// Check refuses arguments that are not what Schema says; it is asked before
	// policy is.
	Check func(args json.RawMessage) error
	// Run must return soon after its context has ended. A panic in it is an error of
	// this call alone.
	Run func(ctx context.Context, c Call) (Output, error)
}

// Call is one call of a tool.
type Call struct {
	Agent     Agent
	Session   string
	Turn      string
	Index     int
	Key       string // idempotency key
	Args      json.RawMessage
	At        int64         // when the thought was had: the same on every try
	By        api.Principal // the lowest of all that went into the run's input
	Repeating bool          // an earlier try may have happened
	Token     string        // policy's decision, for whoever else executes the call
	// Report shows people how far a long call is: what it says last is what they
	// see, at most every 500 ms. It is safe for concurrent use and may be nil.
	Report func(text string)
}

// Output of a tool.
type Output struct {
	Text    string
	Sleep   *Sleep
	Blocked bool // a goal was refused because one is active: the agent sleeps
	Ends    bool // the run has done what it was for: it ends with this turn
}

// Toolbox has the tools that only some agents have.
type Toolbox interface {
	// Tools returns what the agent's definition grants and somebody offers now.
	Tools(ctx context.Context, a Agent) []Tool
}

// toolbox is what an agent has for one turn: the executor's own tools, and its own.
// A name belongs to whoever had it first.
func (e *Engine) toolbox(ctx context.Context, a Agent) map[string]Tool {
	if e.Toolbox == nil {
		return e.Tools
	}
	own := e.Toolbox.Tools(ctx, a)
	if len(own) == 0 {
		return e.Tools
	}
	all := maps.Clone(e.Tools)
	for _, t := range own {
		if _, there := all[t.Name]; !there {
			all[t.Name] = t
		}
	}
	return all
}

// Builtin is the tool of the catalogue with that name and the code that executes
// it. What the catalogue's types cannot say, check refuses; nil takes everything.
// It panics when there is no such tool.
func Builtin(name string, check func(catalog.Args) error, run func(context.Context, Call, catalog.Args) (Output, error)) Tool {
	spec, ok := catalog.Named(name)
	if !ok {
		panic("no such tool: " + name)
	}
	parse := func(args json.RawMessage) (catalog.Args, error) {
		a, err := spec.Parse(args)
		if err == nil && check != nil {
			err = check(a)
		}
		if err != nil {
			return a, fmt.Errorf("the arguments do not fit the schema of %s: %w", name, err)
		}
		return a, nil
	}
	return Tool{
		Name: name, Description: spec.Does, Schema: spec.Schema(), Effect: spec.Effect, Mutating: spec.Mutating, Status: spec.Status,
		Spends: spec.Owner == api.Treasury && !spec.Status,
		Check:  func(args json.RawMessage) error { _, err := parse(args); return err },
		Run: func(ctx context.Context, c Call) (Output, error) {
			a, err := parse(c.Args)
			if err != nil {
				return Output{}, err
			}
			return run(ctx, c, a)
		},
	}
}

package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// Tool describes a tool and the code that executes it.
type Tool struct {
	Name        string
	Description string
	Schema      json.RawMessage
	Effect      catalog.Effect
	Mutating    bool          // changes state: a turn that calls it is not idle
	Status      bool          // only reads the agent's own state
	Spends      bool          // may change the agent's funds
	Timeout     time.Duration // of one call; 0: 30 s (docs/reference/loop.md, Time limits). Then the context of Run ends
	// Offered reports whether the tool is offered to an agent now; nil: always. Run
	// must refuse a call of a tool that is not offered.
	Offered func(Agent) bool
	// Check refuses arguments that do not match Schema. It is called before policy
	// evaluates the call.
	Check func(args json.RawMessage) error
	// Run executes a call and must return soon after its context has ended. A panic in
	// it fails this call only.
	Run func(ctx context.Context, c Call) (Output, error)
}

// Call holds one call of a tool.
type Call struct {
	Agent     Agent
	Session   string
	Turn      string
	Index     int
	Key       string // idempotency key
	Args      json.RawMessage
	At        int64         // time of the completion in Unix µs, the same on every attempt
	By        api.Principal // the lowest principal of the run's input
	Repeating bool          // an earlier attempt may have been executed
	Token     string        // policy's decision, for the service that executes the call
	// Report shows the progress of a long call to people. The latest text is published
	// at most every 500 ms. It is safe for concurrent use and may be nil.
	Report func(text string)
}

// Output of a tool.
type Output struct {
	Text    string
	Sleep   *Sleep
	Blocked bool // a goal was refused because another is active: the agent sleeps
	Ends    bool // the run's task is complete: the run ends with this turn
}

// Toolbox returns tools that are specific to an agent.
type Toolbox interface {
	// Tools returns the tools that the agent's definition grants and that are available
	// now.
	Tools(ctx context.Context, a Agent) []Tool
}

// toolbox returns the tools of an agent for one turn: those of the engine and those of
// the agent. A tool of the engine takes precedence over one with the same name.
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

// Builtin returns the tool of the catalogue with that name, executed by run. check
// refuses arguments that the types of the catalogue cannot exclude; nil accepts all.
// Builtin panics if the catalogue has no such tool.
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

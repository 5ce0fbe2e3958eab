// Package executor is how a service executes tools of the catalogue that it owns:
// loop asks which, and calls them. Nothing is executed without policy's token for
// this very call, and with arguments that do not fit the schema.
//
// It must not know what a tool does, and it judges nothing: that was policy's,
// before.
package executor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Call is a call that policy allowed, with arguments that fit.
type Call struct {
	Agent string
	Turn  string
	Key   string // idempotency key: the same again is the same call
	Args  catalog.Args
	At    int64 // of the thought, Unix microseconds: the same on every try
	By    api.Principal
}

// Func executes a tool. What it returns is told to the model.
type Func func(ctx context.Context, c Call) (string, error)

// Executor executes the tools of one service. It is safe for concurrent use.
type Executor struct {
	keys  *Keys
	now   func() time.Time
	tools map[string]Func
}

// New returns an executor. It panics on a tool that the catalogue does not give to
// the owner.
func New(b *bus.Bus, owner api.Owner, now func() time.Time, tools map[string]Func) *Executor {
	for name := range tools {
		if t, ok := catalog.Named(name); !ok || t.Owner != owner {
			panic(fmt.Sprintf("%s has no tool %s", owner, name))
		}
	}
	return &Executor{keys: NewKeys(b), now: now, tools: maps.Clone(tools)}
}

// List names the tools, by name.
func (x *Executor) List() api.ToolList {
	return api.ToolList{Tools: slices.Sorted(maps.Keys(x.tools))}
}

// Call verifies a call and executes it. Errors: those of [api.Invocation]; what
// the tool returns.
func (x *Executor) Call(ctx context.Context, m api.Invocation) (api.Returned, error) {
	run, ok := x.tools[m.Tool]
	if !ok {
		return api.Returned{}, api.Errorf(api.NotFound, "no tool %.60q is executed here", m.Tool)
	}
	by, err := x.verify(ctx, m)
	if err != nil {
		return api.Returned{}, err
	}
	spec, _ := catalog.Named(m.Tool)
	args, err := spec.Parse(m.Args)
	if err != nil {
		return api.Returned{}, api.Errorf(api.Invalid, "the arguments do not fit the schema of %s: %v", m.Tool, err)
	}
	if m.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, time.UnixMicro(m.Deadline))
		defer cancel()
	}
	text, err := failpoint.Value(ctx, failpoint.ExecutorCall, func(ctx context.Context) (string, error) {
		return run(ctx, Call{Agent: m.Agent, Turn: m.Turn, Key: m.Key, Args: args, At: m.At, By: by})
	})
	return api.Returned{Text: text}, err
}

// verify compares policy's token with the call.
func (x *Executor) verify(ctx context.Context, m api.Invocation) (api.Principal, error) {
	g, err := x.keys.Verify(ctx, m.Token)
	if err != nil {
		return g.By, err
	}
	fits, err := g.For(m.Agent, m.Turn, m.Index, m.Tool, m.Args)
	switch {
	case err != nil:
		return g.By, err
	case !fits:
		return g.By, &api.Error{Code: api.Denied, Message: "the decision token is for another call", Next: "ask policy about this one"}
	case x.now().UnixMicro() > g.Expires:
		return g.By, &api.Error{Code: api.Conflict, Message: "the decision token has expired", Next: "ask policy again"}
	}
	return g.By, nil
}

// Package executor executes a service's own tools of the catalogue. It serves the two
// requests of loop for them, see [Routes]: list the tools and call one. A tool is executed
// only with policy's decision token for this call, and with arguments that match its
// schema.
//
// It must not depend on any tool, and it makes no decisions: policy has made them before.
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

// Call is a call that policy allowed, with arguments that match the schema.
type Call struct {
	Agent   string
	Session string // as the caller states it; "": unknown
	Turn    string
	Key     string // idempotency key: the same on every attempt of a call
	Args    catalog.Args
	At      int64 // time of the completion, Unix microseconds: the same on every attempt
	By      api.Principal
}

// Func executes a tool. Its result is sent to the model.
type Func func(ctx context.Context, c Call) (string, error)

// Executor executes the tools of one service. It is safe for concurrent use.
type Executor struct {
	keys   *Keys
	now    func() time.Time
	tools  map[string]Func
	absent map[string]error
}

// New returns an executor. It panics if the catalogue does not assign a tool to the
// owner.
func New(b *bus.Bus, owner api.Owner, now func() time.Time, tools map[string]Func) *Executor {
	for name := range tools {
		if t, ok := catalog.Named(name); !ok || t.Owner != owner {
			panic(fmt.Sprintf("%s has no tool %s", owner, name))
		}
	}
	return &Executor{keys: NewKeys(b), now: now, tools: maps.Clone(tools)}
}

// Invocation is the request to call a tool of one owner: a message that embeds
// [api.Invocation].
type Invocation interface {
	api.Message
	Invoked() api.Invocation
}

// Routes returns the routes of the requests L, which lists the tools, and C, which calls
// one of them. Both requests name the owner of the tools. Routes panics if the catalogue
// does not assign a tool to that owner. A tool of absent is not listed, and a call of it
// fails with the error that says why.
func Routes[L api.Message, C Invocation](b *bus.Bus, now func() time.Time, tools map[string]Func, absent map[string]error) bus.Route {
	var list L
	x := New(b, list.Subject().Owner, now, tools)
	x.absent = maps.Clone(absent)
	return bus.Routes(
		bus.Reply(func(context.Context, L) (api.ToolList, error) { return x.List(), nil }),
		bus.Reply(func(ctx context.Context, m C) (api.Returned, error) { return x.Call(ctx, m.Invoked()) }),
	)
}

// List returns the names of the tools, sorted.
func (x *Executor) List() api.ToolList {
	return api.ToolList{Tools: slices.Sorted(maps.Keys(x.tools))}
}

// Call verifies a call and executes it. It returns the errors of [api.Invocation], or the
// error of the tool.
func (x *Executor) Call(ctx context.Context, m api.Invocation) (api.Returned, error) {
	run, ok := x.tools[m.Tool]
	if err := x.absent[m.Tool]; err != nil && !ok {
		return api.Returned{}, err
	}
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
		return run(ctx, Call{Agent: m.Agent, Session: m.Session, Turn: m.Turn, Key: m.Key, Args: args, At: m.At, By: by})
	})
	return api.Returned{Text: text}, err
}

// verify checks that policy's token is valid for the call.
func (x *Executor) verify(ctx context.Context, m api.Invocation) (api.Principal, error) {
	g, err := x.keys.Verify(ctx, m.Token)
	if err != nil {
		return g.By, err
	}
	fits, err := g.For(m.Agent, m.Turn, m.Index, m.Tool, m.Args)
	switch {
	case err != nil:
		return g.By, err
	case !fits || m.Key != api.CallKey(m.Turn, m.Index): // under another key the tool would be executed again
		return g.By, &api.Error{Code: api.Denied, Message: "the decision token is for another call", Next: "ask policy about this one"}
	}
	if late := x.now().Sub(time.UnixMicro(g.Expires)); late > 0 {
		return g.By, &api.Error{
			Code: api.Conflict, Message: fmt.Sprintf("the decision token expired %s ago", late.Round(time.Second)),
			Next: "ask policy again; if this is repeated, set the clocks of policy and of this service to the same time: a token is valid for a minute",
		}
	}
	return g.By, nil
}

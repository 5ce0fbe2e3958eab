package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/telemetry"
)

// Prefixes of the errors of calls that were not executed. A replay parses them.
const (
	NotRun       = "not run: "
	PolicyDenied = "policy denied: "
)

// Time limits of calls (docs/reference/loop.md, Time limits).
const (
	callTimeout   = 30 * time.Second       // of a tool without a timeout of its own
	progressEvery = 500 * time.Millisecond // interval of progress events of a long call
	grace         = 15 * time.Second       // for a tool to return after its timeout
)

// execution holds a call in progress.
type execution struct {
	ctx       context.Context //nolint:containedctx // below the call's span, which covers prepare, act and settle
	span      trace.Span
	intent    Intent
	token     string
	repeating bool
	prepared  *prepared // nil: policy has not evaluated the call
	result    Result
	err       error // the call was interrupted; it is executed again if the run is resumed
}

// calls returns the calls of the turn's completion that are to be executed: at most limit,
// and none if the completion was withheld.
func (s *state) calls(limit int) []api.ToolCall {
	all := s.completion.Answer.ToolCalls
	if withheld(s.completion.Answer.Finish) {
		return nil
	}
	return all[:min(len(all), limit)]
}

// calls executes the calls of the turn that have no result. Calls are executed in
// order, one after another; adjacent calls with the effect pure are executed
// concurrently. The intents of such a group are all journaled before the calls and the
// results after them, in order, so the journal has one writer. After a crash in
// between, calls with an intent and without a result are executed again.
func (e *Engine) calls(ctx context.Context, s *state, ev Events, id string) (err error) {
	defer func() {
		s.ahead.leave(err)
		s.ahead = nil
	}()
	var group []int
	for i, call := range s.calls(s.agent.MaxCalls) {
		pure := s.tools[call.Name].Effect == catalog.Pure
		if !pure {
			if err := e.executeGroup(ctx, s, ev, id, group); err != nil {
				return err
			}
			group = nil
		}
		if _, done := s.results[i]; done {
			continue
		}
		if group = append(group, i); pure {
			continue
		}
		if err := e.executeGroup(ctx, s, ev, id, group); err != nil {
			return err
		}
		group = nil
	}
	return e.executeGroup(ctx, s, ev, id, group)
}

// executeGroup executes a group of calls concurrently.
func (e *Engine) executeGroup(ctx context.Context, s *state, ev Events, id string, group []int) error {
	var made []*execution
	var failure error
	for _, i := range group {
		if ctx.Err() != nil {
			failure = context.Cause(ctx) // start no call in a run that is to stop
			break
		}
		c := s.ahead
		if s.ahead = nil; c == nil || c.intent.Index != i {
			c.leave(nil)
			c = e.open(ctx, s, i, s.completion.Answer.ToolCalls[i].Name)
		}
		var run bool
		run, failure = e.start(c, s, id, i)
		if run && failure == nil {
			made = append(made, c)
			continue
		}
		c.err = failure
		if c.close(); failure != nil {
			break
		}
	}
	if failure == nil {
		act := func(c *execution) (Result, error) { return e.act(c, s, ev, id) }
		if e.Recorded != nil {
			act = func(c *execution) (Result, error) { return e.Recorded.Result(c.ctx, c.intent.Index) }
		}
		var acts sync.WaitGroup
		for _, c := range made[min(1, len(made)):] {
			acts.Go(func() { c.result, c.err = act(c) })
		}
		if len(made) > 0 {
			made[0].result, made[0].err = act(made[0])
		}
		acts.Wait()
	}
	for _, c := range made {
		if failure != nil && c.err == nil && c.result.Outcome == "" {
			c.err = failure // it was not executed
		}
		if c.err == nil {
			c.result.Decision, c.result.Action = c.intent.Decision, api.Allow
			c.err = e.settle(c.ctx, s, c.span, c.result)
		}
		if c.close(); failure == nil {
			failure = c.err
		}
	}
	return failure
}

// open starts the span of call i. Unlike the turn's root span, a repeated call has a
// new span, so the spans of policy and other services belong to one attempt.
func (e *Engine) open(ctx context.Context, s *state, i int, name string) *execution {
	if _, there := s.tools[name]; !there {
		name = "unknown" // limits the number of span names
	}
	c := &execution{intent: Intent{Index: i}}
	c.ctx, c.span = e.Tracer.Start(ctx, "execute_tool "+name) //nolint:spancheck // close ends it
	return c
}

// start performs all steps before the execution of a tool and returns whether the tool
// is to be executed. If not, the call already has its result. An irreversible call with
// the intent of an earlier attempt gets the outcome unknown.
func (e *Engine) start(c *execution, s *state, id string, i int) (run bool, err error) {
	ctx, call := c.ctx, s.completion.Answer.ToolCalls[i]
	c.span.SetAttributes(
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", call.Name),
		attribute.String("gen_ai.tool.call.id", call.ID), attribute.String("gen_ai.tool.type", "function"))
	intent, repeating := s.intents[i] // journaled by an earlier attempt that left no result
	unknown := func() (bool, error) {
		return false, e.settle(ctx, s, c.span, Result{
			Index: i, Decision: intent.Decision, Action: api.Allow, Outcome: api.OutcomeUnknown, At: e.Now().UnixMicro(),
			Error: "outcome unknown: a crash took the result away; the call may or may not have happened, look before you repeat it",
		})
	}
	if tool, there := s.tools[call.Name]; repeating && (!there || tool.Effect == catalog.Irreversible) { // the effect of a removed tool is not known
		return unknown()
	}
	if c.prepared == nil && c.err == nil { // not evaluated ahead
		c.prepared, c.err = e.prepare(ctx, s, id, i)
	}
	if c.err != nil {
		return false, c.err
	}
	p := c.prepared
	switch {
	case p.refused != nil && repeating: // as by another release, whose tool does not accept the arguments
		return unknown()
	case p.refused != nil:
		return false, e.settle(ctx, s, c.span, *p.refused)
	}
	if err := e.authorize(ctx, s, id, i, p.intent.Token); err != nil {
		return false, err
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if !repeating {
		intent = *p.intent
		if err := e.append(ctx, s, Step{Intent: &intent}); err != nil {
			return false, err
		}
		s.intents[i] = intent
	}
	c.intent, c.token, c.repeating = intent, p.intent.Token, repeating
	return true, nil
}

// settle journals a call's result, which announces it.
func (e *Engine) settle(ctx context.Context, s *state, span trace.Span, r Result) error {
	call := s.completion.Answer.ToolCalls[r.Index]
	span.SetAttributes(attribute.String("automaton.tool.outcome", string(r.Outcome)), attribute.String("automaton.policy.decision", string(r.Action)))
	if r.Outcome != api.OutcomeOK {
		span.SetAttributes(attribute.String("error.type", string(r.Outcome)))
		span.SetStatus(codes.Error, string(r.Outcome))
	}
	r.Tool, r.CallID = call.Name, call.ID
	if err := e.append(ctx, s, Step{Result: &r}); err != nil {
		return err
	}
	s.results[r.Index] = r
	s.advanced(r.At)
	e.Observe.Tool(ctx, call.Name, r.Outcome, time.Duration(r.DurationMS)*time.Millisecond)
	return nil
}

// leave ends the span of a call that is not executed now, with err as the reason. c may
// be nil.
func (c *execution) leave(err error) {
	if c == nil {
		return
	}
	if c.err == nil {
		c.err = cmp.Or(err, errors.New("the call is not made"))
	}
	c.close()
}

func (c *execution) close() {
	if c.err != nil {
		telemetry.Fail(c.span, "interrupted", "the call was interrupted, and is executed again if the run is resumed")
	}
	c.span.End()
}

// Arguments returns a call's arguments. Some models send an empty text for a tool without
// parameters; it becomes {}.
func Arguments(call api.ToolCall) json.RawMessage {
	if strings.TrimSpace(call.Arguments) == "" {
		return json.RawMessage("{}")
	}
	return json.RawMessage(call.Arguments)
}

// arguments returns the arguments as the model wrote them. Text that is not JSON
// becomes a JSON string, so that every reader can decode the row.
func arguments(c api.ToolCall) json.RawMessage {
	if json.Valid([]byte(c.Arguments)) {
		return json.RawMessage(Clean(c.Arguments))
	}
	quoted, err := api.Encode(c.Arguments)
	if err != nil {
		return json.RawMessage(`null`)
	}
	return quoted
}

// Clean replaces invalid UTF-8 and NUL bytes by U+FFFD.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

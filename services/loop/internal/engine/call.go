package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// policyPatience is the time that a turn waits for policy before the run ends and its
// agent sleeps (docs/reference/loop.md, policy skipped).
const policyPatience = time.Minute

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

// prepared holds the evaluation of a call: an intent, or the result of a refusal.
type prepared struct {
	intent  *Intent
	refused *Result
}

// calls returns the calls of the turn's thought that are to be executed: at most limit,
// and none if the completion was withheld.
func (s *state) calls(limit int) []api.ToolCall {
	all := s.completion.Answer.ToolCalls
	if withheld(s.completion.Answer.Finish) {
		return nil
	}
	return all[:min(len(all), limit)]
}

// evaluate prepares the turn's first call concurrently with its caller, which appends the
// thought to the journal. This is safe because the router has stored the answer: the
// next owner of the turn gets the same answer, and from policy the same decision. same
// reports whether a repeated model call uses the same id; otherwise the call must not
// be evaluated before the thought is in the journal. The returned function waits for
// the evaluation.
func (e *Engine) evaluate(ctx context.Context, s *state, id string, same bool) (wait func() *execution) {
	calls := s.calls(s.agent.MaxCalls)
	if !same || len(calls) == 0 || e.Recorded != nil {
		return func() *execution { return nil }
	}
	c := e.open(ctx, s, 0, calls[0].Name)
	var judging sync.WaitGroup
	judging.Go(func() { c.prepared, c.err = e.prepare(c.ctx, s, id, 0) })
	return func() *execution { judging.Wait(); return c }
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
	intent, repeating := s.intents[i]                                                                    // journaled by an earlier attempt that left no result
	if tool, there := s.tools[call.Name]; repeating && (!there || tool.Effect == catalog.Irreversible) { // the effect of a removed tool is not known
		return false, e.settle(ctx, s, c.span, Result{
			Index: i, Decision: intent.Decision, Action: api.Allow, Outcome: api.OutcomeUnknown, At: e.Now().UnixMicro(),
			Error: "outcome unknown: a crash took the result away; the call may or may not have happened, look before you repeat it",
		})
	}
	if c.prepared == nil && c.err == nil { // not evaluated ahead
		c.prepared, c.err = e.prepare(ctx, s, id, i)
	}
	if c.err != nil {
		return false, c.err
	}
	p := c.prepared
	if p.refused != nil {
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

// prepare checks a call's arguments and requests a decision from policy. It does not
// modify the state.
func (e *Engine) prepare(ctx context.Context, s *state, id string, i int) (*prepared, error) {
	call := s.completion.Answer.ToolCalls[i]
	now := e.Now().UnixMicro()
	refuse := func(text string) (*prepared, error) {
		return &prepared{refused: &Result{Index: i, Outcome: api.OutcomeError, Error: text, At: now}}, nil
	}
	if cutCall(s.completion.Answer, i) {
		return refuse(cutText)
	}
	tool, ok := s.tools[call.Name]
	if !ok {
		return refuse(fmt.Sprintf("there is no tool %q", call.Name))
	}
	args := Arguments(call)
	if err := check(tool, args); errors.Is(err, errPanic) {
		trace.SpanFromContext(ctx).RecordError(err)
		return refuse(NotRun + "the tool cannot read these arguments")
	} else if err != nil {
		return refuse(NotRun + err.Error())
	}
	d, err := e.Policy.Evaluate(ctx, api.Evaluate{
		Agent: s.agent.ID, Session: s.cmd.Session, Run: s.cmd.Run, Turn: id, Index: i, Tool: call.Name, Args: args,
		By: s.input.By, Workspace: s.agent.Workspace, Tools: s.agent.Tools, Network: s.agent.Network,
	})
	switch {
	case api.CodeOf(err) == api.Invalid:
		return refuse(NotRun + api.Wire(err).Message)
	case api.CodeOf(err) == api.Unavailable && now-s.completion.At > policyPatience.Microseconds():
		return nil, &api.Error{Code: api.Unavailable, Reason: api.ReasonPolicy, Message: "policy does not answer, and nothing may run without it"}
	case err != nil:
		return nil, err
	case d.Action != api.Allow:
		return &prepared{refused: &Result{
			Index: i, Decision: d.ID, Action: d.Action, Outcome: api.OutcomeDenied, Error: PolicyDenied + d.Code + ": " + d.Message, At: now,
		}}, nil
	}
	return &prepared{intent: &Intent{
		Index: i, Decision: d.ID, Token: d.Token, Tool: call.Name, CallID: call.ID, Arguments: arguments(call), At: now,
	}}, nil
}

// check validates arguments with the tool's Check and converts panics as attempt does.
func check(tool Tool, args json.RawMessage) (err error) {
	defer recoverPanic(&err)
	return tool.Check(args)
}

// authorize verifies a token against its call. It runs before the intent is journaled,
// so that a refused token does not look like a call that was started.
func (e *Engine) authorize(ctx context.Context, s *state, id string, i int, token string) error {
	call := s.completion.Answer.ToolCalls[i]
	g, err := e.Policy.Verify(ctx, token)
	if err != nil {
		return err
	}
	fits, err := g.For(s.agent.ID, id, i, call.Name, Arguments(call))
	if err != nil || !fits || e.Now().UnixMicro() > g.Expires {
		return api.Errorf(api.Conflict, "the decision token is for another call, or it expired")
	}
	return nil
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

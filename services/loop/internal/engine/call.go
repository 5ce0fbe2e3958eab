package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
)

// prepared holds the evaluation of a call: an intent with its token, or the result of a
// refusal.
type prepared struct {
	intent  *Intent
	token   string
	refused *Result
}

// policyPatience is the time that a turn waits for policy before the run ends and its
// agent sleeps (docs/reference/loop.md, policy skipped).
const policyPatience = time.Minute

// prepare checks a call's arguments and requests a decision from policy. It does not
// modify the state.
func (e *Engine) prepare(ctx context.Context, s *state, id string, i int) (prepared, error) {
	call := s.completion.Answer.ToolCalls[i]
	now := e.Now().UnixMicro()
	var p prepared
	refuse := func(text string) (prepared, error) {
		p.refused = &Result{Index: i, Outcome: api.OutcomeError, Error: text, At: now}
		return p, nil
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
	if err != nil {
		if api.CodeOf(err) == api.Invalid {
			return refuse(NotRun + api.Wire(err).Message)
		}
		if api.CodeOf(err) == api.Unavailable && now-s.completion.At > policyPatience.Microseconds() {
			err = &api.Error{Code: api.Unavailable, Reason: api.ReasonPolicy, Message: "policy does not answer, and nothing may run without it"}
		}
		return p, err
	}
	if d.Action != api.Allow {
		p.refused = &Result{
			Index: i, Decision: d.ID, Action: d.Action, Outcome: api.OutcomeDenied,
			Error: PolicyDenied + d.Code + ": " + d.Message, At: now,
		}
		return p, nil
	}
	p.intent, p.token = &Intent{
		Index: i, Decision: d.ID, Token: d.Token, Tool: call.Name, CallID: call.ID, Arguments: arguments(call), At: now,
	}, d.Token
	return p, nil
}

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

// check validates arguments with the tool's Check and converts panics as attempt does.
func check(tool Tool, args json.RawMessage) (err error) {
	defer recoverPanic(&err)
	return tool.Check(args)
}

// Clean replaces invalid UTF-8 and NUL bytes by U+FFFD.
func Clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Arguments returns a call's arguments. Some models send an empty text for a tool without
// parameters; it becomes {}.
func Arguments(call api.ToolCall) json.RawMessage {
	if strings.TrimSpace(call.Arguments) == "" {
		return json.RawMessage("{}")
	}
	return json.RawMessage(call.Arguments)
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

// known limits the number of span names: a name that is not that of a tool becomes
// "unknown".
func known(tools map[string]Tool, name string) string {
	if _, ok := tools[name]; ok {
		return name
	}
	return "unknown"
}

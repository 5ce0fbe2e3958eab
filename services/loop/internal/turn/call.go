package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/telemetry"
)

// prepared is a call that was judged: either an intent with its token, or the
// result of a refusal.
type prepared struct {
	intent  *Intent
	token   string
	refused *Result
}

// policyPatience is how long a turn waits for policy before its agent sleeps (W-48).
const policyPatience = time.Minute

// prepare checks a call's arguments and asks policy. It changes nothing.
func (e *Engine) prepare(ctx context.Context, s *state, id string, i int) (prepared, error) {
	call := s.thought.Completion.ToolCalls[i]
	now := e.Now().UnixMicro()
	var p prepared
	refuse := func(o api.Outcome, text string) (prepared, error) {
		p.refused = &Result{Index: i, Outcome: o, Error: text, At: now}
		return p, nil
	}
	tool, ok := e.Tools[call.Name]
	if !ok {
		return refuse(api.OutcomeError, fmt.Sprintf("there is no tool %q", call.Name))
	}
	args := json.RawMessage(call.Arguments)
	if err := tool.Check(args); err != nil {
		return refuse(api.OutcomeError, "not run: "+err.Error())
	}
	d, err := e.Policy.Evaluate(ctx, api.Evaluate{
		Agent: s.agent.ID, Session: s.cmd.Session, Run: s.cmd.Run, Turn: id, Index: i, Tool: call.Name, Args: args,
		By: s.input.By, Workspace: s.agent.Workspace, Tools: s.agent.Tools, Network: s.agent.Network,
	})
	if err != nil {
		if api.CodeOf(err) == api.Invalid {
			return refuse(api.OutcomeError, "not run: "+api.Wire(err).Message)
		}
		if api.CodeOf(err) == api.Unavailable && now-s.thought.At > policyPatience.Microseconds() {
			err = &api.Error{Code: api.Unavailable, Reason: api.ReasonPolicy, Message: "policy does not answer, and nothing may run without it"}
		}
		return p, err
	}
	if d.Action != api.Allow {
		p.refused = &Result{
			Index: i, Decision: d.ID, Action: d.Action, Outcome: api.OutcomeDenied,
			Error: "policy denied: " + d.Code + ": " + d.Message, At: now,
		}
		return p, nil
	}
	p.intent, p.token = &Intent{Index: i, Decision: d.ID, At: now}, d.Token
	return p, nil
}

// call makes the turn's call i, with all that a crash at any point of it needs.
func (e *Engine) call(ctx context.Context, s *state, ev Events, id string, i int) (err error) {
	call := s.thought.Completion.ToolCalls[i]
	// Unlike the turn's root, a call that is made again is another span: what policy
	// and others did for each try is below that try.
	ctx, span := e.Tracer.Start(ctx, "execute_tool "+known(e.Tools, call.Name), trace.WithAttributes(
		attribute.String("gen_ai.operation.name", "execute_tool"), attribute.String("gen_ai.tool.name", call.Name),
		attribute.String("gen_ai.tool.call.id", call.ID), attribute.String("gen_ai.tool.type", "function")))
	defer func() {
		if err != nil {
			telemetry.Fail(span, "interrupted", "the call was interrupted, and is made again if the run goes on")
		}
		span.End()
	}()

	intent, repeating := s.intents[i] // journaled by an earlier try that left no result
	if repeating && e.Tools[call.Name].Effect == catalog.Irreversible {
		return e.settle(ctx, s, ev, id, span, Result{
			Index: i, Decision: intent.Decision, Action: api.Allow, Outcome: api.OutcomeUnknown, At: e.Now().UnixMicro(),
			Error: "outcome unknown: a crash took the result away; the call may or may not have happened, look before you repeat it",
		})
	}
	p, err := e.prepare(ctx, s, id, i)
	if err != nil {
		return err
	}
	if p.refused != nil {
		return e.settle(ctx, s, ev, id, span, *p.refused)
	}
	if err := e.authorize(ctx, s, id, i, p.token); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !repeating {
		intent = *p.intent
		if err := e.append(ctx, s, Step{Intent: &intent}); err != nil {
			return err
		}
		s.intents[i] = intent
	}
	if err := e.saidStart(ctx, s, ev, id, intent); err != nil {
		return err
	}
	r, err := e.act(ctx, s, id, i, repeating)
	if err != nil {
		return err
	}
	r.Decision, r.Action = intent.Decision, api.Allow
	return e.settle(ctx, s, ev, id, span, r)
}

// act runs the tool.
func (e *Engine) act(ctx context.Context, s *state, id string, i int, repeating bool) (Result, error) {
	call := s.thought.Completion.ToolCalls[i]
	tool := e.Tools[call.Name]
	began := e.Now()
	out, err := tool.Run(ctx, Call{
		Agent: s.agent, Session: s.cmd.Session, Turn: id, Index: i, Key: Key(s.cmd.Run, s.number, i), Args: json.RawMessage(call.Arguments),
		At: s.thought.At, Repeating: repeating,
	})
	now := e.Now()
	r := Result{Index: i, Outcome: api.OutcomeOK, Text: cut(out.Text), Sleep: out.Sleep, Blocked: out.Blocked, DurationMS: now.Sub(began).Milliseconds(), At: now.UnixMicro()}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return Result{}, context.Cause(ctx) // the lease or the run's time is over: whoever goes on decides
	case errors.Is(err, context.DeadlineExceeded):
		r.Outcome, r.Error = api.OutcomeTimeout, cut(err.Error())
	case api.CodeOf(err) == api.Unavailable && !fatal(err) && tool.Effect != catalog.Irreversible:
		return Result{}, err // the service behind the tool is away: the run comes back to this call
	case api.CodeOf(err) == api.Denied:
		r.Outcome, r.Error = api.OutcomeDenied, cut(err.Error())
	default:
		r.Outcome, r.Error = api.OutcomeError, cut(err.Error())
	}
	return r, nil
}

// authorize compares a token with the call it is for. There is no call without,
// and no intent: a refused token must not look like a call that was begun.
func (e *Engine) authorize(ctx context.Context, s *state, id string, i int, token string) error {
	call := s.thought.Completion.ToolCalls[i]
	g, err := e.Policy.Verify(ctx, token)
	if err != nil {
		return err
	}
	hash, err := api.ArgsHash(json.RawMessage(call.Arguments))
	if err != nil {
		return err
	}
	want := api.Grant{Decision: g.Decision, Agent: s.agent.ID, Turn: id, Index: i, Tool: call.Name, ArgsHash: hash, By: g.By, Expires: g.Expires}
	if g != want || e.Now().UnixMicro() > g.Expires {
		return api.Errorf(api.Conflict, "the decision token is for another call, or it expired")
	}
	return nil
}

// settle journals a call's result and announces it.
func (e *Engine) settle(ctx context.Context, s *state, ev Events, id string, span trace.Span, r Result) error {
	call := s.thought.Completion.ToolCalls[r.Index]
	span.SetAttributes(attribute.String("automaton.tool.outcome", string(r.Outcome)), attribute.String("automaton.policy.decision", string(r.Action)))
	if r.Outcome != api.OutcomeOK {
		span.SetAttributes(attribute.String("error.type", string(r.Outcome)))
		span.SetStatus(codes.Error, string(r.Outcome))
	}
	if err := e.append(ctx, s, Step{Result: &r}); err != nil {
		return err
	}
	s.results[r.Index] = r
	e.Observe.Tool(ctx, call.Name, r.Outcome, time.Duration(r.DurationMS)*time.Millisecond)
	return e.saidEnd(ctx, s, ev, id, r)
}

// known keeps span names few: what the model invented is not a name.
func known(tools map[string]Tool, name string) string {
	if _, ok := tools[name]; ok {
		return name
	}
	return "unknown"
}

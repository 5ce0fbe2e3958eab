package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// policyPatience is the time that a turn waits for policy before the run ends and its
// agent sleeps (docs/reference/loop.md, policy skipped): from the completion, from the
// last call, or from the time at which the run was resumed after a longer pause.
const policyPatience = time.Minute

// prepared holds the evaluation of a call: an intent, or the result of a refusal.
type prepared struct {
	intent  *Intent
	refused *Result
}

// evaluate prepares the turn's first call concurrently with its caller, which appends the
// completion to the journal. This is safe because the router has stored the answer: the
// next owner of the turn gets the same answer, and from policy the same decision. same
// reports whether a repeated model call uses the same id; otherwise the call must not
// be evaluated before the completion is in the journal. The returned function waits for
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
	case api.CodeOf(err) == api.Unavailable && now-s.waitedAt > policyPatience.Microseconds():
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
	switch late := e.Now().Sub(time.UnixMicro(g.Expires)); {
	case err != nil || !fits:
		return api.Errorf(api.Conflict, "the decision token is for another call")
	case late > 0: // loop has requested it just before
		return &api.Error{
			Code: api.Conflict, Message: fmt.Sprintf("the decision token of %s expired %s ago", call.Name, late.Round(time.Second)),
			Next: "if this is repeated, set the clocks of policy and loop to the same time: a token is valid for a minute",
		}
	}
	return nil
}

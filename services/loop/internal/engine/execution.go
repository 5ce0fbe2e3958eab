package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// execution holds a call in progress.
type execution struct {
	ctx       context.Context //nolint:containedctx // below the call's span, which covers prepare, act and settle
	span      trace.Span
	intent    Intent
	token     string
	repeating bool
	decided   *prepared // nil: policy has not evaluated the call
	result    Result
	err       error // the call was interrupted; it is executed again if the run is resumed
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
	c := &execution{intent: Intent{Index: i}}
	c.ctx, c.span = e.Tracer.Start(ctx, "execute_tool "+known(s.tools, name)) //nolint:spancheck // close ends it
	return c
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
	judging.Go(func() {
		p, err := e.prepare(c.ctx, s, id, 0)
		if c.err = err; err == nil {
			c.decided = &p
		}
	})
	return func() *execution { judging.Wait(); return c }
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
	p, err := e.prepared(c, s, id, i)
	if err != nil {
		return false, err
	}
	if p.refused != nil {
		return false, e.settle(ctx, s, c.span, *p.refused)
	}
	if err := e.authorize(ctx, s, id, i, p.token); err != nil {
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
	c.intent, c.token, c.repeating = intent, p.token, repeating
	return true, nil
}

// prepared returns the result of [Engine.prepare] for c, which evaluate may already have
// called.
func (e *Engine) prepared(c *execution, s *state, id string, i int) (prepared, error) {
	switch {
	case c.err != nil:
		return prepared{}, c.err
	case c.decided != nil:
		return *c.decided, nil
	}
	return e.prepare(c.ctx, s, id, i)
}

// act executes the tool. It only reads the state, which concurrent calls share.
func (e *Engine) act(c *execution, s *state, ev Events, id string) (Result, error) {
	ctx, i := c.ctx, c.intent.Index
	call := s.completion.Answer.ToolCalls[i]
	tool := s.tools[call.Name]
	began := e.Now()
	limit := tool.Timeout
	if limit <= 0 {
		limit = callTimeout
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if e.Within != nil {
		defer e.Within(ctx, limit+grace)()
	}
	report, quiet := e.watch(timed, s, ev, id, i, began)
	out, err := attempt(timed, tool, Call{
		Agent: s.agent, Session: s.cmd.Session, Turn: id, Index: i, Key: Key(s.cmd.Run, s.number, i), Args: Arguments(call),
		At: s.completion.At, By: s.input.By, Repeating: c.repeating, Token: c.token, Report: report,
	})
	quiet()
	text := Clean(out.Text)
	if len(text) > prompt.MaxResult {
		text = e.keep(ctx, id, i, text)
	}
	now := e.Now()
	r := Result{Index: i, Outcome: api.OutcomeOK, Text: text, Sleep: out.Sleep, Blocked: out.Blocked, Ends: out.Ends, DurationMS: now.Sub(began).Milliseconds(), At: now.UnixMicro()}
	if err != nil {
		r.Error = cut(err.Error())
	}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return Result{}, context.Cause(ctx) // the lease or the time limit is over: the next owner decides
	case api.CodeOf(err) == api.Unavailable && !fatal(err) && tool.Effect != catalog.Irreversible:
		return Result{}, err // the service behind the tool is unavailable: the run is retried and resumes at this call
	case errors.Is(err, errPanic):
		r.Outcome, r.Error = api.OutcomeError, errPanic.Error()
		c.span.RecordError(err)
	case timed.Err() != nil:
		r.Outcome, r.Error = api.OutcomeTimeout, fmt.Sprintf("the call took longer than %s and was ended", limit)
	case errors.Is(err, context.DeadlineExceeded):
		r.Outcome = api.OutcomeTimeout
	case api.CodeOf(err) == api.Denied:
		r.Outcome = api.OutcomeDenied
	default:
		r.Outcome = api.OutcomeError
	}
	return r, nil
}

var errPanic = errors.New("the tool broke during the call, which may have had an effect; do not repeat it with the same arguments")

// attempt executes a tool and converts a panic into an error with its stack trace.
func attempt(ctx context.Context, tool Tool, c Call) (out Output, err error) {
	defer recoverPanic(&err)
	return tool.Run(ctx, c)
}

func recoverPanic(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("%w: %v\n%s", errPanic, v, debug.Stack())
	}
}

// watch publishes the progress of a call every progressEvery until stop is called.
// report only stores the text; stop waits for a publish in progress.
func (e *Engine) watch(ctx context.Context, s *state, ev Events, id string, i int, began time.Time) (report func(string), stop func()) {
	var latest atomic.Value
	latest.Store("")
	watching, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		wait.Every(watching, progressEvery, func() {
			call := s.completion.Answer.ToolCalls[i]
			text, _ := latest.Load().(string)
			ev.Live(ctx, api.ToolProgress{
				Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Index: i, ToolName: call.Name, ToolCallID: call.ID,
				Text: text, Elapsed: e.Now().Sub(began).Milliseconds(),
			})
		})
	})
	return func(text string) { latest.Store(text) }, func() { cancel(); telling.Wait() }
}

// keep stores a long output and returns the part that is included in the turn. The
// output is stored before the result is journaled, so a turn never refers to an output
// that does not exist. If storing fails, the text is cut all the same, because the call
// was executed.
func (e *Engine) keep(ctx context.Context, id string, i int, text string) string {
	whole := ""
	if len(text) > api.MaxOutput {
		text = text[:runeStart(text, api.MaxOutput)]
		whole = fmt.Sprintf(" of its first %d MiB", api.MaxOutput>>20)
	}
	n := runeStart(text, prompt.MaxResult)
	where := fmt.Sprintf("the whole%s is kept for 7 days as output %d of turn %s, for your creator to read; ask for less at a time to see the rest", whole, i, id)
	if err := e.Outputs.Keep(ctx, id, i, text); err != nil {
		where = "the rest could not be kept; ask for less at a time to see it"
	}
	return fmt.Sprintf("%s\n[%d more bytes were cut: %s]", text[:n], len(text)-n, where)
}

// runeStart returns the largest index at or before n at which a UTF-8 sequence begins.
func runeStart(s string, n int) int {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}

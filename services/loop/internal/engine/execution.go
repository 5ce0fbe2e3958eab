package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

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
		r.Error = prompt.Cut(err.Error())
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
		said := fmt.Sprintf("%T", v) // other values may quote the arguments
		if e, ok := v.(runtime.Error); ok {
			said = e.Error()
		}
		*err = fmt.Errorf("%w: %s\n%s", errPanic, said, debug.Stack())
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

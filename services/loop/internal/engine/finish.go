package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/lifecycle"
)

// fatal reports whether err ends the run. After all other errors the run is retried.
func fatal(err error) bool {
	switch api.CodeOf(err) {
	case api.Denied, api.Invalid:
		return true
	case api.Unavailable:
		switch api.ReasonOf(err) {
		case api.ReasonNoModel, api.ReasonLimit, api.ReasonPolicy,
			api.ReasonAuth, api.ReasonQuota, api.ReasonEndpoint, api.ReasonAttempts, api.ReasonTimeout:
			return true
		}
	case api.NotFound, api.Conflict, api.Internal:
	}
	return false
}

// persist writes the turn and, if it was the last, the run's end.
func (e *Engine) persist(ctx context.Context, s *state) (*End, error) {
	if err := e.readCost(ctx, s); err != nil {
		return nil, err
	}
	if len(s.calls(s.agent.MaxCalls)) == 0 { // a turn with calls is followed by another anyway
		if err := e.checkSteered(ctx, s); err != nil {
			return nil, err
		}
	}
	now := e.Now().UnixMicro()
	rec := s.record(s.agent.MaxCalls, lifecycle.StateAt(s.thinksAs(), s.agent.State), now)
	end := e.endOf(s, &rec, now)
	e.Ending(ctx, now)
	if err := e.persistTurn(ctx, s, &rec, end); err != nil {
		return nil, err
	}
	if end != nil {
		if s.conversation != nil {
			e.Context.recent.keep(s.cmd.Session, position{rec.Position, rec.Journal, s.after.reset}, s.conversation.with(rec))
		}
		return end, nil
	}
	if n := len(rec.Changed); n > 0 {
		s.agent.State = rec.Changed[n-1].State
	}
	s.next(rec)
	return nil, nil
}

// record builds the turn as it is stored. Text is cleaned of bytes that a database
// cannot store, so that the stored and the in-memory turn are equal.
func (s *state) record(limit int, agentState api.AgentState, now int64) Record {
	c := s.completion.Answer
	t := api.Turn{
		ID: ID(s.cmd.Run, s.number), Agent: s.agent.ID, Session: s.cmd.Session, Run: s.cmd.Run, Number: s.number,
		State: agentState, By: s.input.By, Thinking: Clean(c.Text), Calls: []api.CallState{}, Model: c.Model, Provider: c.Provider,
		Finish: c.Finish, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens, Cost: c.Cost,
		Trace: s.completion.Trace, StartedAt: s.completion.StartedAt, EndedAt: now,
	}
	t.Input = Clean(s.words())
	for i, call := range c.ToolCalls {
		cs := api.CallState{Index: i, ID: Clean(call.ID), Tool: Clean(call.Name), Arguments: arguments(call)}
		r, there := s.results[i]
		intent, began := s.intents[i]
		switch {
		case there: // also beyond the limit, which an AGENT.md that was applied since may have lowered
		case began:
			r = Result{Decision: intent.Decision, Action: api.Allow, Outcome: api.OutcomeUnknown, Error: "outcome unknown: the run ended during the call"}
		case i >= limit:
			r = Result{Outcome: api.OutcomeError, Error: "not run: only the first " + strconv.Itoa(limit) + " calls of a turn are made; ask again if you still need it"}
		default:
			r = Result{Outcome: api.OutcomeError, Error: "not run: the run ended before"}
		}
		cs.Decision, cs.Action, cs.Outcome = r.Decision, r.Action, r.Outcome
		cs.Result, cs.Error, cs.DurationMS = Clean(r.Text), Clean(r.Error), r.DurationMS
		t.Calls = append(t.Calls, cs)
	}
	return Record{Turn: t, Run: s.cmd, Journal: s.last, Counters: s.counters, Prompt: s.completion.Prompt, Begun: s.begun, Tier: s.thinksAs()}
}

// endOf returns the end of the run if the turn to be persisted is the last, and nil
// otherwise. It also sets the session's counters and notice in rec.
func (e *Engine) endOf(s *state, rec *Record, now int64) *End {
	flushed := s.completion.Answer.Finish == api.FinishFlush
	if flushed && !s.capped() {
		if s.asked() { // the turn that answers the input follows, and has none itself
			rec.Counters = lifecycle.Asked(rec.Counters)
		}
		return nil // a flush is not evaluated for habits, and the run continues with its task
	}
	habits := lifecycle.Turn{Asked: s.asked()}
	end := &End{
		Run: s.cmd, Input: s.input, Success: true, Response: s.completion.Answer.Text, Turns: s.total + 1, Cost: s.cost + s.completion.Answer.Cost,
		At: now, State: api.StateSleeping, Outcome: api.OutcomeConsumed,
	}
	failure := unfinished(s.completion.Answer, s.asked())
	calls, ends, asleep := s.calls(s.agent.MaxCalls), false, 0
	for i, call := range calls { // if there are several alarms, the earliest applies
		r := s.results[i]
		ends = ends || r.Ends && r.Outcome == api.OutcomeOK
		if r.Sleep != nil && r.Outcome == api.OutcomeOK {
			if asleep++; end.Sleep == 0 || r.Sleep.Until < end.Sleep {
				end.Sleep, end.Why = r.Sleep.Until, r.Sleep.Reason
			}
		}
		t := s.tools[call.Name]
		habits.Calls = append(habits.Calls, lifecycle.Call{
			Tool: call.Name, Mutating: t.Mutating, Status: t.Status, Blocked: r.Blocked,
			Created: call.Name == "create_goal" && r.Outcome == api.OutcomeOK && !r.Blocked,
		})
	}
	counters, verdict := lifecycle.Observe(s.counters, habits)
	counters.Errors = 0
	rec.Counters, rec.Notice = counters, verdict.Notice
	switch {
	case flushed:
		overCap(s, end)
	case end.Sleep != 0:
		rec.Notice, end.Alarm = "", asleep > 1 // of several calls, the last has set the alarm
	case ends:
		e.sleepAfter(s, end, "its task is over", lifecycle.AfterNothing)
	case s.capped() && len(s.completion.Answer.ToolCalls) > 0: // a closing text without calls is a success
		overCap(s, end)
	case verdict.Why != "":
		e.sleepAfter(s, end, verdict.Why, verdict.For)
	case !s.capped() && s.total+1 < s.agent.MaxTurns && s.joins:
		return nil // a queued message steers the run
	case len(calls) == 0 && failure != nil:
		end.setError(failure)
		e.sleepAfter(s, end, failure.Message, lifecycle.AfterNothing)
	case len(calls) == 0:
		e.sleepAfter(s, end, "nothing to do", lifecycle.AfterNothing)
	case s.total+1 >= s.agent.MaxTurns:
		e.sleepAfter(s, end, fmt.Sprintf("the limit of %d turns a run", s.agent.MaxTurns), lifecycle.AfterCycle)
	default:
		return nil
	}
	rec.Counters.Until, rec.Counters.Why = end.Sleep, end.Why
	return end
}

// overCap ends a run that has reached its cost cap, as a failure that must not be
// retried. The turn is kept.
func overCap(s *state, end *End) {
	end.Success, end.Code, end.Reason, end.Response = false, api.Denied, api.ReasonCostCap, ""
	end.Error = fmt.Sprintf("the run has cost %s, and may cost %s", end.Cost, s.cmd.CostCap)
	end.Why = end.Error
}

// sleepAfter sets the reason of the sleep that follows the run, and for an autonomous agent an
// alarm after d. Any other agent sleeps until a message or a wake arrives, so that it
// does not spend money unrequested.
func (e *Engine) sleepAfter(s *state, end *End, why string, d time.Duration) {
	end.Why = why
	if s.agent.Autonomous && s.cmd.Kind != api.RunTask && s.cmd.Kind != api.RunMail { // runs for tasks and mail set no alarm
		end.Sleep, end.Alarm = end.At+d.Microseconds(), true
	}
}

// giveUp ends the run with err. A completion that exists is kept. If giveUp fails, its
// error never has the code of err, so that the run is retried and given up again.
func (e *Engine) giveUp(ctx context.Context, s *state, ev Events, err error) (*End, error) {
	now := e.Now().UnixMicro()
	// The begin fences a previous owner, so that it cannot end a run that another
	// continues.
	fence := &Begin{At: now, Attempt: max(1, s.attempts)}
	if s.number == 1 && s.begun == 0 { // the run has not begun before
		s.begun, fence.Kind = now, s.cmd.Kind
	}
	if ferr := e.append(ctx, s, Step{Begin: fence}); ferr != nil {
		return nil, fmt.Errorf("give up because of %q: %w", err.Error(), retryable(ferr))
	}
	if s.input.Text == "" {
		s.input = Input{Text: s.cmd.Content, By: s.cmd.By}
	}
	if !s.owned { // the run ends before this owner began it; the previous owner may not have completed continueRun
		if gerr := e.continueRun(ctx, s, ev); gerr != nil && !fatal(gerr) {
			return nil, fmt.Errorf("give up because of %q: %w", err.Error(), gerr)
		}
	}
	w := api.Wire(err)
	end := &End{
		Run: s.cmd, Input: s.input, Code: w.Code, Reason: w.Reason, Error: w.Message, Next: w.Next, At: now,
		State: api.StateSleeping, Why: w.Message, Outcome: api.OutcomeConsumed,
	}
	if s.completion == nil { // the input is kept in the transcript, without an answer
		end.Unanswered = s.cmd.Kind == api.RunMail && s.number == 1 && w.Reason != api.ReasonCancelled
		paid, serr := Spent(ctx, e.Treasury, s.agent.ID, ID(s.cmd.Run, s.number))
		if serr != nil {
			return nil, fmt.Errorf("give up because of %q: %w", err.Error(), retryable(serr))
		}
		finish := "error"
		if w.Reason == api.ReasonRefused {
			finish = api.FinishRejected
		}
		s.completion = &Completion{
			Answer: api.Completion{Finish: finish, Cost: paid}, StartedAt: now,
			Trace: trace.SpanContextFromContext(ctx).TraceID().String(),
		}
	}
	rec := s.record(s.agent.MaxCalls, lifecycle.StateAt(s.thinksAs(), s.agent.State), now)
	rec.Counters = e.failed(s, end, w)
	end.Turns, end.Cost = s.total+1, s.cost+rec.Turn.Cost
	// If treasury is unavailable, the router settles the cost later.
	if perr := e.readCost(ctx, s); perr != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("give up because of %q: %w", err.Error(), retryable(perr))
	}
	e.Ending(ctx, now)
	if perr := e.persistTurn(ctx, s, &rec, end); perr != nil {
		return nil, fmt.Errorf("give up because of %q: %w", err.Error(), retryable(perr))
	}
	return end, nil
}

// readCost waits until the cost of the turn's completion is settled, so that the recorded cost
// is paid and the next prompt has the remaining funds. If a previous owner made the
// call, or the wait fails, pay uses [Router.Confirm].
func (e *Engine) readCost(ctx context.Context, s *state) error {
	s.settledFunds = nil
	if s.settled || s.completion == nil || s.completion.Call == "" {
		return nil
	}
	var err error
	if w := s.settling; w != nil {
		s.settling = nil
		if s.settledFunds, err = w.Wait(ctx); err == nil || ctx.Err() != nil {
			s.settled = err == nil
			return err
		}
	}
	s.settledFunds, err = e.Router.Confirm(ctx, s.agent.ID, s.completion.Call)
	if api.CodeOf(err) == api.NotFound { // the router lost the answer and cannot settle it
		err = nil
	}
	s.settled = err == nil
	return err
}

// persistTurn writes a turn. After the run's first turn it calls recorded, because the
// store then has the run's begin.
func (e *Engine) persistTurn(ctx context.Context, s *state, rec *Record, end *End) error {
	err := e.Store.Persist(ctx, rec, s.input, end)
	if err == nil && s.recorded != nil {
		s.recorded()
		s.recorded = nil
	}
	return err
}

// settling is the longest interval between two checks of [Spent], which waits for the
// router to end a model call whose caller has stopped.
const settling = 2 * time.Second

// Spent returns the cost of a turn, or of another model call, that has no answer: the
// run ended, failed or lost its owner while the call was in progress. Spent waits for
// at most 4 s while an amount is held; if the router crashed during the call, the hold
// remains until it expires. An agent without an account has spent nothing.
func Spent(ctx context.Context, t Treasury, agent, id string) (api.Micros, error) {
	const first = settling / 32
	for pause := first; ; pause *= 2 {
		m, err := t.Spent(ctx, agent, id)
		switch {
		case fatal(err), api.CodeOf(err) == api.NotFound: // an agent without an account has spent nothing
			return 0, nil
		case err != nil, pause > settling:
			return m.Paid, err
		case m.Held == 0 && (m.Paid > 0 || pause > first): // at the first check the router may not have placed the hold yet
			return m.Paid, nil
		}
		if wait.For(ctx, pause) != nil {
			return 0, context.Cause(ctx)
		}
	}
}

// failed sets how long the agent sleeps after a run that ended with w, by the cause, and
// returns the session's counters (docs/reference/loop.md, Errors of runs).
func (e *Engine) failed(s *state, end *End, w *api.Error) api.Counters {
	counters, reason := s.counters, w.Reason
	if api.OverLimit(reason) {
		reason = api.ReasonLimit
	}
	switch reason {
	case api.ReasonCancelled:
		return counters // a cancelled run is not a failure
	case api.ReasonInsufficient:
		end.State = api.StateCritical // until it is funded
		counters.Errors = 0
	case api.ReasonLimit:
		e.sleepAfter(s, end, w.Message, max(w.Retry(), lifecycle.AfterBudget))
	case api.ReasonNoModel, api.ReasonAuth, api.ReasonQuota, api.ReasonEndpoint:
		e.sleepAfter(s, end, w.Message, lifecycle.AfterNoModel)
	case api.ReasonPolicy:
		e.sleepAfter(s, end, w.Message, lifecycle.AfterPolicy)
	default:
		var v lifecycle.Verdict
		if counters, v = lifecycle.Failed(counters); v.Why != "" {
			e.sleepAfter(s, end, v.Why+"; the last one: "+w.Message, v.For)
		} else {
			e.sleepAfter(s, end, w.Message, lifecycle.AfterNothing)
		}
	}
	counters.Until, counters.Why = end.Sleep, end.Why
	return counters
}

// retryable replaces an error whose code would settle the run's message by one without
// a code.
func retryable(err error) error {
	if fatal(err) {
		return errors.New(err.Error())
	}
	return err
}

package engine

import (
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// endAt moves the end of the run to its deadline. The first owner journals the deadline
// with the run's input; every later owner stops the run at the same time. Without a
// deadline, in a run that an older release began, the end is unchanged.
func (s *state) endAt(deadline int64, now time.Time) {
	if deadline == 0 {
		return
	}
	left := time.UnixMicro(deadline).Sub(now)
	if left <= 0 {
		s.expire() // the deadline has passed: stop before the turn executes
		return
	}
	s.limit.Reset(left)
}

// limitOf returns the time limit of the agent's runs.
func limitOf(a Agent) time.Duration { return time.Duration(a.RunTimeoutS) * time.Second }

// answerBy returns the deadline of a model call, in Unix µs: 2 s before the run's
// deadline, or a tenth of the remaining time if that is less, so that a partial answer
// can be kept (docs/reference/loop.md, Time limits). 0: no limit.
func (s *state) answerBy(now time.Time) int64 {
	if s.input.Deadline == 0 {
		return 0
	}
	left := time.UnixMicro(s.input.Deadline).Sub(now)
	return s.input.Deadline - min(2*time.Second, left/10).Microseconds()
}

// retriesLater reports whether a run that failed with a temporary error can be resumed
// before its deadline. If the error's RetryAfter ends after the deadline, the run ends
// now.
func (s *state) retriesLater(err error, now time.Time) bool {
	return s.input.Deadline == 0 || now.Add(api.Wire(err).Retry()).UnixMicro() < s.input.Deadline
}

// waits returns the event that reports to watchers why a run pauses. It returns false
// if err is not Unavailable.
func (e *Engine) waits(s *state, err error) (api.StreamDelta, bool) {
	w := api.Wire(err)
	if w.Code != api.Unavailable {
		return api.StreamDelta{}, false
	}
	note := w.Message + "; retrying"
	if wait := w.Retry(); wait >= time.Second {
		note += " in " + wait.Round(time.Second).String()
	}
	return api.StreamDelta{Run: s.cmd.Run, Session: s.cmd.Session, Turn: ID(s.cmd.Run, s.number), Note: note, After: s.last}, true
}

// withheld reports whether the calls of a completion are not executed, because the
// provider or the router stopped the completion.
func withheld(finish string) bool {
	return finish == api.FinishFilter || finish == api.FinishTimeout || finish == api.FinishRepetition
}

// cutCall reports whether a call may be truncated: it is the last one of a completion
// that reached its output limit.
func cutCall(c api.Completion, i int) bool {
	return c.Finish == api.FinishLength && i == len(c.ToolCalls)-1
}

const cutText = NotRun + "the answer reached its output limit in this call, whose arguments may be cut; make it again with less in it, in several calls if need be"

// abnormal has the errors of completions by their finish reason.
var abnormal = map[string]api.Error{
	api.FinishLength:     {Code: api.Denied, Next: "ask the agent to continue, or for a shorter answer"},
	api.FinishFilter:     {Code: api.Denied, Message: "the provider withheld the answer (content filter)", Next: "rephrase the message, or use another model"},
	api.FinishRefusal:    {Code: api.Denied, Message: "the model refused", Next: "rephrase the message, or use another model"},
	api.FinishEmpty:      {Code: api.Unavailable, Message: "the model's answer was empty", Next: "send the message again, or use another model"},
	api.FinishRepetition: {Code: api.Unavailable, Message: "the model repeated itself without end and was stopped", Next: "send the message again, or use another model"},
	api.FinishTimeout: {
		Code: api.Unavailable, Message: "the time limit was reached before the answer was complete; the partial answer is kept",
		Next: "ask the agent to continue, or use a faster model",
	},
}

// unfinished returns the error of a run whose last completion has an abnormal finish
// reason, nil for any other. The completion is kept. An empty answer is no error if none
// was asked for, as after a wake.
func unfinished(c api.Completion, asked bool) *api.Error {
	e, ok := abnormal[c.Finish]
	if !ok || c.Finish == api.FinishEmpty && !asked {
		return nil
	}
	if e.Reason = c.Finish; c.Finish == api.FinishLength {
		e.Message = fmt.Sprintf("the answer was cut after %d tokens, the most that a call may have", c.OutputTokens)
	}
	return &e
}

// setError makes the end a failure with the error of unfinished.
func (e *End) setError(w *api.Error) {
	e.Success, e.Code, e.Reason, e.Error, e.Next = false, w.Code, w.Reason, w.Message, w.Next
}

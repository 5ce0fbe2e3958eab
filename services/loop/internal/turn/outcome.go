package turn

import (
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// bound ends a run at its deadline. The first owner writes the deadline into the
// journal with the run's input; each owner after it ends the run at the same time.
type bound struct {
	now   func() time.Time
	stop  func()
	timer *time.Timer
}

// bound begins with the whole limit; [bound.at] makes it the deadline, once it is known.
func (e *Engine) bound(limit time.Duration, stop func()) *bound {
	return &bound{e.Now, stop, time.AfterFunc(limit, stop)}
}

// at moves the end to a deadline in Unix µs; 0, of a run that a release before began,
// leaves it.
func (b *bound) at(deadline int64) {
	if deadline == 0 {
		return
	}
	left := time.UnixMicro(deadline).Sub(b.now())
	if left <= 0 {
		b.stop() // now, before anything else is done
		return
	}
	b.timer.Reset(left)
}

// limitOf is how long a run of the agent may take.
func limitOf(a Agent) time.Duration { return time.Duration(a.RunTimeoutS) * time.Second }

// answerBy is until when a model's answer is wanted, in Unix µs: a little before the
// run's deadline, so that what has come of the answer can be kept (seed 004). 0: no limit.
func (s *state) answerBy(now time.Time) int64 {
	if s.input.Deadline == 0 {
		return 0
	}
	left := time.UnixMicro(s.input.Deadline).Sub(now)
	return s.input.Deadline - min(2*time.Second, left/10).Microseconds()
}

// comesBack says whether a run that failed with a passing error can be taken up again in
// time: what asks for a wait beyond the deadline ends the run now, not then.
func (s *state) comesBack(err error, now time.Time) bool {
	return s.input.Deadline == 0 || now.Add(api.Wire(err).Retry()).UnixMicro() < s.input.Deadline
}

// waits is what watchers are told of why a run pauses.
func (e *Engine) waits(s *state, err error) (api.StreamDelta, bool) {
	w := api.Wire(err)
	if w.Code != api.Unavailable {
		return api.StreamDelta{}, false
	}
	note := w.Message + "; trying again"
	if wait := w.Retry(); wait >= time.Second {
		note += " in " + wait.Round(time.Second).String()
	}
	return api.StreamDelta{Run: s.cmd.Run, Session: s.cmd.Session, Turn: ID(s.cmd.Run, s.number), Note: note, After: s.last}, true
}

// withheld says that the calls of an answer are not made: the answer did not come to
// its end by the model's own will.
func withheld(finish string) bool {
	return finish == api.FinishFilter || finish == api.FinishTimeout || finish == api.FinishRepetition
}

// cutCall says that a call may be cut: it is the last one of an answer that reached its
// output limit.
func cutCall(c api.Completion, i int) bool {
	return c.Finish == api.FinishLength && i == len(c.ToolCalls)-1
}

const cutText = notRun + "the answer reached its output limit in this call, whose arguments may be cut; make it again with less in it, in several calls if need be"

// unfinished is how a run ends whose last answer is not what was asked for, nil for any
// other. The answer is kept.
func unfinished(c api.Completion, asked bool) *api.Error {
	e := &api.Error{Reason: c.Finish}
	switch c.Finish {
	case api.FinishLength:
		e.Code, e.Message = api.Denied, fmt.Sprintf("the answer was cut after %d tokens, the most that a call may have", c.OutputTokens)
		e.Next = "ask it to go on, or for a shorter answer"
	case api.FinishFilter:
		e.Code, e.Message = api.Denied, "the provider withheld the answer (content filter)"
		e.Next = "say it otherwise, or use another model"
	case api.FinishRefusal:
		e.Code, e.Message = api.Denied, "the model refused"
		e.Next = "say it otherwise, or use another model"
	case api.FinishEmpty:
		if !asked { // a wake needs no answer
			return nil
		}
		e.Code, e.Message = api.Unavailable, "the model's answer was empty"
		e.Next = "send the message again, or use another model"
	case api.FinishRepetition:
		e.Code, e.Message = api.Unavailable, "the model repeated itself without end and was stopped"
		e.Next = "send the message again, or use another model"
	case api.FinishTimeout:
		e.Code, e.Message = api.Unavailable, "the time was over before the answer was complete; what had come is kept"
		e.Next = "ask it to go on, or use a faster model"
	default:
		return nil
	}
	return e
}

// endedBy makes an end that of a run whose last answer is not what was asked for.
func (e *End) endedBy(w *api.Error) {
	e.Success, e.Code, e.Reason, e.Error, e.Next = false, w.Code, w.Reason, w.Message, w.Next
}

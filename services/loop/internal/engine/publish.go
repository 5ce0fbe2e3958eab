package engine

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
)

// repeatOld publishes the events of the entries that an older release has journaled for
// the turn in progress. That release published the events separately from the entries,
// and may have crashed in between. The ids of the events derive from run, turn and
// index, so the stream stores each event once.
func (e *Engine) repeatOld(ctx context.Context, s *state, ev Events) error {
	if len(s.old) == 0 {
		return nil
	}
	for _, step := range s.old {
		events, err := s.renewed(step).Events(s.cmd)
		if err != nil {
			return err
		}
		for _, m := range events {
			if err := ev.Post(ctx, EventID(m), m); err != nil {
				return err
			}
		}
	}
	return ev.Wait(ctx)
}

// renewed adds what entries of an older release lack.
func (s *state) renewed(step Step) Step {
	switch {
	case step.Begin != nil && step.Begin.Input != nil:
		b := *step.Begin
		b.Kind = s.cmd.Kind
		step.Begin = &b
	case step.Intent != nil && s.completion != nil:
		call, i := s.completion.Answer.ToolCalls[step.Intent.Index], *step.Intent
		i.Tool, i.CallID, i.Arguments = call.Name, call.ID, arguments(call)
		step.Intent = &i
	case step.Result != nil && s.completion != nil:
		call, r := s.completion.Answer.ToolCalls[step.Result.Index], *step.Result
		r.Tool, r.CallID = call.Name, call.ID
		step.Result = &r
	}
	return step
}

// finish announces the end of a run that is persisted: it appends the end to the
// journal on top of last.
func (e *Engine) finish(ctx context.Context, end End, last uint64) error {
	if err := e.settleEnd(ctx, end); err != nil {
		return err
	}
	_, err := e.Journal.Append(ctx, end.Run, Step{Run: end.Run.Run, Turn: end.Turns, End: eventOf(end), Changed: end.changes()}, last)
	if err != nil {
		return err
	}
	return e.notifyEnd(ctx, end)
}

// settleEnd applies the consequences of a run's end before the end is announced: it
// settles or releases the inbox and sets the alarm. It is idempotent.
func (e *Engine) settleEnd(ctx context.Context, end End) error {
	cmd := end.Run
	if end.Input.Inbox > 0 {
		if err := e.Inbox.Settle(ctx, cmd.Agent, cmd.Run, end.Unanswered); err != nil {
			return err
		}
	}
	if end.Alarm { // before other services read that the agent sleeps
		a := api.SetAlarm{ID: cmd.Run + "/rest", Agent: cmd.Agent, At: end.Sleep, Reason: end.Why}
		if _, err := e.Alarms.SetAlarm(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// notifyEnd calls Over with the end of a run that is announced.
func (e *Engine) notifyEnd(ctx context.Context, end End) error {
	if e.Over == nil {
		return nil
	}
	return e.Over(ctx, *eventOf(end))
}

func eventOf(end End) *api.LoopEnd {
	cmd := end.Run
	return &api.LoopEnd{
		Run: cmd.Run, Session: cmd.Session, Agent: cmd.Agent, Success: end.Success, Outcome: end.Outcome, Into: end.Into, Response: end.Response, Turns: end.Turns,
		Cost: end.Cost, Duration: (end.At - cmd.AcceptedAt) / 1000, At: end.At,
		Code: end.Code, Reason: end.Reason, Error: end.Error, Next: end.Next,
	}
}

// changes returns the changes of the agent that are stored with the end.
func (e *End) changes() []api.AgentChanged {
	if e.Changed == nil {
		return e.Earlier
	}
	return append(e.Earlier[:len(e.Earlier):len(e.Earlier)], *e.Changed)
}

// EventID returns the id of a run's event, which derives from run, turn and index.
func EventID(m api.Message) string {
	name := m.Subject().Name + "/"
	switch m := m.(type) {
	case api.LoopStart:
		return name + m.Run
	case api.LoopContext:
		return name + m.Turn
	case api.LoopExecute:
		return name + m.Turn
	case api.ToolStart:
		return fmt.Sprintf("%s%s.%d", name, m.Turn, m.Index)
	case api.ToolEnd:
		return fmt.Sprintf("%s%s.%d", name, m.Turn, m.Index)
	case api.LoopPersist:
		return name + m.Turn
	case api.LoopError:
		return name + m.Run
	case api.LoopEnd:
		return name + m.Run
	case api.AgentChanged:
		return fmt.Sprintf("%s%s/%d", name, m.Agent, m.Seq)
	}
	return ""
}

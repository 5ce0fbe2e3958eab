package engine

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
)

// repeatOld publishes the events of the entries that an older release has journaled for
// the turn in progress. That release published the events separately from the entries,
// and may have crashed in between. The ids of the events derive from run, turn and
// index, so the stream stores each event once.
func (e *Engine) repeatOld(ctx context.Context, s *state, ev Events, id string) error {
	if len(s.old) == 0 {
		return nil
	}
	for _, step := range s.old {
		post := func(event string, m api.Message) error { return ev.Post(ctx, event, m) }
		var err error
		switch {
		case step.Begin != nil && step.Begin.Input != nil:
			err = post("loop_start/"+s.cmd.Run, api.LoopStart{
				Run: s.cmd.Run, Session: s.cmd.Session, Agent: s.agent.ID, Kind: s.cmd.Kind, At: step.Begin.At,
			})
		case step.Completion != nil:
			t := step.Completion
			if err = post("loop_context/"+id, api.LoopContext{
				Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, TokenEstimate: t.Tokens, At: t.StartedAt,
			}); err == nil {
				err = post("loop_execute/"+id, api.LoopExecute{
					Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, ToolCount: t.Offered, At: t.StartedAt,
				})
			}
		case step.Intent != nil && s.completion != nil:
			call := s.completion.Answer.ToolCalls[step.Intent.Index]
			err = post("tool_start/"+Key(s.cmd.Run, s.number, step.Intent.Index), api.ToolStart{
				Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Index: step.Intent.Index, ToolName: call.Name, ToolCallID: call.ID,
				Arguments: arguments(call), At: step.Intent.At,
			})
		case step.Result != nil && s.completion != nil:
			r, call := *step.Result, s.completion.Answer.ToolCalls[step.Result.Index]
			text := r.Text
			if text == "" {
				text = r.Error
			}
			err = post("tool_end/"+Key(s.cmd.Run, s.number, r.Index), api.ToolEnd{
				Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Index: r.Index, ToolName: call.Name, ToolCallID: call.ID,
				Outcome: r.Outcome, Result: text, Duration: r.DurationMS, At: r.At,
			})
		}
		if err != nil {
			return err
		}
	}
	return ev.Wait(ctx)
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
// settles the inbox and sets the alarm. It is idempotent.
func (e *Engine) settleEnd(ctx context.Context, end End) error {
	cmd := end.Run
	if end.Input.Inbox > 0 {
		if err := e.Inbox.Settle(ctx, cmd.Agent, cmd.Run); err != nil {
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

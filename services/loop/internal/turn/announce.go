package turn

import (
	"context"
	"strconv"

	"github.com/anima-run/anima/pkg/api"
)

// The events of a run. Their ids derive from run, turn and index and their
// contents from the journal or the store, so an owner that takes a run up can say all
// of it again without knowing what its last owner got out.

// repeat says again what the journal has of the turn under way.
func (e *Engine) repeat(ctx context.Context, s *state, ev Events, id string) error {
	if s.thought == nil {
		return nil
	}
	if err := e.saidThinking(ctx, s, s.thought, ev, id); err != nil {
		return err
	}
	for i := range s.calls(s.agent.MaxCalls) {
		if intent, ok := s.intents[i]; ok {
			if err := e.saidStart(ctx, s, ev, id, intent); err != nil {
				return err
			}
		}
		if r, ok := s.results[i]; ok {
			if err := e.saidEnd(ctx, s, ev, id, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine) saidChanged(ctx context.Context, c *api.AgentChanged, ev Events) error {
	if c == nil {
		return nil
	}
	return ev.Post(ctx, "agent_state/"+c.Agent+"/"+strconv.FormatInt(c.Seq, 10), *c)
}

func (e *Engine) saidThinking(ctx context.Context, s *state, t *Thought, ev Events, id string) error {
	if err := ev.Post(ctx, "loop_context/"+id, api.LoopContext{
		Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, TokenEstimate: t.Tokens, At: t.StartedAt,
	}); err != nil {
		return err
	}
	return ev.Post(ctx, "loop_execute/"+id, api.LoopExecute{
		Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, ToolCount: t.Offered, At: t.StartedAt,
	})
}

func (e *Engine) saidStart(ctx context.Context, s *state, ev Events, id string, intent Intent) error {
	call := s.thought.Completion.ToolCalls[intent.Index]
	return ev.Post(ctx, "tool_start/"+Key(s.cmd.Run, s.number, intent.Index), api.ToolStart{
		Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Index: intent.Index, ToolName: call.Name, ToolCallID: call.ID,
		Arguments: arguments(call), At: intent.At,
	})
}

func (e *Engine) saidEnd(ctx context.Context, s *state, ev Events, id string, r Result) error {
	call := s.thought.Completion.ToolCalls[r.Index]
	text := r.Text
	if text == "" {
		text = r.Error
	}
	return ev.Post(ctx, "tool_end/"+Key(s.cmd.Run, s.number, r.Index), api.ToolEnd{
		Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Index: r.Index, ToolName: call.Name, ToolCallID: call.ID,
		Outcome: r.Outcome, Result: text, Duration: r.DurationMS, At: r.At,
	})
}

func (e *Engine) saidPersisted(ctx context.Context, cmd api.Run, number int, at int64, ev Events) error {
	id := ID(cmd.Run, number)
	return ev.Post(ctx, "loop_persist/"+id, api.LoopPersist{Run: cmd.Run, Session: cmd.Session, Turn: id, At: at})
}

// finish announces the end of a run that is in the store. It may be called again
// for the same run: every id is the same.
func (e *Engine) finish(ctx context.Context, end End, ev Events) error {
	cmd := end.Run
	if end.Input.Inbox > 0 {
		if err := e.Inbox.Settle(ctx, cmd.Agent, cmd.Run); err != nil {
			return err
		}
	}
	if end.Alarm { // before the announcement that the agent sleeps; the same alarm again changes nothing
		a := api.SetAlarm{ID: cmd.Run + "/rest", Agent: cmd.Agent, At: end.Sleep, Reason: end.Why}
		if _, err := e.Alarms.SetAlarm(ctx, a); err != nil {
			return err
		}
	}
	if end.Success && end.Fate != api.FateMerged {
		if err := e.saidPersisted(ctx, cmd, end.Turns, end.At, ev); err != nil {
			return err
		}
	} else if !end.Success {
		if err := ev.Post(ctx, "loop_error/"+cmd.Run, api.LoopError{
			Run: cmd.Run, Session: cmd.Session, Code: end.Code, Reason: end.Reason, Error: end.Error, Next: end.Next, At: end.At,
		}); err != nil {
			return err
		}
	}
	if err := e.saidChanged(ctx, end.Changed, ev); err != nil {
		return err
	}
	if err := ev.Post(ctx, "loop_end/"+cmd.Run, api.LoopEnd{
		Run: cmd.Run, Session: cmd.Session, Agent: cmd.Agent, Success: end.Success, Fate: end.Fate, Into: end.Into, Response: end.Response, Turns: end.Turns,
		Cost: end.Cost, Duration: (end.At - cmd.AcceptedAt) / 1000, At: end.At,
		Code: end.Code, Reason: end.Reason, Error: end.Error, Next: end.Next,
	}); err != nil {
		return err
	}
	return ev.Wait(ctx)
}

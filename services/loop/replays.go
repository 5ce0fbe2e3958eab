package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/replay"
	"github.com/anima-run/anima/services/loop/internal/session"
)

// replayHandlers serves the requests to replay and to fork recorded turns.
type replayHandlers struct {
	store   engine.ContextStore
	journal session.Journal
	clients clients
	models  engine.Models
	tools   map[string]engine.Tool
}

func (r replayHandlers) routes() []bus.Route {
	return []bus.Route{bus.Reply(r.replay), bus.Stream(r.fork)}
}

func (r replayHandlers) recorded(ctx context.Context, id string) (engine.Recording, error) {
	rec, err := r.store.Recorded(ctx, id)
	if err == nil && rec.Reference.Agent != "" {
		rec.Steps, err = r.journal.Turn(ctx, rec.Turn.Session, rec.Turn.Run, rec.Turn.Number, rec.Reference.Since)
	}
	return rec, err
}

// replay replays a recorded turn. It writes nothing.
func (r replayHandlers) replay(ctx context.Context, m api.ReplayTurn) (api.Replayed, error) {
	rec, err := r.recorded(ctx, m.Turn)
	if err != nil {
		return api.Replayed{}, err
	}
	got, err := replay.Replay(ctx, r.store, rec, r.tools)
	if err != nil {
		return api.Replayed{}, err
	}
	t := rec.Turn
	out := api.Replayed{Turn: t.ID, Run: t.Run, Session: t.Session, Agent: t.Agent, Same: got.Difference == nil, Steps: got.Steps, Owners: got.Owners}
	if d := got.Difference; d != nil {
		out.Difference = *d
	}
	return out, nil
}

// fork calls a model with the prompt of a recorded turn and pays for it, under an id of
// its own. A crash loses an answer that the router has stored and charged; it does not
// change the recorded turn.
func (r replayHandlers) fork(ctx context.Context, m api.ForkTurn, send func(api.Delta) error) (api.Forked, error) {
	switch {
	case !m.Policy && m.Model == "" && m.Prompt == "":
		return api.Forked{}, &api.Error{Code: api.Invalid, Message: "the fork changes nothing", Next: "name a model, give a prompt, or ask for the current policy"}
	case m.Policy && (m.Model != "" || m.Prompt != ""):
		return api.Forked{}, &api.Error{Code: api.Invalid, Message: "with a model or a prompt, policy judges the new calls anyway", Next: "leave policy out"}
	}
	if err := r.usable(ctx, m.Model); err != nil {
		return api.Forked{}, err
	}
	rec, err := r.recorded(ctx, m.Turn)
	if err != nil {
		return api.Forked{}, err
	}
	f, err := replay.NewFork(ctx, r.store, rec, m.Prompt)
	if err != nil {
		return api.Forked{}, err
	}
	out := api.Forked{Turn: m.Turn, Recorded: answerOf(f.Answer), Forked: answerOf(f.Answer)}
	for i, c := range rec.Turn.Calls {
		if i < len(out.Recorded.Calls) {
			out.Recorded.Calls[i].Action, out.Recorded.Calls[i].Message = c.Action, c.Error
		}
	}
	if !m.Policy {
		// An error of send is ignored, because the answer has the complete text.
		answer, err := engine.Ask(ctx, r.clients, engine.Question{Complete: api.Complete{
			ID: "fork-" + uuid.NewString(), Agent: rec.Turn.Agent, Session: rec.Turn.Session, Turn: m.Turn, Task: api.TaskTurn, Tier: rec.Reference.Tier,
			Model: cmp.Or(m.Model, f.Agent.Model), Messages: f.Messages, Tools: f.Tools,
		}}, func(d api.Delta) { _ = send(d) })
		if err != nil {
			return api.Forked{}, err
		}
		f.Answer, out.Forked = answer, answerOf(answer)
	}
	return out, r.evaluate(ctx, rec, f, out.Forked.Calls)
}

// usable returns an error for a model that the router would replace by another.
func (r replayHandlers) usable(ctx context.Context, id string) error {
	if id == "" {
		return nil
	}
	all, err := r.models.Models(ctx)
	if err != nil {
		return err
	}
	why := "the router has no such model"
	for _, m := range all {
		switch {
		case m.ID != id:
		case m.Usable:
			return nil
		default:
			why = m.Why
		}
	}
	return &api.Error{Code: api.Invalid, Message: "model " + id + " cannot be used: " + why, Next: "anima model list shows the models that can"}
}

// evaluate requests the decisions that policy would make on calls.
func (r replayHandlers) evaluate(ctx context.Context, rec engine.Recording, f replay.Fork, calls []api.ForkedCall) error {
	for i := range calls {
		c := &calls[i]
		c.Action, c.Code, c.Message = "", "", ""
		args := engine.Arguments(api.ToolCall{Arguments: c.Arguments})
		if tool, known := r.tools[c.Tool]; known {
			if err := tool.Check(args); err != nil {
				c.Message = "not judged: " + err.Error()
				continue
			}
		} else if !json.Valid(args) {
			c.Message = "not judged: the arguments are not JSON"
			continue
		}
		d, err := bus.Call[api.Decision](ctx, r.clients.bus, api.CheckCall{Evaluate: api.Evaluate{
			Agent: rec.Turn.Agent, Session: rec.Turn.Session, Run: rec.Turn.Run, Turn: rec.Turn.ID, Index: i, Tool: c.Tool, Args: args,
			By: rec.Turn.By, Workspace: f.Agent.Workspace, Tools: f.Agent.Tools, Network: f.Agent.Network,
		}})
		if api.CodeOf(err) == api.Invalid {
			c.Message = "not judged: " + api.Wire(err).Message
			continue
		}
		if err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
		c.Action, c.Code, c.Message = d.Action, d.Code, d.Message
	}
	return nil
}

func answerOf(c api.Completion) api.ForkedAnswer {
	out := api.ForkedAnswer{
		Model: c.Model, Provider: c.Provider, Text: c.Text, Finish: c.Finish, InputTokens: c.InputTokens, OutputTokens: c.OutputTokens, Cost: c.Cost,
		Calls: []api.ForkedCall{},
	}
	for _, call := range c.ToolCalls {
		out.Calls = append(out.Calls, api.ForkedCall{Tool: call.Name, Arguments: call.Arguments})
	}
	return out
}

package turn

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// think asks the model and journals its answer.
func (e *Engine) think(ctx context.Context, s *state, ev Events, id string) error {
	history, err := e.Store.History(ctx, s.cmd.Session, historyTurns+s.total)
	if err != nil {
		return err
	}
	facts, err := e.Store.Facts(ctx, s.agent.ID, factsInPrompt)
	if err != nil {
		return err
	}
	prompt := buildPrompt(s, history, facts)
	tools := e.offered(s.agent)
	tokens := estimate(prompt, tools)
	e.Observe.Context(ctx, tokens)
	t := &Thought{Tokens: tokens, Offered: len(tools), StartedAt: e.Now().UnixMicro(), Trace: trace.SpanContextFromContext(ctx).TraceID().String()}
	if err := e.saidThinking(ctx, s, t, ev, id); err != nil {
		return err
	}
	c, err := e.Router.Complete(ctx, api.Complete{
		ID: id, Agent: s.agent.ID, Session: s.cmd.Session, Turn: id, Task: api.TaskTurn, Tier: s.tier,
		Model: s.agent.Model, Messages: prompt, Tools: tools,
	}, func(text string) {
		ev.Delta(ctx, api.StreamDelta{Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Content: text})
	})
	if err != nil {
		return err
	}
	t.Completion, t.At = c, e.Now().UnixMicro()
	if err := e.append(ctx, s, Step{Thought: t}); err != nil {
		return err
	}
	s.thought = t
	return nil
}

// offered are the tools that the agent's definition grants and this executor has.
func (e *Engine) offered(a Agent) []api.Tool {
	var out []api.Tool
	for _, name := range a.Tools {
		if t, ok := e.Tools[name]; ok && (t.Offered == nil || t.Offered(a)) {
			out = append(out, api.Tool{Name: t.Name, Description: t.Description, Schema: t.Schema})
		}
	}
	return out
}

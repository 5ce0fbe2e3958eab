package engine

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// callModel executes CONTEXT and the model call of EXECUTE: it builds the prompt, calls the
// model and journals the completion.
//
// Compactions and layers are stored before the completion is journaled, so the prompt of
// every journaled completion can be rebuilt. After a crash before that, the next owner
// finds the stored compaction and repeats the model calls under the same ids, which are
// not charged again.
func (e *Engine) callModel(ctx context.Context, s *state, ev Events, id string) error {
	m, err := e.prepareContext(ctx, s, id)
	if err != nil {
		return err
	}
	c, settling, err := e.requestCompletion(ctx, s, ev, id, m)
	// The call is made once more, under its id: a refused call has no attempt. An owner that
	// stops in between leaves a purchase that treasury completes.
	if api.ReasonOf(err) == api.ReasonInsufficient && e.Topups != nil && e.Topups.TopUp(ctx, s.agent.ID) {
		c, settling, err = e.requestCompletion(ctx, s, ev, id, m)
	}
	if tooLarge(err) && m.smaller() {
		// The router chose a model with a smaller window, its token count differs, or a call
		// with this prompt may cost more than the tier may spend on one.
		refused := err
		if err = m.fit(ctx, e, s, id); err == nil {
			c, settling, err = e.requestCompletion(ctx, s, ev, id, m)
		} else if api.ReasonOf(err) == api.ReasonOverflow && api.CodeOf(refused) == api.Denied {
			err = refused // which passes when the agent is funded
		}
	}
	if api.ReasonOf(err) == api.ReasonRefused {
		var anew bool
		if anew, err = e.rebuild(ctx, s, id, m, err); anew && err == nil {
			c, settling, err = e.requestCompletion(ctx, s, ev, id, m)
		}
	}
	if err != nil {
		return overflow(err)
	}
	if m.in.Flushing {
		c = silent(c)
	}
	c.Cost += m.paid
	t := m.completion
	s.settling = settling
	t.Answer, t.At = c, e.Now().UnixMicro()
	s.completion = t
	s.advanced(t.At)
	decided := e.evaluate(ctx, s, id, !m.in.Flushing)
	err = e.append(ctx, s, Step{Completion: t})
	if s.ahead = decided(); err != nil {
		s.ahead.leave(err)
		s.completion, s.ahead = nil, nil
	}
	return err
}

// tooLarge reports whether the router refused a prompt that it may accept when it is smaller:
// by the windows of the models, or by the ceiling on the cost of a call.
func tooLarge(err error) bool {
	return api.ReasonOf(err) == api.ReasonTooLong || api.ReasonOf(err) == api.ReasonLimit && api.CodeOf(err) == api.Denied
}

// requestCompletion publishes the event thinking and calls the model.
func (e *Engine) requestCompletion(ctx context.Context, s *state, ev Events, id string, m *promptBuild) (api.Completion, Settling, error) {
	p := m.prompt
	e.Observe.Context(ctx, p.Tokens)
	parts := make([]string, len(p.Uses))
	for i, u := range p.Uses {
		parts[i] = fmt.Sprintf("%s %d", u.Name, u.Tokens)
	}
	trace.SpanFromContext(ctx).SetAttributes(
		attribute.Int64("anima.context.tokens", p.Tokens), attribute.Int64("anima.context.window", m.in.Window),
		attribute.Float64("anima.context.utilisation", float64(p.Utilisation())/100), attribute.Int("anima.context.stage", int(m.stage)),
		attribute.Bool("anima.context.flush", m.in.Flushing), attribute.StringSlice("anima.context.parts", parts),
	)
	ref, err := e.keepParts(ctx, s, m)
	if err != nil {
		return api.Completion{}, nil, err
	}
	m.completion = &Completion{
		Tokens: p.Tokens, Offered: len(m.in.Tools), StartedAt: e.Now().UnixMicro(),
		Trace: trace.SpanContextFromContext(ctx).TraceID().String(), Prompt: ref,
	}
	ev.Live(ctx, api.Thinking{
		Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, TokenEstimate: p.Tokens, ToolCount: len(m.in.Tools), At: m.completion.StartedAt, After: s.last,
	})
	call := api.Complete{
		ID: id, Agent: s.agent.ID, Session: s.cmd.Session, Turn: id, Task: api.TaskTurn, Tier: s.thinksAs(),
		Model: s.agent.Model, Messages: p.Messages, Tools: m.in.Tools, Run: s.cmd.Run, Deadline: s.answerBy(e.Now()),
		By: s.input.By.Kind,
	}
	if s.attempts > 1 && !m.in.Flushing { // a previous owner may have streamed a part of the answer
		ev.Live(ctx, api.StreamDelta{Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Discard: true, After: s.last})
	}
	after := s.last
	delta := func(d api.Delta) {
		ev.Live(ctx, api.StreamDelta{
			Run: s.cmd.Run, Session: s.cmd.Session, Turn: id, Content: d.Content, Discard: d.Discard, Note: d.Note, After: after,
		})
	}
	if m.in.Flushing {
		call.ID, delta = id+".flush", func(api.Delta) {} // a flush is not streamed to watchers
	}
	m.completion.Call = call.ID
	return e.Router.Complete(ctx, Question{Complete: call, Encoded: m.messages, EncodedTools: m.tools}, delta)
}

// rebuild removes the conversation before the run from this prompt and all later ones, if
// the provider has refused it in every form that the router can send, in two
// consecutive runs. It reports whether it did. The first such run only fails with the
// provider's message, which may be about a setting that an operator can correct.
func (e *Engine) rebuild(ctx context.Context, s *state, id string, m *promptBuild, cause error) (bool, error) {
	turns := s.conversation.Turns
	n := len(turns)
	for n > 0 && turns[n-1].Run == s.cmd.Run {
		n--
	}
	if n == 0 || turns[n-1].Finish != api.FinishRejected {
		return false, cause
	}
	from := m.prompt
	m.in.Flushing, m.in.Tools, m.refused, m.flushed = false, m.offered, true, true
	m.in = m.in.After(turns[n-1].Position, leftOut)
	done := Compaction{
		Session: s.cmd.Session, Through: m.in.Through, Summary: m.in.Summary, Turn: id, Stage: int(prompt.Truncate),
		Before: from.Raw, After: prompt.Measure(counter(), m.in).Raw, At: e.Now().UnixMicro(),
	}
	if err := e.Context.Store.Compact(ctx, done); err != nil {
		return true, err
	}
	return true, m.fit(ctx, e, s, id)
}

// leftOut replaces a conversation that a provider has refused.
const leftOut = "[the turns before are left out: the model's provider refuses them]"

// overflow converts the router's error for a prompt that cannot be reduced into one
// with the reason overflow.
func overflow(err error) error {
	if api.ReasonOf(err) != api.ReasonTooLong {
		return err
	}
	return &api.Error{Code: api.Invalid, Reason: api.ReasonOverflow, Message: api.Wire(err).Message, Next: api.Wire(err).Next}
}

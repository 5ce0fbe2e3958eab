package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Compaction is a summary of a session's turns up to a position. It replaces the
// session's previous compaction in prompts and does not change the transcript.
type Compaction struct {
	Session string
	Through int64 // position of the last turn that it covers
	Summary string
	Turn    string // id of the turn that the prompt was built for
	Stage   int
	Cost    api.Micros // of the model calls for the summary
	Before  int64      // tokens of the prompt before the compaction
	After   int64
	At      int64
}

// compactor makes and stores the summaries of one turn's prompt.
type compactor struct {
	*promptBuild
	ctx context.Context //nolint:containedctx // used during one call of fit only
	e   *Engine
	s   *state
	id  string
}

// Compacted implements prompt.Compactor.
func (m *compactor) Compacted(plan prompt.Plan, after prompt.Input, from, to prompt.Prompt) error {
	done := Compaction{
		Session: m.s.cmd.Session, Through: after.Through, Summary: after.Summary, Turn: m.id, Stage: int(plan.Stage),
		Cost: m.paid - m.stored, Before: from.Raw, After: to.Raw, At: m.e.Now().UnixMicro(),
	}
	if err := m.e.Context.Store.Compact(m.ctx, done); err != nil {
		return err
	}
	m.stored, m.flushed = m.paid, false
	return nil
}

// maxSummaryInput is the maximum input of a summary call, in tokens. It fits the
// windows of cheap models.
const maxSummaryInput = 12_000

// Summarise implements prompt.Compactor. The id of each model call derives from the
// turn and the positions that it covers, so that a repeated call is not charged again.
// If a model refuses, Summarise reports the refusal in stage Summarise and uses a
// fallback without a model in later stages.
func (m *compactor) Summarise(in prompt.Input, plan prompt.Plan) (string, bool, error) {
	c := counter()
	if m.e.Recorded != nil {
		return m.e.Recorded.Summary(plan)
	}
	var all []string
	for _, turns := range plan.Groups {
		from, to := turns[0].Position, turns[len(turns)-1].Position
		answer, err := Ask(m.ctx, m.e.Router, Question{Complete: api.Complete{
			ID: fmt.Sprintf("%s.sum%d-%d-%d", m.id, plan.Stage, from, to), Agent: m.s.agent.ID, Session: m.s.cmd.Session, Turn: m.id,
			Task: api.TaskSummary, Tier: m.s.thinksAs(), MaxTokens: plan.Tokens, Run: m.s.cmd.Run, Deadline: m.s.answerBy(m.e.Now()), By: m.s.input.By.Kind,
			Messages: prompt.Request(c, plan, in.Summary, turns, min(maxSummaryInput, in.Window/2)),
		}}, func(api.Delta) {})
		m.paid += answer.Cost
		switch {
		case err != nil && !answered(err):
			return "", false, err
		case err == nil && strings.TrimSpace(answer.Text) != "":
			all = append(all, answer.Text)
		case plan.Stage == prompt.Summarise:
			return "", true, nil
		default:
			return prompt.Fallback(c, plan, in.Summary), false, nil
		}
	}
	return prompt.Merged(c, plan, in.Summary, all), false, nil
}

// answered reports whether err is a refusal by the router or its providers, so that the
// caller must continue without the answer. The run is retried after all other errors.
func answered(err error) bool {
	reason := api.ReasonOf(err)
	if api.CodeOf(err) == api.Unavailable && (reason == api.ReasonProvider || reason == api.ReasonPolicy) {
		return reason == api.ReasonProvider
	}
	return fatal(err)
}

// silent returns the completion of a memory flush with only the calls that write
// MEMORY.md and with the finish reason flush. Calls that are not executed in other turns
// are left out: a text that was cut must not replace the file.
func silent(c api.Completion) api.Completion {
	var calls []api.ToolCall
	for i, call := range c.ToolCalls {
		if withheld(c.Finish) || cutCall(c, i) {
			continue
		}
		var args struct {
			Path string `json:"path"`
		}
		if call.Name == NotesTool && json.Unmarshal([]byte(call.Arguments), &args) == nil && args.Path == notesFile {
			calls = append(calls, call)
		}
	}
	c.ToolCalls, c.Finish = calls, api.FinishFlush
	return c
}

// File and tool that a memory flush may use.
const (
	notesFile = "MEMORY.md"
	NotesTool = "write_file"
)

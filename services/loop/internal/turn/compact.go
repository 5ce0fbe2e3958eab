package turn

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Compaction says that a session's turns up to a position are summarised. It
// replaces the one before in prompts and nothing in the transcript.
type Compaction struct {
	Session string
	Through int64  // position
	Summary string // text
	Turn    string // for whose prompt it was made
	Stage   int
	Cost    api.Micros // of the model calls that made it
	Before  int64      // tokens of the prompt
	After   int64
	At      int64
}

// compactor makes and stores the summaries of one turn's prompt.
type compactor struct {
	*made
	ctx context.Context //nolint:containedctx // it lives as long as one call of fit
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

// maxSummaryInput is what a model is given to summarise, in tokens: any model that
// is cheap enough takes it.
const maxSummaryInput = 12_000

// Summarise implements prompt.Compactor. Each call has an id of the turn and of the
// positions that it covers, so the same summary is paid once. From stage 4 on a
// model that refuses is done without.
func (m *compactor) Summarise(in prompt.Input, plan prompt.Plan) (string, bool, error) {
	c := counter()
	if m.e.player != nil {
		return m.e.player.summary(plan)
	}
	var all []string
	for _, turns := range plan.Groups {
		from, to := turns[0].Position, turns[len(turns)-1].Position
		answer, err := Ask(m.ctx, m.e.Router, Question{Complete: api.Complete{
			ID: fmt.Sprintf("%s.sum%d-%d-%d", m.id, plan.Stage, from, to), Agent: m.s.agent.ID, Session: m.s.cmd.Session, Turn: m.id,
			Task: api.TaskSummary, Tier: m.s.tier, MaxTokens: plan.Tokens, Run: m.s.cmd.Run, Deadline: m.s.answerBy(m.e.Now()),
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

// answered says that the router itself refused, or its providers did: another way
// is to be found. All other errors bring the run back.
func answered(err error) bool {
	switch api.CodeOf(err) {
	case api.Invalid, api.Denied:
		return true
	case api.Unavailable:
		r := api.ReasonOf(err)
		return r == api.ReasonProvider || r != api.ReasonPolicy && fatal(err)
	case api.NotFound, api.Conflict, api.Internal:
	}
	return false
}

// silent is the answer of a memory flush: of its calls those that write MEMORY.md
// remain, and the turn's finish says what it was.
func silent(c api.Completion) api.Completion {
	var calls []api.ToolCall
	for _, call := range c.ToolCalls {
		var args struct {
			Path string `json:"path"`
		}
		if call.Name == notesTool && json.Unmarshal([]byte(call.Arguments), &args) == nil && args.Path == notesFile {
			calls = append(calls, call)
		}
	}
	c.ToolCalls, c.Finish = calls, api.FinishFlush
	return c
}

// What a memory flush may write, and with what.
const (
	notesFile = "MEMORY.md"
	notesTool = "write_file"
)

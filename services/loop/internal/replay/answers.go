package replay

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Complete implements [engine.Router].
func (p *replayer) Complete(context.Context, engine.Question, func(api.Delta)) (api.Completion, engine.Settling, error) {
	if p.Reference.From > 0 && !p.tooLong {
		p.tooLong = true
		return api.Completion{}, nil, &api.Error{Code: api.Invalid, Reason: api.ReasonTooLong, Message: "the prompt is too long"}
	}
	if p.Reference.Refused && !p.refused {
		p.refused = true
		return api.Completion{}, nil, &api.Error{Code: api.Invalid, Reason: api.ReasonRefused, Message: "the provider refuses the request"}
	}
	return p.completion.Answer, engine.Settled{}, nil
}

// Confirm implements [engine.Router].
func (p *replayer) Confirm(context.Context, string, string) (*api.Funds, error) { return nil, nil }

// Models implements [engine.Models]. The agent's model and the model that answered last have
// the recorded window.
func (p *replayer) Models(context.Context) ([]api.Model, error) {
	window := p.Reference.Window
	if p.Reference.From > 0 {
		window = p.Reference.From
	}
	out := []api.Model{{ID: p.given.Agent.Model, ContextWindow: window, Usable: true}}
	if last := p.Before.LastModel(); last != p.given.Agent.Model {
		out = append(out, api.Model{ID: last, ContextWindow: window, Usable: true})
	}
	if p.Reference.From > 0 {
		out = append(out, api.Model{ID: "smaller", ContextWindow: p.Reference.Window, Usable: true})
	}
	return out, nil
}

// Evaluate implements [engine.Policy].
func (p *replayer) Evaluate(_ context.Context, req api.Evaluate) (api.Decision, error) {
	r, there := p.results[req.Index]
	intent, begun := p.intents[req.Index]
	switch {
	case begun:
		return p.allow(req, intent.Decision)
	case !there:
		return api.Decision{}, p.stop()
	case r.Action == api.Allow:
		return p.allow(req, r.Decision)
	case r.Decision == "":
		return api.Decision{}, api.Errorf(api.Invalid, "%s", strings.TrimPrefix(r.Error, engine.NotRun))
	}
	code, message, _ := strings.Cut(strings.TrimPrefix(r.Error, engine.PolicyDenied), ": ")
	return api.Decision{ID: r.Decision, Action: r.Action, Code: code, Message: message}, nil
}

func (p *replayer) allow(req api.Evaluate, decision string) (api.Decision, error) {
	hash, err := api.ArgsHash(req.Args)
	token := strconv.Itoa(req.Index)
	p.grants[token] = api.Grant{
		Decision: decision, Agent: req.Agent, Turn: req.Turn, Index: req.Index, Tool: req.Tool, ArgsHash: hash, By: req.By, Expires: p.Turn.EndedAt + 1,
	}
	return api.Decision{ID: decision, Action: api.Allow, Token: token}, err
}

// Verify implements [engine.Policy].
func (p *replayer) Verify(_ context.Context, token string) (api.Grant, error) {
	return p.grants[token], nil
}

// Waiting implements [engine.Queue]. It returns the messages that joined the turn at this
// step.
func (p *replayer) Waiting(context.Context, api.Run) ([]api.Run, error) {
	if next := p.next(); next != nil && next.Joined != nil {
		return next.Joined.Merged, nil
	}
	return nil, nil
}

// Watch implements [engine.Queue]. A message may have steered any recorded run that continued.
func (p *replayer) Watch(_ api.Run, cancel context.CancelCauseFunc) (func() bool, func()) {
	p.cancel = cancel
	return func() bool { return p.End == nil }, func() {}
}

// Balance implements [engine.Treasury].
func (p *replayer) Balance(context.Context, string) (api.Balance, error) {
	return api.Balance{Tier: p.Reference.Tier}, nil
}

// Spent implements [engine.Treasury].
func (p *replayer) Spent(context.Context, string, string) (api.Spent, error) {
	return api.Spent{Paid: p.Turn.Cost}, nil
}

// Conversation implements [engine.ContextStore].
func (p *replayer) Conversation(context.Context, string, string, int) (engine.Conversation, error) {
	return p.Before, nil
}

// The remaining ports do nothing.

func (p *replayer) Drop(_ context.Context, end engine.End) (engine.End, error)      { return end, nil }
func (p *replayer) Merge(context.Context, api.Run, []api.Run, int64) error          { return nil }
func (p *replayer) Waits(context.Context, string) (bool, error)                     { return true, nil }
func (p *replayer) Settle(context.Context, string, string, bool) error              { return nil }
func (p *replayer) SetAlarm(context.Context, api.SetAlarm) (a api.Alarm, err error) { return a, nil }
func (p *replayer) Compact(context.Context, engine.Compaction) error                { return nil }
func (p *replayer) Keep(context.Context, map[string]string) error                   { return nil }
func (p *replayer) Text(context.Context, string) (string, error)                    { return "", io.EOF }

func (p *replayer) Recorded(context.Context, string) (rec engine.Recording, err error) {
	return rec, io.EOF
}

func (p *replayer) Claim(_ context.Context, _, _, _ string) ([]api.InboxMessage, error) {
	return nil, nil
}

func (p *replayer) Prompt(context.Context, string) (r engine.Reference, _ []prompt.Turn, err error) {
	return r, nil, io.EOF
}

package goal

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// ask makes a model call that the agent pays.
func (o *Orchestrator) ask(ctx context.Context, s *State, id string, task api.Task, prompt []api.ChatMessage) (api.Completion, error) {
	balance, err := o.Treasury.Balance(ctx, s.Agent)
	if err != nil {
		balance.Tier = api.TierUnknown
	}
	agent, err := o.Agent(ctx, s.Agent)
	if err != nil {
		return api.Completion{}, err
	}
	return engine.Ask(ctx, o.Router, engine.Question{Complete: api.Complete{
		ID: id, Agent: s.Agent, Session: agent.Session, Turn: id, Task: task, Tier: balance.Tier, Messages: prompt, By: s.By.Kind,
	}}, func(api.Delta) {})
}

// retryable reports whether the error of a model call is temporary and the call is to be
// tried again.
func retryable(ctx context.Context, err error, try int) bool {
	if ctx.Err() != nil {
		return true // this replica exits, or its lease expired
	}
	return try < patience && !persists(err) && mayBeTemporary(err)
}

// mayBeTemporary reports whether a repeated request may succeed.
func mayBeTemporary(err error) bool {
	code := api.CodeOf(err)
	return code == api.Unavailable || code == api.Internal || code == api.Conflict
}

// persists reports whether an error will probably persist for the next tries.
func persists(err error) bool {
	switch api.ReasonOf(err) {
	case api.ReasonNoModel, api.ReasonAuth, api.ReasonQuota, api.ReasonEndpoint, api.ReasonAttempts, api.ReasonTimeout:
		return true
	}
	return false
}

// classify estimates the steps of a goal by a model call, or by its number of words if
// the model gives no estimate. A goal of a few steps gets a plan of one task.
func (o *Orchestrator) classify(ctx context.Context, s *State, try int) error {
	c, err := o.ask(ctx, s, classifyID(s.ID), api.TaskSummary, s.classifyPrompt())
	if err != nil && retryable(ctx, err, try) {
		return err
	}
	steps, ok := parseSteps(c.Text)
	if !ok {
		o.Log.InfoContext(ctx, "no estimate from the model, goal classified by its number of words", "goal", s.ID, "err", err)
		steps = StepsByWords(s.text())
	}
	return o.done(o.Change(ctx, s.ID, func(s *State) error {
		at := o.Now().UnixMicro()
		if err := s.Classified(steps, c.Cost); err != nil {
			return err
		}
		if s.Planned() {
			return nil
		}
		return s.Propose(0, "single", One(s.Title, s.Description), 0, at)
	}))
}

// plan makes a plan by a model call. If that fails permanently, the plan is one task.
func (o *Orchestrator) plan(ctx context.Context, s *State, try int) error {
	var c Circumstances
	agent, err := o.Agent(ctx, s.Agent)
	if err != nil {
		return err
	}
	c.Tools = agent.Tools
	c.Balance, err = o.Treasury.Balance(ctx, s.Agent)
	if err != nil {
		c.Balance.Tier = api.TierUnknown
	}
	if c.Others, err = o.Store.Goals(ctx, Query{Agent: s.Agent, Limit: 5}); err != nil {
		return err
	}
	last := s.Version
	answer, err := o.ask(ctx, s, planID(s.ID, last+1), api.TaskPlanning, s.planPrompt(c))
	if err != nil && retryable(ctx, err, try) {
		return err
	}
	draft, source := Draft{}, "planner"
	if err == nil {
		draft, err = ParsePlan(answer.Text)
	}
	if err != nil {
		o.Log.WarnContext(ctx, "no plan from the model, using a plan of one task", "goal", s.ID, "err", err)
		draft, source = One(s.Title, s.Description), "fallback"
	}
	return o.done(o.Change(ctx, s.ID, func(s *State) error {
		return s.Propose(last, source, draft, answer.Cost, o.Now().UnixMicro())
	}))
}

// lateCost adds the cost of the last model call to a goal that was cancelled during the
// call. The replica that made the call may have crashed before it stored the answer.
func (o *Orchestrator) lateCost(ctx context.Context, s *State) error {
	question := s.question()
	paid, err := engine.Spent(ctx, o.Treasury, s.Agent, question)
	if err != nil || paid == 0 {
		return err
	}
	return o.done(o.Change(ctx, s.ID, func(s *State) error { return s.AddLateCost(question, paid, o.Now().UnixMicro()) }))
}

// review requests policy's decision on a plan. It does nothing for a plan that waits for
// the creator.
func (o *Orchestrator) review(ctx context.Context, s *State) error {
	p := s.plan()
	if p.Status != api.PlanProposed {
		return nil
	}
	hash, err := p.Draft.Hash()
	if err != nil {
		return err
	}
	d, err := o.ApprovePlan(ctx, api.ApprovePlan{
		Agent: s.Agent, Goal: s.ID, Version: p.Version, Title: s.Title, Tasks: len(p.Draft.Tasks), Cost: p.Cost, Limit: s.Limit, Hash: hash, By: s.By,
	})
	if err != nil {
		return err
	}
	return o.done(o.Change(ctx, s.ID, func(s *State) error {
		switch d.Action {
		case api.Allow:
			return s.Approve(p.Version, d.ID, o.Now().UnixMicro())
		case api.Quarantine:
			return s.Hold(p.Version, d.ID, d.Message)
		case api.Deny:
		}
		return s.Fail("policy denied the plan: "+d.Code+": "+d.Message, o.Now().UnixMicro())
	}))
}

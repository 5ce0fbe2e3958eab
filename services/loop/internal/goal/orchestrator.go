package goal

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Policy judges plans.
type Policy interface {
	ApprovePlan(ctx context.Context, m api.ApprovePlan) (api.Decision, error)
}

// Runs stops runs.
type Runs interface {
	CancelRun(ctx context.Context, m api.CancelRun) (api.RunState, error)
}

// Agents tells what an agent may use.
type Agents interface {
	Agent(ctx context.Context, id string) (api.Agent, error)
}

// Leases lets one replica at a time do something.
type Leases interface {
	// With runs f while no other caller runs under key; the context of f ends when that
	// is no longer certain. Errors: Conflict while another one does.
	With(ctx context.Context, key string, f func(context.Context) error) error
}

// Orchestrator brings goals on. Its methods may be called for the same thing twice,
// late and on several replicas at once.
type Orchestrator struct {
	Store    Store
	Router   turn.Router
	Treasury turn.Treasury
	Policy   Policy
	Runs     Runs
	Agents   Agents
	Leases   Leases
	Now      func() time.Time
	Log      *slog.Logger
	// Kick is called after a change: its messages wait in the outbox.
	Kick func()
}

// patience is how often a step is tried while the model's failure may pass, before
// the goal goes on without its answer: about a minute, by the bus's pauses.
const patience = 8

// Change makes a change and has its messages sent.
func (o *Orchestrator) Change(ctx context.Context, id string, change func(*State) error) (State, error) {
	s, err := o.Store.ChangeGoal(ctx, id, o.Now().UnixMicro(), change)
	if err == nil {
		o.Kick()
	}
	return s, err
}

// Step does what a goal waits for now: it stops runs whose results are not needed any
// more, and asks the model or policy. try counts the tries of the same step, from 1. An error means
// that the step is to be tried again.
//
// Dying before the change that ends a step repeats it: the model is asked under the
// same id, which is paid once; policy answers with what it decided; a run that was
// cancelled is cancelled again; what a question has cost is counted once.
func (o *Orchestrator) Step(ctx context.Context, id string, try int) error {
	s, err := o.Store.Goal(ctx, id)
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if err := o.stop(ctx, &s); err != nil {
		return err
	}
	switch s.Phase() {
	case api.PhaseClassifying:
		err = o.alone(ctx, &s, func(ctx context.Context) error { return o.classify(ctx, &s, try) })
	case api.PhasePlanning, api.PhaseReplanning:
		err = o.alone(ctx, &s, func(ctx context.Context) error { return o.plan(ctx, &s, try) })
	case api.PhaseReview:
		err = o.review(ctx, &s)
	case api.PhaseCancelled: // the replica that asks a model for it has the lease until the answer is there
		err = o.alone(ctx, &s, func(ctx context.Context) error { return o.unheard(ctx, &s) })
	case api.PhaseExecuting, api.PhaseComplete, api.PhaseFailed:
	}
	switch api.CodeOf(err) {
	case api.Invalid, api.Denied: // trying again changes nothing
		o.Log.WarnContext(ctx, "goal failed", "goal", id, "phase", string(s.Phase()), "err", err)
		return o.done(o.Change(ctx, id, func(s *State) error { return s.Fail(api.Wire(err).Message, o.Now().UnixMicro()) }))
	case "", api.NotFound, api.Conflict, api.Unavailable, api.Internal:
	}
	return err
}

// done forgets that a change was out of date: what it was for is done, or not wanted
// any more.
func (o *Orchestrator) done(_ State, err error) error {
	if api.CodeOf(err) == api.Conflict || api.CodeOf(err) == api.NotFound {
		return nil
	}
	return err
}

// alone runs a step that asks a model, in one replica at a time. The goal is read
// again: who had the lease before may have done the step.
func (o *Orchestrator) alone(ctx context.Context, s *State, f func(context.Context) error) error {
	return o.Leases.With(ctx, api.LeaseKey("goal."+s.ID), func(ctx context.Context) error {
		now, err := o.Store.Goal(ctx, s.ID)
		if err != nil {
			return err
		}
		if now.Phase() != s.Phase() || now.Version != s.Version {
			return nil // the replica that went on has said so in an event of its own
		}
		*s = now
		return f(ctx)
	})
}

// stop tells the runs of attempts that are over. They are cancelled since the change
// that made them strays; a replica that has one under way is told now.
func (o *Orchestrator) stop(ctx context.Context, s *State) error {
	var stopped []string
	for _, a := range s.Strays() {
		c := s.cancelOf(a)
		_, err := o.Runs.CancelRun(ctx, api.CancelRun{Run: c.Run, Session: c.Session, Reason: c.Reason})
		switch api.CodeOf(err) {
		case api.Unavailable, api.Internal, api.Conflict:
			return err
		case "", api.NotFound, api.Invalid, api.Denied:
			// The event that led here left the outbox after the run did, so a run that
			// cannot be found is over and forgotten.
		}
		stopped = append(stopped, a.Run)
	}
	if len(stopped) == 0 {
		return nil
	}
	now, err := o.Change(ctx, s.ID, func(s *State) error { s.Stopped(stopped, o.Now().UnixMicro()); return nil })
	if err == nil {
		*s = now
	}
	return err
}

// ask makes a model call that the agent pays.
func (o *Orchestrator) ask(ctx context.Context, s *State, id string, task api.Task, prompt []api.ChatMessage) (api.Completion, error) {
	balance, err := o.Treasury.Balance(ctx, s.Agent)
	if err != nil {
		balance.Tier = api.TierUnknown
	}
	agent, err := o.Agents.Agent(ctx, s.Agent)
	if err != nil {
		return api.Completion{}, err
	}
	return turn.Ask(ctx, o.Router, turn.Question{Complete: api.Complete{
		ID: id, Agent: s.Agent, Session: agent.Session, Turn: id, Task: task, Tier: balance.Tier, Messages: prompt,
	}}, func(api.Delta) {})
}

// mayPass says whether it is worth asking the model again.
func mayPass(ctx context.Context, err error, try int) bool {
	if ctx.Err() != nil {
		return true // this replica stops, or lost the lease
	}
	code := api.CodeOf(err)
	return try < patience && !lasts(err) && (code == api.Unavailable || code == api.Internal || code == api.Conflict)
}

// lasts says that asking the model again does not mend it soon.
func lasts(err error) bool {
	switch api.ReasonOf(err) {
	case api.ReasonNoModel, api.ReasonAuth, api.ReasonQuota, api.ReasonEndpoint, api.ReasonAttempts, api.ReasonTimeout:
		return true
	}
	return false
}

// classify estimates the steps of a goal. Without a model's word its own words are
// counted. A goal of a few steps is a plan of one task.
func (o *Orchestrator) classify(ctx context.Context, s *State, try int) error {
	c, err := o.ask(ctx, s, classifyID(s.ID), api.TaskSummary, s.classifyPrompt())
	if err != nil && mayPass(ctx, err, try) {
		return err
	}
	steps, ok := parseSteps(c.Text)
	if !ok {
		o.Log.InfoContext(ctx, "goal classified by its words", "goal", s.ID, "err", err)
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

// plan asks the planner. When it fails for good, one task does it all.
func (o *Orchestrator) plan(ctx context.Context, s *State, try int) error {
	var c Circumstances
	agent, err := o.Agents.Agent(ctx, s.Agent)
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
	if err != nil && mayPass(ctx, err, try) {
		return err
	}
	draft, source := Draft{}, "planner"
	if err == nil {
		draft, err = ParsePlan(answer.Text)
	}
	if err != nil {
		o.Log.WarnContext(ctx, "no plan, one task does it all", "goal", s.ID, "err", err)
		draft, source = One(s.Title, s.Description), "fallback"
	}
	return o.done(o.Change(ctx, s.ID, func(s *State) error {
		return s.Propose(last, source, draft, answer.Cost, o.Now().UnixMicro())
	}))
}

// unheard has a goal that was cancelled know what its last question has cost. Who
// asked it may be dead, and the answer on its way.
func (o *Orchestrator) unheard(ctx context.Context, s *State) error {
	question := s.question()
	paid, err := turn.Spent(ctx, o.Treasury, s.Agent, question)
	if err != nil || paid == 0 {
		return err
	}
	return o.done(o.Change(ctx, s.ID, func(s *State) error { return s.Unheard(question, paid, o.Now().UnixMicro()) }))
}

// review asks policy about the plan. One that waits for the creator is left alone.
func (o *Orchestrator) review(ctx context.Context, s *State) error {
	p := s.plan()
	if p.Status != api.PlanProposed {
		return nil
	}
	hash, err := p.Draft.Hash()
	if err != nil {
		return err
	}
	d, err := o.Policy.ApprovePlan(ctx, api.ApprovePlan{
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

// Start begins an attempt from the queue: its run is sent with the change.
func (o *Orchestrator) Start(ctx context.Context, m api.DoTask) error {
	return o.done(o.Change(ctx, m.Goal, func(s *State) error { return s.Claim(m.Task, m.Attempt, o.Now().UnixMicro()) }))
}

// Ended takes the end of a run: if the run still holds its task, the end decides it.
// Runs that are no attempts are none of its business.
func (o *Orchestrator) Ended(ctx context.Context, m api.LoopEnd) error {
	if !Worked(m.Session) {
		return nil
	}
	id, err := o.Store.GoalOfRun(ctx, m.Run)
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	out, err := o.Store.RunOutcome(ctx, m.Run)
	if api.CodeOf(err) == api.NotFound { // it ended before anything was stored
		out, err = Outcome{Success: m.Success, Response: m.Response, Turns: m.Turns, Cost: m.Cost}, nil
	}
	if err != nil {
		return err
	}
	return o.done(o.Change(ctx, id, func(s *State) error {
		at := o.Now().UnixMicro()
		if err := s.Ended(m.Run, out.Cost, at); err != nil {
			return err
		}
		if _, err := s.held(m.Run); err != nil {
			return nil //nolint:nilerr // its task has been decided; what the run cost is kept
		}
		result, code, text, retry := Judge(out)
		if code == "" {
			return s.Complete(m.Run, result, "", at)
		}
		return s.FailTask(m.Run, code, text, retry, at)
	}))
}

// Judge says what the end of a run means for its task: its result, or why there is
// none and whether to try again. Turns that are used up and an empty answer are
// failures (W-21).
func Judge(o Outcome) (result, code, text string, retry bool) {
	switch {
	case !o.Success && o.Reason == api.ReasonCancelled:
		return "", "CANCELLED", o.Error, false
	case !o.Success:
		code = "RUN_FAILED"
		if o.Reason != "" {
			code = reasonCode(o.Reason)
		}
		hopeless := o.Code == api.Invalid ||
			o.Code == api.Denied && (o.Reason == api.ReasonInsufficient || o.Reason == api.ReasonLimit || o.Reason == api.ReasonCostCap)
		return "", code, o.Error, !hopeless
	case o.Calls && o.MaxTurns > 0 && o.Turns >= o.MaxTurns:
		return "", "MAX_TURNS", fmt.Sprintf("no result within %d turns", o.Turns), true
	case o.Calls:
		return "", "NO_RESULT", "the run ended in a call and not in a result", true
	case o.Response == "":
		return "", "NO_RESULT", "the run ended without a word", true
	}
	return o.Response, "", "", false
}

// Expire ends attempts whose deadline has passed.
func (o *Orchestrator) Expire(ctx context.Context) error {
	at := o.Now().UnixMicro()
	late, err := o.Store.Overdue(ctx, at)
	if err != nil {
		return err
	}
	for _, id := range late {
		if err := o.done(o.Change(ctx, id, func(s *State) error { s.Expire(at); return nil })); err != nil {
			return err
		}
	}
	return nil
}

// Cancel gives a goal up. One that is over stays as it is.
func (o *Orchestrator) Cancel(ctx context.Context, id, why string) (State, error) {
	s, err := o.Change(ctx, id, func(s *State) error { return s.Cancel(why, o.Now().UnixMicro()) })
	if api.CodeOf(err) == api.Conflict {
		return o.Store.Goal(ctx, id)
	}
	return s, err
}

// Review takes the creator's word on a plan.
func (o *Orchestrator) Review(ctx context.Context, m api.ReviewPlan) (State, error) {
	return o.Change(ctx, m.Goal, func(s *State) error {
		if m.Approve {
			return s.Approve(m.Version, "", o.Now().UnixMicro())
		}
		feedback := m.Feedback
		if feedback == "" {
			feedback = "the creator does not want it"
		}
		return s.Reject(m.Version, feedback, o.Now().UnixMicro())
	})
}

// reasonCode is a reason as tasks show it: "insufficient_funds" is
// INSUFFICIENT_FUNDS.
func reasonCode(reason string) string { return strings.ToUpper(reason) }

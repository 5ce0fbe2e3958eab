package goal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Orchestrator advances goals. Its methods are idempotent: they may be called repeatedly,
// late and by concurrent replicas.
type Orchestrator struct {
	Store    Store
	Router   engine.Router
	Treasury engine.Treasury
	Agent    func(ctx context.Context, id string) (api.Agent, error)
	// ApprovePlan returns policy's decision on a plan.
	ApprovePlan func(ctx context.Context, m api.ApprovePlan) (api.Decision, error)
	CancelRun   func(ctx context.Context, c Cancel) error
	// Lease calls f while no other replica or caller holds the lease of key. The context
	// of f ends when the lease may have expired. Errors: Conflict while another holds it.
	Lease func(ctx context.Context, key string, f func(context.Context) error) error
	Now   func() time.Time
	Log   *slog.Logger
	// Wake is called after a change, to publish the messages in the outbox.
	Wake func()
}

// patience is the number of tries of a step while the model's error is temporary. After
// them the step continues without the model's answer: about a minute with the backoff of
// the bus.
const patience = 8

// Change applies a change and has its messages published.
func (o *Orchestrator) Change(ctx context.Context, id string, change func(*State) error) (State, error) {
	s, err := o.Store.ChangeGoal(ctx, id, o.Now().UnixMicro(), change)
	if err == nil {
		o.Wake()
	}
	return s, err
}

// Step executes the step that a goal's phase requires: it cancels strays, and calls the
// model or policy. try is the number of the try of this step, from 1. On an error the
// caller must try the step again.
//
// A step that crashes before its change is repeated. This is idempotent: the model call
// has the same id and is paid once, policy returns the same decision, a run may be
// cancelled twice, and the cost of a call is added once.
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
		err = o.withLease(ctx, &s, func(ctx context.Context) error { return o.classify(ctx, &s, try) })
	case api.PhasePlanning, api.PhaseReplanning:
		err = o.withLease(ctx, &s, func(ctx context.Context) error { return o.plan(ctx, &s, try) })
	case api.PhaseReview:
		err = o.review(ctx, &s)
	case api.PhaseCancelled: // the replica that calls the model holds the lease until it has the answer
		err = o.withLease(ctx, &s, func(ctx context.Context) error { return o.lateCost(ctx, &s) })
	case api.PhaseExecuting, api.PhaseComplete, api.PhaseFailed:
	}
	if code := api.CodeOf(err); code == api.Invalid || code == api.Denied || code == api.NotFound { // a retry would fail again; the agent may be deleted
		o.Log.WarnContext(ctx, "goal failed", "goal", id, "phase", string(s.Phase()), "err", err)
		return o.done(o.Change(ctx, id, func(s *State) error { return s.Fail(api.Wire(err).Message, o.Now().UnixMicro()) }))
	}
	return err
}

// done drops the error of a change that is out of date, because it is applied already or
// not needed any more.
func (o *Orchestrator) done(_ State, err error) error {
	if api.CodeOf(err) == api.Conflict || api.CodeOf(err) == api.NotFound {
		return nil
	}
	return err
}

// withLease executes a step that calls a model, in one replica at a time. It reads the goal
// again, because the previous holder of the lease may have completed the step.
func (o *Orchestrator) withLease(ctx context.Context, s *State, f func(context.Context) error) error {
	return o.Lease(ctx, api.LeaseKey("goal."+s.ID), func(ctx context.Context) error {
		now, err := o.Store.Goal(ctx, s.ID)
		if err != nil {
			return err
		}
		if now.Phase() != s.Phase() || now.Version != s.Version {
			return nil // the replica that completed the step has published an event for the next one
		}
		*s = now
		return f(ctx)
	})
}

// stop cancels the runs of strays. Their cancellation was stored with the change that
// made them strays; CancelRun notifies the replica that executes the run.
func (o *Orchestrator) stop(ctx context.Context, s *State) error {
	var stopped []string
	for _, a := range s.Strays() {
		err := o.CancelRun(ctx, s.cancelOf(a))
		if mayBeTemporary(err) {
			return err
		}
		// The outbox published the run before the event that caused this step, so a run
		// that is not found has ended and is not stored any more.
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

// Start begins a queued attempt; its run is published with the change.
func (o *Orchestrator) Start(ctx context.Context, goal, task string, attempt int) error {
	return o.done(o.Change(ctx, goal, func(s *State) error { return s.Claim(task, attempt, o.Now().UnixMicro()) }))
}

// Ended records the end of a run. If the run holds its task, its outcome ends the
// attempt. said is the outcome for a run that ended before anything was stored. Runs that
// are no attempts are ignored.
func (o *Orchestrator) Ended(ctx context.Context, run, session string, said Outcome) error {
	if !Worked(session) {
		return nil
	}
	id, err := o.Store.GoalOfRun(ctx, run)
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	out, err := o.Store.RunOutcome(ctx, run)
	if api.CodeOf(err) == api.NotFound {
		out, err = said, nil
	}
	if err != nil {
		return err
	}
	return o.done(o.Change(ctx, id, func(s *State) error {
		at := o.Now().UnixMicro()
		if err := s.Ended(run, out.Cost, at); err != nil {
			return err
		}
		if _, err := s.held(run); err != nil {
			return nil //nolint:nilerr // its task has ended already; the cost of the run is stored
		}
		result, code, text, retry := ResultOf(out)
		if code == "" {
			return s.Complete(run, result, "", at)
		}
		return s.FailTask(run, code, text, retry, at)
	}))
}

// ResultOf derives the result of a task from the outcome of its run, or the code and text of
// its failure and whether to retry. A run whose last turn made tool calls, or that has no
// response, failed (docs/reference/goals.md, missing outcome).
func ResultOf(o Outcome) (result, code, text string, retry bool) {
	switch {
	case !o.Success && o.Reason == api.ReasonCancelled:
		return "", "CANCELLED", o.Error, false
	case !o.Success:
		code = "RUN_FAILED"
		if o.Reason != "" {
			code = reasonCode(o.Reason)
		}
		hopeless := o.Code == api.Invalid ||
			o.Code == api.Denied && (o.Reason == api.ReasonInsufficient || o.Reason == api.ReasonLimit || o.Reason == api.ReasonCostCap || api.OverLimit(o.Reason))
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

// Expire ends the attempts whose deadline has passed.
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

// Cancel cancels a goal. It does not change a goal that has ended.
func (o *Orchestrator) Cancel(ctx context.Context, id, why string) (State, error) {
	s, err := o.Change(ctx, id, func(s *State) error { return s.Cancel(why, o.Now().UnixMicro()) })
	if api.CodeOf(err) == api.Conflict {
		return o.Store.Goal(ctx, id)
	}
	return s, err
}

// Review applies the creator's decision on a version of the plan. A repeated decision
// changes nothing: the bus repeats a request whose answer was lost or late.
func (o *Orchestrator) Review(ctx context.Context, id string, version int, approve bool, feedback string) (State, error) {
	feedback = cmp.Or(feedback, "the creator does not want it")
	s, err := o.Change(ctx, id, func(s *State) error {
		if approve {
			return s.Approve(version, "", o.Now().UnixMicro())
		}
		return s.Reject(version, feedback, o.Now().UnixMicro())
	})
	if api.CodeOf(err) != api.Conflict {
		return s, err
	}
	now, readErr := o.Store.Goal(ctx, id)
	if readErr == nil && now.isReviewed(version, approve, feedback) {
		return now, nil
	}
	return s, err
}

// reasonCode returns a reason as the error code of a task: "insufficient_funds" becomes
// INSUFFICIENT_FUNDS.
func reasonCode(reason string) string { return strings.ToUpper(reason) }

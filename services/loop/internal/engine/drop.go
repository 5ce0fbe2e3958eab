package engine

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// Runs that end without a turn.

// refused returns the end of a run that must not begin, nil if the run may begin.
func refused(cmd api.Run, k Known, at int64) *End {
	end := &End{Run: cmd, Input: Input{By: cmd.By}, Code: api.Denied, At: at, Outcome: api.OutcomeDropped}
	switch {
	case k.Cancelled != "":
		end.Reason, end.Error = api.ReasonCancelled, k.Cancelled
	case k.Terminated != "":
		end.Code, end.Reason, end.Error = api.Conflict, api.ReasonTerminated, inTerminated+k.Terminated
	default:
		return nil
	}
	return end
}

// refuse drops a run unless it has begun; the effects of a run that has begun must be
// recorded. The store records the begin with the run's first turn, the journal before
// that. A journal without entries of the run is no proof, because the leader of its
// stream may be behind (ADR 11). Therefore refuse appends an entry on top of the tail
// that it read: if the stream accepts the entry, the run has not begun.
func (e *Engine) refuse(ctx context.Context, known Known, end End, ev Events) (begun bool, err error) {
	if known.Begun {
		return true, nil
	}
	cmd := end.Run
	tail, last, err := e.Journal.Tail(ctx, cmd, known.Journal)
	if err != nil {
		return false, err
	}
	for _, step := range tail {
		if step.Run == cmd.Run && !step.Release {
			return true, nil
		}
	}
	if _, err := e.Journal.Append(ctx, cmd, Step{Run: cmd.Run, Turn: 1, Release: true}, last); err != nil {
		return false, err
	}
	return false, e.Drop(ctx, end, ev)
}

// Refuse is Drop for a run at the head of its session's queue. Errors: Conflict for a
// run that has begun.
func (e *Engine) Refuse(ctx context.Context, end End, ev Events) error {
	known, err := e.Store.Known(ctx, end.Run)
	if err != nil {
		return err
	}
	if known.Ended != nil {
		return e.announceAgain(ctx, end.Run, known, ev)
	}
	begun, err := e.refuse(ctx, known, end, ev)
	if err == nil && begun {
		err = api.Errorf(api.Conflict, "run %s has begun", end.Run.Run)
	}
	return err
}

// Drop ends a run that is queued and has not begun, with the outcome in end, and
// announces it. After a crash between the two, a repeated Drop announces the outcome
// that was stored first.
func (e *Engine) Drop(ctx context.Context, end End, ev Events) error {
	stored, err := e.Store.Drop(ctx, end)
	if err != nil {
		return err
	}
	return e.announceDropped(ctx, stored, ev)
}

// announceDropped announces the end of a run without turns, below a root span of its own, to
// which the readers of the announcement link. The end is not appended to the journal,
// because another run of the session may be writing there.
func (e *Engine) announceDropped(ctx context.Context, end End, ev Events) error {
	ctx, span := e.Tracer.Start(ctx, "drop_run", trace.WithNewRoot(), trace.WithAttributes(attribute.String("anima.run.fate", string(end.Outcome))))
	defer span.End()
	if err := e.settleEnd(ctx, end); err != nil {
		return err
	}
	m := eventOf(end)
	if !end.Success {
		if err := ev.Post(ctx, "loop_error/"+end.Run.Run, api.LoopError{
			Run: m.Run, Session: m.Session, Code: m.Code, Reason: m.Reason, Error: m.Error, Next: m.Next, At: m.At,
		}); err != nil {
			return err
		}
	}
	if err := ev.Post(ctx, "loop_end/"+end.Run.Run, *m); err != nil {
		return err
	}
	return ev.Wait(ctx)
}

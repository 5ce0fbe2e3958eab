package session

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Expiry ends messages that have waited too long for their session.
type Expiry struct {
	Store interface {
		// QueueTimeout returns the time that a message of an agent may wait.
		QueueTimeout(ctx context.Context, agent string) (time.Duration, error)
		Session(ctx context.Context, id string) (api.Session, error)
	}
	Queue *Queue
	// Begun is [Journal.InProgress].
	Begun func(ctx context.Context, session, run string) (bool, error)
	Limit time.Duration // upper limit of the time that a message may wait
	Now   func() time.Time
	// Drop is [engine.Engine.Drop].
	Drop func(ctx context.Context, end engine.End) error
}

// Due reports whether a message had waited too long at the time at, in Unix
// microseconds. It reads the agent's limit only after a second, which is the shortest
// limit that an AGENT.md can set. A message in mode steer is never due: it waits for the
// end of the model call or the tool calls in progress, which may take longer than any
// limit.
func (x Expiry) Due(ctx context.Context, cmd api.Run, at int64) (bool, error) {
	waited := waitedAt(cmd, at)
	if cmd.Kind != api.RunMessage || cmd.Mode == api.ModeSteer || waited <= x.shortest() {
		return false, nil
	}
	limit, err := x.Store.QueueTimeout(ctx, cmd.Agent)
	return waited > min(limit, x.Limit), err
}

func waitedAt(cmd api.Run, at int64) time.Duration {
	return time.Duration(at-cmd.AcceptedAt) * time.Microsecond
}

func (x Expiry) shortest() time.Duration { return min(time.Second, x.Limit) }

// Soon reports whether the message of a run that begins at the time at may be due before
// another replica sees the begin in the journal. Such a begin is recorded in the store at
// once.
func (x Expiry) Soon(cmd api.Run, at int64) bool {
	return cmd.Kind == api.RunMessage && waitedAt(cmd, at) > x.shortest()/2
}

// WasDue reports whether a message at the head of its queue had waited too long when the
// previous run ended, which was the last to update the session.
func (x Expiry) WasDue(ctx context.Context, cmd api.Run) (bool, error) {
	late, err := x.Due(ctx, cmd, x.Now().UnixMicro())
	if err != nil || !late {
		return false, err
	}
	before, err := x.Store.Session(ctx, cmd.Session)
	if err != nil || before.Turns == 0 {
		return false, err
	}
	return x.Due(ctx, cmd, before.UpdatedAt)
}

// End returns the end of a message that has waited too long.
func (x Expiry) End(cmd api.Run) engine.End {
	return engine.End{
		Run: cmd, Input: engine.Input{By: cmd.By}, Code: api.Denied, Reason: api.ReasonExpired, Outcome: api.OutcomeExpired, At: x.Now().UnixMicro(),
		Error: "the message waited too long for its session, behind other messages",
	}
}

// Expire ends a queued message if it is due and its run has not begun, and announces the
// end. A later delivery of the message finds the end in the store. Errors: Conflict if the
// run has begun since.
//
// The journal has a begin before the store, in which a run may be recorded only with its
// first turn. A begin that follows the check of the journal is recorded before the run has
// any other effect, because [Expiry.Soon] is true; so the store accepts either the begin or
// the end.
func (x Expiry) Expire(ctx context.Context, cmd api.Run) (expired bool, err error) {
	late, err := x.Due(ctx, cmd, x.Now().UnixMicro())
	if err != nil || !late {
		return false, err
	}
	begun, err := x.Begun(ctx, cmd.Session, cmd.Run)
	if err != nil || begun {
		return false, err
	}
	return true, x.Drop(ctx, x.End(cmd))
}

// Sweep ends messages that have waited too long behind the runs of this process.
// Otherwise they would be checked only after those runs, because a session keeps its
// order.
func (x Expiry) Sweep(ctx context.Context) error {
	for _, session := range x.Queue.running() {
		waiting, err := x.Queue.All(ctx, session)
		if err != nil {
			return err
		}
		for _, cmd := range waiting {
			if _, here := x.Queue.running()[cmd.Run]; here {
				continue
			}
			if _, err := x.Expire(ctx, cmd); err != nil && api.CodeOf(err) != api.Conflict {
				return err
			}
		}
	}
	return nil
}

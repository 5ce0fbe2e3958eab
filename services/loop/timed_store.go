package loop

import (
	"context"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// patience is the time without progress after which a run is redelivered to another
// replica. Each wait of a run's handler is shorter: a request, a read or a publish of
// the bus takes 30 s at most, a call of the store storeTimeout. Longer operations, such
// as model calls and tool calls, extend the time with [bus.Within].
const patience = time.Minute

// maxPause is the longest pause before a failed run is retried.
const maxPause = 2 * time.Second

// storeTimeout limits a call of the store by a run. The run's own time limit is
// minutes.
const storeTimeout = 30 * time.Second

// timedStore is an engine.Store whose calls have a timeout, report progress to the bus,
// and pass the failpoint of their durable write.
type timedStore struct{ store engine.Store }

func timed[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	bus.InProgress(ctx)
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return f(ctx)
}

func (s timedStore) Known(ctx context.Context, cmd api.Run) (engine.Known, error) {
	return timed(ctx, func(ctx context.Context) (engine.Known, error) { return s.store.Known(ctx, cmd) })
}

func (s timedStore) Changes(ctx context.Context, cmd api.Run) ([]api.AgentChanged, error) {
	return timed(ctx, func(ctx context.Context) ([]api.AgentChanged, error) { return s.store.Changes(ctx, cmd) })
}

func (s timedStore) Waits(ctx context.Context, run string) (bool, error) {
	return timed(ctx, func(ctx context.Context) (bool, error) { return s.store.Waits(ctx, run) })
}

func (s timedStore) Persist(ctx context.Context, rec *engine.Record, input engine.Input, end *engine.End) error {
	return s.write(ctx, failpoint.LoopPersist, func(ctx context.Context) error { return s.store.Persist(ctx, rec, input, end) })
}

func (s timedStore) Drop(ctx context.Context, end engine.End) (stored engine.End, err error) {
	err = s.write(ctx, failpoint.LoopDrop, func(ctx context.Context) (err error) { stored, err = s.store.Drop(ctx, end); return err })
	return stored, err
}

// Merge passes no failpoint if there is no run to merge, because it writes nothing then.
func (s timedStore) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	if len(merged) == 0 {
		return nil
	}
	return s.write(ctx, failpoint.LoopMerge, func(ctx context.Context) error { return s.store.Merge(ctx, into, merged, at) })
}

func (s timedStore) write(ctx context.Context, p failpoint.Point, f func(context.Context) error) error {
	return failpoint.Do(ctx, p, func(ctx context.Context) error {
		_, err := timed(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
		return err
	})
}

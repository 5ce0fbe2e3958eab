package loop

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// steps is a store whose durable steps are failpoints.
type steps struct{ turn.Store }

func (s steps) Started(ctx context.Context, cmd api.Run, input turn.Input, tier api.Tier, at int64) ([]api.AgentChanged, error) {
	return failpoint.Value(ctx, failpoint.LoopStarted, func(ctx context.Context) ([]api.AgentChanged, error) {
		return s.Store.Started(ctx, cmd, input, tier, at)
	})
}

func (s steps) Drop(ctx context.Context, end turn.End) (turn.End, error) {
	return failpoint.Value(ctx, failpoint.LoopDrop, func(ctx context.Context) (turn.End, error) { return s.Store.Drop(ctx, end) })
}

func (s steps) Merge(ctx context.Context, into api.Run, merged []api.Run, at int64) error {
	if len(merged) == 0 {
		return s.Store.Merge(ctx, into, merged, at) // which writes nothing
	}
	return failpoint.Do(ctx, failpoint.LoopMerge, func(ctx context.Context) error { return s.Store.Merge(ctx, into, merged, at) })
}

func (s steps) Persist(ctx context.Context, rec *turn.Record, input turn.Input, end *turn.End) error {
	return failpoint.Do(ctx, failpoint.LoopPersist, func(ctx context.Context) error { return s.Store.Persist(ctx, rec, input, end) })
}

// effects are tools whose effects are failpoints.
func effects(tools map[string]turn.Tool) map[string]turn.Tool {
	if !failpoint.Enabled {
		return tools
	}
	for name, t := range tools {
		run := t.Run
		t.Run = func(ctx context.Context, c turn.Call) (turn.Output, error) {
			return failpoint.Value(ctx, failpoint.LoopTool, func(ctx context.Context) (turn.Output, error) { return run(ctx, c) })
		}
		tools[name] = t
	}
	return tools
}

// pointOf is the failpoint at which a step enters the journal.
func pointOf(s turn.Step) failpoint.Point {
	switch {
	case s.Begin != nil:
		return failpoint.LoopBegin
	case s.Joined != nil:
		return failpoint.LoopJoined
	case s.Thought != nil:
		return failpoint.LoopThought
	case s.Intent != nil:
		return failpoint.LoopIntent
	}
	return failpoint.LoopResult
}

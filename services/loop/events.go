package loop

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// events publishes the events that are not in a journal. It belongs to one run.
type events struct {
	bus   *bus.Bus
	posts *bus.AsyncPublisher
}

// Post implements turn.Events.
func (e events) Post(ctx context.Context, id string, m api.Message) error {
	return e.posts.Publish(ctx, id, m)
}

// Wait implements turn.Events.
func (e events) Wait(ctx context.Context) error {
	return failpoint.Do(ctx, failpoint.LoopFlush, e.posts.Wait)
}

// Thinking implements turn.Events. It is best effort.
func (e events) Thinking(ctx context.Context, t api.Thinking) { _ = e.bus.PublishLive(ctx, t) }

// Delta implements turn.Events. It is best effort: the complete answer follows in a
// stored event.
func (e events) Delta(ctx context.Context, d api.StreamDelta) { _ = e.bus.PublishLive(ctx, d) }

// Progress implements turn.Events. It is best effort.
func (e events) Progress(ctx context.Context, p api.ToolProgress) { _ = e.bus.PublishLive(ctx, p) }

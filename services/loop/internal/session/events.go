package session

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Events implements engine.Events. It belongs to one run.
type Events struct {
	bus   *bus.Bus
	posts *bus.AsyncPublisher
}

// NewEvents returns the events of one run.
func NewEvents(b *bus.Bus) Events { return Events{b, b.Async()} }

// Post implements engine.Events.
func (e Events) Post(ctx context.Context, id string, m api.Message) error {
	return e.posts.Publish(ctx, id, m)
}

// Wait implements engine.Events.
func (e Events) Wait(ctx context.Context) error {
	return failpoint.Do(ctx, failpoint.LoopFlush, e.posts.Wait)
}

// Live implements engine.Events. It is best effort.
func (e Events) Live(ctx context.Context, m api.Message) { _ = e.bus.PublishLive(ctx, m) }

package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Post stores m like [Bus.Publish] but does not wait: [Posts.Wait] tells whether
// all that were posted arrived. It is for events whose loss a later retry of the
// same ids repairs, and costs the caller no round trip.
func (p *Posts) Post(ctx context.Context, id string, m api.Message) error {
	s := m.Subject()
	msg, err := p.bus.message(s, m)
	if err != nil {
		return err
	}
	msg.Header.Set(jetstream.MsgIDHeader, id)
	if failpoint.Broken(failpoint.NoMessageID) {
		msg.Header.Set(jetstream.MsgIDHeader, id+"#"+nats.NewInbox())
	}
	inject(ctx, msg.Header)
	ln := p.bus.use()
	f, err := ln.js.PublishMsgAsync(msg)
	if err != nil {
		ln.release()
		return fmt.Errorf("post %s: %w", s.Template(), err)
	}
	p.pending = append(p.pending, posted{f, ln, s, id})
	return nil
}

// Posts collects what one goroutine posts. The zero value is not usable; see
// [Bus.Posts].
type Posts struct {
	bus     *Bus
	pending []posted
}

type posted struct {
	jetstream.PubAckFuture

	line    *line
	subject api.Subject
	id      string
}

// Posts returns an empty collection.
func (b *Bus) Posts() *Posts { return &Posts{bus: b} }

// Wait returns when the stream has taken everything posted since the last Wait,
// with the first failure, after 10 s at most. What the stream has not confirmed within
// 3 s, or what it refused because its leader moves, is published again.
func (p *Posts) Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // of a run's minutes; what was lost is posted again
	defer cancel()
	once, done := context.WithTimeout(ctx, tryTimeout)
	defer done()
	var first error
	for _, f := range p.pending {
		err := f.taken(once)
		refused, ok := errors.AsType[*jetstream.APIError](err)
		if err != nil && ctx.Err() == nil && (!ok || passing(refused)) {
			err = p.again(ctx, f)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("post %s: %w", f.Msg().Subject, err)
		}
		f.line.release()
	}
	p.pending = p.pending[:0]
	return first
}

// taken waits until the stream has taken or refused a message, or ctx ends.
func (f posted) taken(ctx context.Context) error {
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	case <-ctx.Done():
	}
	select { // both may be so
	case <-f.Ok():
		return nil
	default:
		return ctx.Err()
	}
}

// again publishes under the same id what may be in the stream already.
func (p *Posts) again(ctx context.Context, f posted) error {
	msg := nats.NewMsg(f.Msg().Subject)
	msg.Data = f.Msg().Data
	_, err := p.bus.publish(ctx, f.subject, f.id, msg, nil)
	return err
}

package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// Publish stores m like [Bus.Publish] but does not wait for the confirmation;
// [AsyncPublisher.Wait] reports whether all messages were stored. It costs the caller no
// round trip and is for events whose loss a later retry with the same ids repairs.
func (p *AsyncPublisher) Publish(ctx context.Context, id string, m api.Message) error {
	s := m.Subject()
	msg, err := p.bus.message(s, m)
	if err != nil {
		return err
	}
	msg.Header.Set(jetstream.MsgIDHeader, dedupID(id))
	inject(ctx, msg.Header)
	cl := p.bus.use()
	f, err := cl.js.PublishMsgAsync(msg)
	if err != nil {
		cl.release()
		return fmt.Errorf("publish %s: %w", s.Template(), err)
	}
	p.pending = append(p.pending, unconfirmed{f, cl, s, id})
	return nil
}

// AsyncPublisher publishes the messages of one goroutine without waiting for each. The
// zero value is not usable; see [Bus.Async].
type AsyncPublisher struct {
	bus     *Bus
	pending []unconfirmed
}

type unconfirmed struct {
	jetstream.PubAckFuture

	client  *client
	subject api.Subject
	id      string
}

// Async returns a publisher without pending messages.
func (b *Bus) Async() *AsyncPublisher { return &AsyncPublisher{bus: b} }

// Wait returns when the stream has stored all messages published since the last Wait, after
// 10 s at most, and returns the first failure. Messages that the stream has not confirmed
// within 3 s, or has refused because its leader changes, are published again.
func (p *AsyncPublisher) Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // the deadline of a run is minutes away, and unstored messages are posted again
	defer cancel()
	once, done := context.WithTimeout(ctx, tryTimeout)
	defer done()
	var first error
	for _, f := range p.pending {
		err := f.confirmed(once)
		refused, ok := errors.AsType[*jetstream.APIError](err)
		if err != nil && ctx.Err() == nil && (!ok || temporary(refused)) {
			err = p.republish(ctx, f)
		}
		if err != nil && first == nil {
			first = fmt.Errorf("publish %s: %w", f.Msg().Subject, err)
		}
		f.client.release()
	}
	p.pending = p.pending[:0]
	return first
}

// confirmed waits until the stream has stored or refused a message, or ctx ends.
func (f unconfirmed) confirmed(ctx context.Context) error {
	select {
	case <-f.Ok():
		return nil
	case err := <-f.Err():
		return err
	case <-ctx.Done():
	}
	select { // both may have happened
	case <-f.Ok():
		return nil
	default:
		return ctx.Err()
	}
}

// republish publishes a message, which may be in the stream already, under the same id.
func (p *AsyncPublisher) republish(ctx context.Context, f unconfirmed) error {
	msg := nats.NewMsg(f.Msg().Subject)
	msg.Data = f.Msg().Data
	_, err := p.bus.publish(ctx, f.subject, f.id, msg, nil)
	return err
}

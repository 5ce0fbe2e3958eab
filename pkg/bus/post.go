package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// Post stores m like [Bus.Publish] but does not wait for the confirmation; [Posts.Wait]
// reports whether all posted messages were stored. It costs the caller no round trip and
// is for events whose loss a later retry with the same ids repairs.
func (p *Posts) Post(ctx context.Context, id string, m api.Message) error {
	s := m.Subject()
	msg, err := p.bus.message(s, m)
	if err != nil {
		return err
	}
	msg.Header.Set(jetstream.MsgIDHeader, dedupID(id))
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

// Posts collects the messages that one goroutine posts. The zero value is not usable; see
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

// Wait returns when the stream has stored all messages posted since the last Wait, after
// 10 s at most, and returns the first failure. Messages that the stream has not confirmed
// within 3 s, or has refused because its leader changes, are published again.
func (p *Posts) Wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // the deadline of a run is minutes away, and unstored messages are posted again
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

// taken waits until the stream has stored or refused a message, or ctx ends.
func (f posted) taken(ctx context.Context) error {
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

// again publishes a message, which may be in the stream already, under the same id.
func (p *Posts) again(ctx context.Context, f posted) error {
	msg := nats.NewMsg(f.Msg().Subject)
	msg.Data = f.Msg().Data
	_, err := p.bus.publish(ctx, f.subject, f.id, msg, nil)
	return err
}

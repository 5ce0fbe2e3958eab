package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// Consuming says how [On] takes messages. The zero value suits projections: one
// at a time, in order.
type Consuming struct {
	Workers    int           // messages in hand in this process; 0 means 1
	AckWait    time.Duration // without a sign of life for this long, another replica gets the message; 0 means 30 s
	MaxDeliver int           // failures before a message is given up; 0 means 10, -1 means never
	InOrder    bool          // messages of one key are handled one after the other, in this process
	NoSpan     bool          // the handler starts its own root span; see [MetaOf]
	FromNow    bool          // a new durable starts with what comes, not with what is kept
	MaxPause   time.Duration // longest pause before a message comes back that failed; 0 means 30 s
	Patience   time.Duration // without progress for this long a handler is taken for hanging, see [Working]; 0 means never
}

// Meta is what a handler may know about the delivery of its message.
type Meta struct {
	ID        string
	Sequence  uint64            // in the stream
	Delivered int               // 1 the first time
	Key       string            // last token of the subject
	Sender    trace.SpanContext // the span that published it: to link, not to continue
	At        time.Time         // when the stream took it
}

type metaKey struct{}

// MetaOf returns the delivery of the message whose handler was given ctx.
func MetaOf(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// On handles every event or command M, with at-least-once delivery under the
// durable "<service>-<message>": replicas of a service share them. While a
// message is in hand, the stream is told that it is in good hands. What the
// handler returns settles the message, see settle. A handler's work outlives
// the sender's turn, so its span is a new root that links to the sender.
//
// A message that comes back comes after those that followed it meanwhile: who
// needs strict order over failures checks it, as projections do by sequence.
func On[M api.Message](handle func(context.Context, M) error, how ...Consuming) Route {
	var c Consuming
	if len(how) > 0 {
		c = how[0]
	}
	c.Workers = max(c.Workers, 1)
	if c.AckWait == 0 {
		c.AckWait = 30 * time.Second
	}
	if c.MaxDeliver == 0 {
		c.MaxDeliver = 10
	}
	if c.MaxPause == 0 {
		c.MaxPause = 30 * time.Second
	}
	return func(s *server) error {
		var zero M
		d := &delivery{
			bus: s.bus, subject: zero.Subject(), how: c,
			held: map[jetstream.Msg]*hand{}, lanes: map[string][]jetstream.Msg{}, hung: map[string]bool{},
		}
		d.run = func(msg jetstream.Msg) {
			var m M
			err := api.Decode(msg.Data(), &m)
			d.process(s.work, msg, err, func(ctx context.Context) error { return handle(ctx, m) })
		}
		if err := d.open(s.work); err != nil {
			return fmt.Errorf("on %s: %w", d.subject.All(), err)
		}
		if err := d.renew(s.work); err != nil {
			s.bus.log.Warn("what was in hand comes when its ack wait is over", "subject", d.subject.All(), "err", err)
		}
		taking, stop := context.WithCancel(s.work)
		s.consumers = append(s.consumers, stop)
		s.consuming.Go(func() { d.take(taking, s) })
		return nil
	}
}

func (ln *line) consumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	for try := 0; ; try++ {
		once, cancel := context.WithTimeout(ctx, tryTimeout)
		c, err := ln.js.CreateOrUpdateConsumer(once, stream, cfg)
		cancel()
		if err == nil || ctx.Err() != nil || !passing(err) || try == 100 {
			return c, err
		}
		if err := pause(ctx, backoff(try, 50*time.Millisecond, time.Second)); err != nil {
			return nil, err
		}
	}
}

func metaOf(msg jetstream.Msg) Meta {
	m := Meta{ID: IDOf(msg.Headers()), Delivered: 1, Key: lastToken(msg.Subject())}
	if md, err := msg.Metadata(); err == nil {
		m.Sequence, m.Delivered, m.At = md.Sequence.Stream, int(md.NumDelivered), md.Timestamp
	}
	m.Sender = trace.SpanContextFromContext(extract(context.Background(), msg.Headers()))
	return m
}

func linkTo(sc trace.SpanContext) []trace.Link {
	if !sc.IsValid() {
		return nil
	}
	return []trace.Link{{SpanContext: sc}}
}

func lastToken(subject string) string {
	for i := len(subject) - 1; i >= 0; i-- {
		if subject[i] == '.' {
			return subject[i+1:]
		}
	}
	return subject
}

package bus

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// ConsumerOptions holds the options of [On]. The zero value suits projections: one message at a
// time, in order.
type ConsumerOptions struct {
	Workers      int           // messages handled at the same time in this process; 0 means 1
	AckWait      time.Duration // a message without acknowledgement or progress for this long is redelivered to any replica; 0 means 30 s
	MaxDeliver   int           // deliveries after which a failing message is terminated; 0 means 10, -1 means never
	InOrder      bool          // messages of one key are handled one after the other in this process
	NoSpan       bool          // the handler starts its own root span; see [MetaOf]
	MaxPause     time.Duration // longest delay before a failed message is redelivered; 0 means 30 s
	StallTimeout time.Duration // a handler without progress for this long is cancelled, see [InProgress]; 0 means never
}

// Meta describes the delivery of a message to its handler.
type Meta struct {
	ID        string
	Sequence  uint64            // in the stream
	Delivered int               // number of this delivery, from 1
	Key       string            // last token of the subject
	Sender    trace.SpanContext // span that published the message, to link to, not to continue
	At        time.Time         // when the stream stored it
}

type metaKey struct{}

// MetaOf returns the Meta of the delivery whose handler was given ctx.
func MetaOf(ctx context.Context) Meta {
	m, _ := ctx.Value(metaKey{}).(Meta)
	return m
}

// On handles every event or command M, delivered at least once through the durable
// "<service>-<message>", which the replicas of the service share. While a message is
// held, its ack wait is extended. The handler's error decides how the message is settled,
// see settle. The handler may run after the sender's turn has ended, so its span is a new
// root that links to the sender.
//
// A redelivered message may come after later ones: a handler that needs strict order
// after failures must check the order, as projections do by sequence.
func On[M api.Message](handle func(context.Context, M) error, how ...ConsumerOptions) Route {
	var c ConsumerOptions
	if len(how) > 0 {
		c = how[0]
	}
	c.Workers = max(c.Workers, 1)
	c.AckWait = cmp.Or(c.AckWait, 30*time.Second)
	c.MaxDeliver = cmp.Or(c.MaxDeliver, 10)
	c.MaxPause = cmp.Or(c.MaxPause, 30*time.Second)
	return func(s *server) error {
		var zero M
		d := &delivery{
			bus: s.bus, subject: zero.Subject(), how: c,
			pending: map[jetstream.Msg]*pending{}, lanes: map[string][]jetstream.Msg{}, stalled: map[string]bool{},
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
			s.bus.log.Warn("unsettled messages not released, they are redelivered after the ack wait", "subject", d.subject.All(), "err", err)
		}
		taking, stop := context.WithCancel(s.work)
		s.consumers = append(s.consumers, stop)
		s.consuming.Go(func() { d.take(taking, s) })
		return nil
	}
}

func (cl *client) consumer(ctx context.Context, stream string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	for try := 0; ; try++ {
		once, cancel := context.WithTimeout(ctx, tryTimeout)
		c, err := cl.js.CreateOrUpdateConsumer(once, stream, cfg)
		cancel()
		if err == nil || ctx.Err() != nil || !temporary(err) || try == 100 {
			return c, err
		}
		if err := wait.For(ctx, backoff(try, 50*time.Millisecond, time.Second)); err != nil {
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

func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

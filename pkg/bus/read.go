package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// Stored is a message that was read from a stream.
type Stored struct {
	Subject  string
	Sequence uint64
	Data     []byte
	Sender   trace.SpanContext
	At       time.Time
	More     bool // of [Bus.Events]: another event of the same sequence follows
}

func stored(m jetstream.Msg) Stored {
	meta := metaOf(m)
	return Stored{Subject: m.Subject(), Sequence: meta.Sequence, Data: m.Data(), Sender: meta.Sender, At: meta.At}
}

// Broken returns a channel that is closed when the current connection breaks or is
// closed. The connection may be restored, at the same address only; [Bus.Follow] and
// [Call] wait for that.
func (b *Bus) Broken() <-chan struct{} {
	cl := b.use()
	defer cl.release()
	return cl.untilBroken().Done()
}

// Last returns the last message of a keyed subject. Errors: NotFound. On three servers
// the answer of the stream's leader may be behind what was delivered or followed: a newer
// message may exist, also after NotFound (ADR 11).
func (b *Bus) Last(ctx context.Context, s api.Subject) (Stored, error) {
	raw, err := b.getLast(ctx, s.Stream(), s.String())
	return rawStored(raw, s, err)
}

// Next returns the first message of a keyed subject at or after a sequence. Errors:
// NotFound, after which such a message may exist all the same, as with [Bus.Last].
func (b *Bus) Next(ctx context.Context, s api.Subject, from uint64) (Stored, error) {
	raw, err := b.getNext(ctx, s.Stream(), s.String(), max(from, 1))
	return rawStored(raw, s, err)
}

func rawStored(raw *jetstream.RawStreamMsg, s api.Subject, err error) (Stored, error) {
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Stored{}, api.Errorf(api.NotFound, "no message on %s", s.Template())
	}
	if err != nil {
		return Stored{}, fmt.Errorf("read %s: %w", s.Template(), err)
	}
	sender := trace.SpanContextFromContext(extract(context.Background(), raw.Header))
	return Stored{Subject: raw.Subject, Sequence: raw.Sequence, Data: raw.Data, Sender: sender, At: raw.Time}, nil
}

// Follow calls handle with every message of the subjects' stream that matches one of
// them, from sequence after+1 on, stored and new, until ctx ends or handle returns an
// error. All subjects belong to one stream. Follow has no durable: the caller stores its
// position. An outage of NATS only delays the messages. Subjects that belong to no stream
// are an error after 2 to 5 s.
func (b *Bus) Follow(ctx context.Context, after uint64, handle func(Stored) error, subjects ...string) error {
	if len(subjects) == 0 {
		return errors.New("follow: no subject")
	}
	for try, unknown := 0, 0; ; try++ {
		from := after
		cl := b.use()
		final, err := b.follow(ctx, cl, &after, handle, subjects)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			unknown++
			final = unknown > noStream // servers that have just started do not list all streams yet
		} else {
			unknown = 0 // an outage does not mean that there is no stream
		}
		moved := cl.replaced.Err() != nil
		cl.release()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case final:
			return err
		case moved:
			continue
		case after > from:
			try = 0
		}
		b.log.Warn("reading the stream failed, retrying", "subject", subjects[0], "err", err)
		if err := wait.For(ctx, backoff(try, 50*time.Millisecond, time.Second)); err != nil {
			return err
		}
	}
}

// noStream is the number of repeated lookups of a missing stream in Follow. They take
// about 2 s, and about 5 s after an outage.
const noStream = 5

// follow reads until an error. final reports that Follow must return it, as it must an
// error of handle.
func (b *Bus) follow(ctx context.Context, cl *client, after *uint64, handle func(Stored) error, subjects []string) (final bool, err error) {
	ctx, stop := cl.untilReplaced(ctx)
	defer stop()
	once, cancel := context.WithTimeout(ctx, tryTimeout) // a server that has shut down does not answer
	defer cancel()
	stream, err := cl.js.StreamNameBySubject(once, subjects[0])
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", subjects[0], err)
	}
	c, err := cl.js.OrderedConsumer(once, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1,
		InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", subjects[0], err)
	}
	// In a cluster the first fetch may arrive before the consumer has been created
	// everywhere, and is then lost. The client repeats it after two missed heartbeats.
	iter, err := c.Messages(jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", subjects[0], err)
	}
	defer iter.Stop()
	for {
		m, err := iter.Next(jetstream.NextContext(ctx))
		if err != nil {
			return false, fmt.Errorf("follow %s: %w", subjects[0], err)
		}
		s := stored(m)
		if err := handle(s); err != nil {
			return true, err
		}
		*after = s.Sequence
	}
}

// Subscribe calls handle with every live message of subject until ctx ends. It calls ready
// when it has subscribed. While the connection is replaced a message may be received
// twice.
func (b *Bus) Subscribe(ctx context.Context, subject string, ready func(), handle func([]byte)) error {
	c := make(chan *nats.Msg, 256)
	cl, unsubscribe, err := b.subscribe(ctx, subject, c)
	if err != nil {
		return err
	}
	defer func() { unsubscribe() }()
	ready()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-c:
			handle(m.Data)
		case <-cl.replaced.Done():
			old := unsubscribe
			if cl, unsubscribe, err = b.subscribe(ctx, subject, c); err != nil {
				unsubscribe = old
				return err
			}
			old()
		}
	}
}

func (b *Bus) subscribe(ctx context.Context, subject string, c chan *nats.Msg) (*client, func(), error) {
	cl := b.use()
	sub, err := cl.nc.ChanSubscribe(subject, c)
	if err == nil {
		err = cl.nc.FlushWithContext(deadline(ctx))
	}
	if err != nil {
		cl.release()
		return nil, nil, fmt.Errorf("subscribe %s: %w", subject, err)
	}
	return cl, func() {
		_ = sub.Unsubscribe() // an error means that the connection is closed
		cl.release()
	}, nil
}

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
)

// Stored is a message of a stream as it is read back.
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

// Broken is closed when the present connection breaks or is closed. The connection
// may come back, at the same address only; [Bus.Follow] and [Call] wait for that.
func (b *Bus) Broken() <-chan struct{} {
	ln := b.use()
	defer ln.release()
	return ln.unbroken().Done()
}

// Last returns the last message of a keyed subject, or NotFound. On three servers
// NotFound is no fact, and the message found may not be the last: the answer is that
// of the stream's leader, which may be behind what was delivered or followed (ADR 11).
func (b *Bus) Last(ctx context.Context, s api.Subject) (Stored, error) {
	return b.stored(ctx, s, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetLastMsgForSubject(ctx, s.String())
	})
}

// Next returns the first message of a keyed subject at or after a sequence, or
// NotFound, which is no fact as it is none for [Bus.Last].
func (b *Bus) Next(ctx context.Context, s api.Subject, from uint64) (Stored, error) {
	return b.stored(ctx, s, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetMsg(ctx, max(from, 1), jetstream.WithGetMsgSubject(s.String()))
	})
}

func (b *Bus) stored(ctx context.Context, s api.Subject, get func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg, error)) (Stored, error) {
	var raw *jetstream.RawStreamMsg
	err := b.look(ctx, func(ctx context.Context, ln *line) error {
		st, err := ln.stream(ctx, s.Stream())
		if err == nil {
			raw, err = get(ctx, st)
		}
		return err
	})
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

// Follow calls handle with every message of the subjects' stream that matches
// one of them, from sequence after+1 on, past and coming, until ctx ends or
// handle fails. All subjects belong to one stream. It has no durable: the
// caller remembers where it was. An outage of NATS only delays it; subjects that no
// stream has are an error after two to five seconds.
func (b *Bus) Follow(ctx context.Context, after uint64, handle func(Stored) error, subjects ...string) error {
	if len(subjects) == 0 {
		return errors.New("follow: no subject")
	}
	for try, unknown := 0, 0; ; try++ {
		from := after
		ln := b.use()
		final, err := b.follow(ctx, ln, &after, handle, subjects)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			unknown++
			final = unknown > noStream // servers that have just started do not list all streams yet
		} else {
			unknown = 0 // an outage, however long, says nothing of the stream
		}
		moved := ln.left.Err() != nil
		ln.release()
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
		b.log.Warn("cannot follow, trying again", "subject", subjects[0], "err", err)
		if err := pause(ctx, backoff(try, 50*time.Millisecond, time.Second)); err != nil {
			return err
		}
	}
}

// noStream is how often in a row Follow looks for the stream of its subjects again,
// within about two seconds, and within about five after an outage.
const noStream = 5

// follow says with its error whether it is final, as handle's own is.
func (b *Bus) follow(ctx context.Context, ln *line, after *uint64, handle func(Stored) error, subjects []string) (final bool, err error) {
	ctx, stop := ln.staying(ctx)
	defer stop()
	once, cancel := context.WithTimeout(ctx, tryTimeout) // a server that has left answers nothing
	defer cancel()
	stream, err := ln.js.StreamNameBySubject(once, subjects[0])
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", subjects[0], err)
	}
	c, err := ln.js.OrderedConsumer(once, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *after + 1,
		InactiveThreshold: 30 * time.Second,
	})
	if err != nil {
		return false, fmt.Errorf("follow %s: %w", subjects[0], err)
	}
	// The first question can overtake the news of its consumer on the way through a
	// cluster and is then lost; two silent beats are how the client finds out.
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

// Listen calls handle with every live message of subject until ctx ends. It is
// listening when ready is called. While the connection changes a message may
// come twice.
func (b *Bus) Listen(ctx context.Context, subject string, ready func(), handle func([]byte)) error {
	c := make(chan *nats.Msg, 256)
	ln, leave, err := b.listen(ctx, subject, c)
	if err != nil {
		return err
	}
	defer func() { leave() }()
	ready()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-c:
			handle(m.Data)
		case <-ln.left.Done():
			old := leave
			if ln, leave, err = b.listen(ctx, subject, c); err != nil {
				leave = old
				return err
			}
			old()
		}
	}
}

func (b *Bus) listen(ctx context.Context, subject string, c chan *nats.Msg) (*line, func(), error) {
	ln := b.use()
	sub, err := ln.nc.ChanSubscribe(subject, c)
	if err == nil {
		err = ln.nc.FlushWithContext(deadline(ctx))
	}
	if err != nil {
		ln.release()
		return nil, nil, fmt.Errorf("listen %s: %w", subject, err)
	}
	return ln, func() {
		_ = sub.Unsubscribe() // the connection is going anyway
		ln.release()
	}, nil
}

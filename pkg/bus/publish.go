package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"
)

// callTimeout is the timeout of an I/O whose caller has set no deadline.
const callTimeout = 10 * time.Second

// maxWait is the timeout of an I/O whose caller has a later deadline. The deadline of a
// run is minutes away; a wait for an answer that was lost must not last that long.
const maxWait = 30 * time.Second

// tryTimeout is the timeout of one try of an operation that is retried. It leaves time
// for a retry after a lost answer. It is longer than any healthy answer and shorter than
// an election.
const tryTimeout = 3 * time.Second

// JetStream error codes that callers handle.
const (
	codeWrongLast     jetstream.ErrorCode = 10071 // the subject's last sequence is not the expected one
	codeWrongLastBusy jetstream.ErrorCode = 10164 // R3: another write of this subject is in progress
	codeSameBusy      jetstream.ErrorCode = 10158 // R3: a message with this id is in progress
	codeNoPeers       jetstream.ErrorCode = 10005 // R3: not all servers have started yet
	codeFull          jetstream.ErrorCode = 10077 // a limit of the stream is reached
)

// errorCode returns the error code of JetStream in err, 0 if there is none.
func errorCode(err error) jetstream.ErrorCode {
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.ErrorCode
	}
	return 0
}

// unavailable returns an Unavailable error after which the caller may retry in a second.
func unavailable(message, next string) *api.Error {
	return &api.Error{Code: api.Unavailable, Message: message, Next: next, RetryAfter: 1000}
}

// entryIDHeader holds the id of a message that [Bus.Append] stores. The expected sequence
// prevents duplicates, so the deduplication of the server is not used: it would keep the
// ids of up to three windows in memory, and most of the stored messages are journal
// entries.
const entryIDHeader = "Anima-Entry-Id"

// IDOf returns the id under which a message was stored, "" if it has none.
func IDOf(h nats.Header) string {
	if id := h.Get(jetstream.MsgIDHeader); id != "" { // also of a journal entry that the previous release stored
		return id
	}
	return h.Get(entryIDHeader)
}

// Publish stores m in its stream. The stream drops another message with the same id, so a
// caller may publish again when the outcome is unknown. Publish retries until ctx ends,
// for 30 s at most (10 s if ctx has no deadline). Errors: Unavailable with ReasonLimit
// when the key's queue is full, Unavailable when the stream cannot be reached in time.
func (b *Bus) Publish(ctx context.Context, id string, m api.Message) error {
	_, err := b.PublishSequence(ctx, id, m)
	return err
}

// PublishSequence is [Bus.Publish] and returns the sequence of the message in the stream,
// or that of the one with the same id because of which it was dropped.
func (b *Bus) PublishSequence(ctx context.Context, id string, m api.Message) (uint64, error) {
	s := m.Subject()
	msg, err := b.message(s, m)
	if err != nil {
		return 0, err
	}
	return b.publish(ctx, s, id, msg, nil)
}

// PublishStored is [Bus.Publish] for a message that was encoded earlier, as in an outbox:
// its subject on the wire, its bytes, and the traceparent of the span that created it (""
// for none), which the publish span continues.
func (b *Bus) PublishStored(ctx context.Context, id, subject string, data []byte, traceparent string) error {
	s, err := parseSubject(subject)
	if err != nil {
		return err
	}
	msg, err := b.rawMessage(s, data)
	if err != nil {
		return err
	}
	_, err = b.publish(WithTraceParent(ctx, traceparent), s, id, msg, nil)
	return err
}

// Append stores m only if last is the sequence of the last message of its subject (0:
// there is none), and returns the new sequence. If another writer was first, the stream
// refuses the append, which returns Conflict.
//
// After a lost answer, Append reads the message that follows last and compares its id and
// content with those of m. Competing writers must therefore write different content, so
// the content must include the epoch.
func (b *Bus) Append(ctx context.Context, id string, m api.Message, last uint64) (uint64, error) {
	s := m.Subject()
	msg, err := b.message(s, m)
	if err != nil {
		return 0, err
	}
	return b.publish(ctx, s, id, msg, &last)
}

// publish stores msg. If last is not nil, it must be the last sequence of the subject.
func (b *Bus) publish(ctx context.Context, s api.Subject, id string, msg *nats.Msg, last *uint64) (uint64, error) {
	if s.Stream() == "" {
		return 0, fmt.Errorf("publish %s: class %s is not kept in a stream", s.Template(), s.Class)
	}
	opts := []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)}
	if last != nil {
		msg.Header.Set(entryIDHeader, id)
		opts = append(opts, expectLast(*last))
	} else {
		msg.Header.Set(jetstream.MsgIDHeader, dedupID(id))
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	n := b.names.of(s)
	ctx, span := b.tracer.Start(ctx, n.publish, n.producer...)
	defer span.End()
	inject(ctx, msg.Header)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("messaging.message.id", id))
	}

	for try, unseen := 0, 0; ; try++ {
		seq, again, err := b.publishOnce(ctx, s, id, msg, last, opts)
		if err == nil {
			return seq, nil
		}
		if errors.Is(err, errUnseen) {
			unseen++
			again = unseen < maxUnseen
		}
		if !again {
			return 0, failed(span, err)
		}
		if ended := wait.For(ctx, backoff(try, 20*time.Millisecond, time.Second)); errors.Is(ended, context.Canceled) {
			return 0, failed(span, ended)
		} else if ended != nil {
			return 0, failed(span, unavailable("the stream of "+s.Template()+" did not answer", "check that NATS is up"))
		}
	}
}

// publishOnce tries once. again reports whether another try may succeed.
func (b *Bus) publishOnce(
	ctx context.Context, s api.Subject, id string, msg *nats.Msg, last *uint64, opts []jetstream.PublishOpt,
) (seq uint64, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	cl := b.use()
	defer cl.release()
	if err := cl.awaitUp(ctx, nil); err != nil {
		return 0, true, err
	}
	point := failpoint.BusPublish
	if last != nil {
		point = failpoint.BusAppend
	}
	ack, err := failpoint.Value(ctx, point, func(ctx context.Context) (*jetstream.PubAck, error) {
		return cl.js.PublishMsg(ctx, msg, opts...)
	})
	if err == nil {
		return ack.Sequence, false, nil
	}
	e, refused := errors.AsType[*jetstream.APIError](err)
	switch {
	// The answer to an earlier try was lost, or another writer was first.
	case refused && e.ErrorCode == codeWrongLast && last != nil:
		return cl.written(ctx, s, id, msg.Data, *last+1)
	case refused && e.ErrorCode == codeFull && strings.Contains(e.Description, "per subject"):
		return 0, false, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonLimit, Message: "the queue of " + s.Key + " is full",
			Next: "wait until some of its messages are done", RetryAfter: 1000,
		}
	case refused && (e.ErrorCode == codeWrongLastBusy || e.ErrorCode == codeSameBusy):
		// Retry: the next answer shows which of the two was stored.
	case errors.Is(err, nats.ErrMaxPayload), refused && e.Code != 503:
		return 0, false, fmt.Errorf("publish %s: %w", s.Template(), err)
	}
	return 0, true, err
}

// errUnseen is the error when the message that caused the refusal of an append cannot be
// read. The leader may have changed or be behind, and absence is no fact (ADR 11), so the
// append is retried. If the message stays invisible, the stream never reached last, as
// after a restore, and the caller must read the last sequence of the subject again.
var errUnseen = api.Errorf(api.Conflict, "the last sequence of the stream is not the expected one")

// maxUnseen is the number of tries that end with errUnseen, within about 1 s.
const maxUnseen = 6

// written returns the sequence of the first message of s from a sequence on, if it has
// this id and data.
func (cl *client) written(ctx context.Context, s api.Subject, id string, data []byte, from uint64) (seq uint64, again bool, err error) {
	st, err := cl.stream(ctx, s.Stream())
	if err != nil {
		return 0, true, err
	}
	m, err := st.GetMsg(ctx, from, jetstream.WithGetMsgSubject(s.String()))
	switch {
	case err == nil && IDOf(m.Header) == id && bytes.Equal(m.Data, data):
		return m.Sequence, false, nil
	case err == nil:
		return 0, false, &api.Error{Code: api.Conflict, Message: "another writer was first on " + s.Template()}
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return 0, true, errUnseen
	}
	return 0, true, err
}

// PublishLive publishes a live message to the current subscribers. It is no error if
// there are none.
func (b *Bus) PublishLive(ctx context.Context, m api.Message) error {
	s := m.Subject()
	if s.Class != api.Live {
		return fmt.Errorf("publish %s: class %s is not live", s.Template(), s.Class)
	}
	msg, err := b.message(s, m)
	if err != nil {
		return err
	}
	inject(ctx, msg.Header)
	cl := b.use()
	defer cl.release()
	if !cl.nc.IsConnected() {
		return nil // there are no current subscribers
	}
	return cl.nc.PublishMsg(msg)
}

func (b *Bus) message(s api.Subject, m api.Message) (*nats.Msg, error) {
	data, err := api.Encode(m)
	if err != nil {
		return nil, err
	}
	return b.rawMessage(s, data)
}

func (b *Bus) rawMessage(s api.Subject, data []byte) (*nats.Msg, error) {
	if s.Keyed && !api.ValidKey(s.Key) {
		return nil, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%q cannot be the key of %s", s.Key, s.Template())}
	}
	if limit := b.maxData(); limit > 0 && len(data) > limit {
		return nil, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%s of %d bytes is larger than NATS takes (%d)", s.Template(), len(data), limit)}
	}
	subject := b.names.of(s).template
	if s.Key != "" {
		subject += "." + s.Key
	}
	if err := b.permit(subject); err != nil {
		return nil, err
	}
	msg := nats.NewMsg(subject)
	msg.Data = data
	return msg, nil
}

// maxData returns the limit of a message's data in bytes, which leaves 2,048 for headers;
// 0 until the server has sent its limit.
func (b *Bus) maxData() int {
	cl := b.use()
	defer cl.release()
	return max(0, int(cl.nc.MaxPayload())-2048)
}

// parseSubject is the inverse of [api.Subject.String].
func parseSubject(subject string) (api.Subject, error) {
	t := strings.Split(subject, ".")
	if len(t) == 5 || len(t) == 6 {
		s := api.Subject{Owner: api.Owner(t[1]), Class: api.Class(t[2]), Name: t[3], Keyed: len(t) == 6}
		s.Version, _ = strconv.Atoi(strings.TrimPrefix(t[4], "v"))
		if s.Keyed {
			s.Key = t[5]
		}
		if s.String() == subject {
			return s, nil
		}
	}
	return api.Subject{}, fmt.Errorf("%q is not a subject of the contracts", subject)
}

// bounded returns ctx with a timeout of [callTimeout] if it has no deadline, else of
// [maxWait].
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, maxWait)
	}
	return context.WithTimeout(ctx, callTimeout)
}

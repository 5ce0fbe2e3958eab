package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// callTimeout bounds an I/O whose caller gave no deadline.
const callTimeout = 10 * time.Second

// maxWait bounds an I/O whose caller has a later deadline: that of a run is minutes
// away, and a wait that nothing will end must not last for all of them.
const maxWait = 30 * time.Second

// tryTimeout bounds one try of what is tried again: a lost answer must leave
// time for that. It is longer than any healthy answer and shorter than an
// election.
const tryTimeout = 3 * time.Second

// JetStream error codes that mean something to a caller.
const (
	codeWrongLast     jetstream.ErrorCode = 10071 // expected last sequence is another
	codeWrongLastBusy jetstream.ErrorCode = 10164 // R3: another write of this subject is in flight
	codeSameBusy      jetstream.ErrorCode = 10158 // R3: a message with this id is in flight
	codeNoPeers       jetstream.ErrorCode = 10005 // R3: not all servers are there yet
	codeFull          jetstream.ErrorCode = 10077 // a limit of the stream is reached
)

// entryIDHeader has the id of a message that [Bus.Append] stores. The expected sequence
// keeps a second one out, so the server need not remember its id: it would keep those of up
// to three windows in memory, where journals are most of what is stored.
const entryIDHeader = "Anima-Entry-Id"

// IDOf is the id under which a message was stored, "" if it has none.
func IDOf(h nats.Header) string {
	if id := h.Get(jetstream.MsgIDHeader); id != "" { // of an entry, too, by a release before
		return id
	}
	return h.Get(entryIDHeader)
}

// Publish stores m in its stream. The stream drops a second message with the
// same id, so a caller that is unsure publishes again; Publish itself does so
// while ctx lasts, for 30 s at most. Errors: Unavailable with ReasonLimit when the key's queue is
// full, Unavailable when the stream cannot be reached in time.
func (b *Bus) Publish(ctx context.Context, id string, m api.Message) error {
	s := m.Subject()
	msg, err := b.message(s, m)
	if err != nil {
		return err
	}
	_, err = b.publish(ctx, s, id, msg, nil)
	return err
}

// PublishStored is [Bus.Publish] for a message that was encoded earlier, as an
// outbox keeps it: its subject on the wire, its bytes, and the traceparent of the
// span that made it ("" for none), which is continued.
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

// Append stores m only if last is the sequence of the last message of its
// subject (0: there is none), and returns the new sequence. Writers that lost
// the race get Conflict; the stream, not politeness, keeps them out.
//
// An answer that got lost is resolved, not guessed: Append looks whether the
// message that followed last is this one, by id and by content. Writers that
// compete must therefore not write the same content, so put the epoch into it.
func (b *Bus) Append(ctx context.Context, id string, m api.Message, last uint64) (uint64, error) {
	s := m.Subject()
	msg, err := b.message(s, m)
	if err != nil {
		return 0, err
	}
	return b.publish(ctx, s, id, msg, &last)
}

// publish stores msg, after the sequence last of its subject unless that is nil.
func (b *Bus) publish(ctx context.Context, s api.Subject, id string, msg *nats.Msg, last *uint64) (uint64, error) {
	if s.Stream() == "" {
		return 0, fmt.Errorf("publish %s: class %s is not kept in a stream", s.Template(), s.Class)
	}
	switch {
	case last != nil:
		msg.Header.Set(entryIDHeader, id)
	case failpoint.Broken(failpoint.NoMessageID):
		msg.Header.Set(jetstream.MsgIDHeader, id+"#"+nats.NewInbox())
	default:
		msg.Header.Set(jetstream.MsgIDHeader, id)
	}
	opts := []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)}
	if last != nil && !failpoint.Broken(failpoint.NoExpectedSequence) {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(*last))
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
		if ended := pause(ctx, backoff(try, 20*time.Millisecond, time.Second)); errors.Is(ended, context.Canceled) {
			return 0, failed(span, ended)
		} else if ended != nil {
			return 0, failed(span, &api.Error{
				Code: api.Unavailable, Message: "the stream of " + s.Template() + " did not answer",
				Next: "check that NATS is up", RetryAfter: 1000,
			})
		}
	}
}

// publishOnce says with its error whether another try may help.
func (b *Bus) publishOnce(
	ctx context.Context, s api.Subject, id string, msg *nats.Msg, last *uint64, opts []jetstream.PublishOpt,
) (seq uint64, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	ln := b.use()
	defer ln.release()
	point := failpoint.BusPublish
	if last != nil {
		point = failpoint.BusAppend
	}
	ack, err := failpoint.Value(ctx, point, func(ctx context.Context) (*jetstream.PubAck, error) {
		return ln.js.PublishMsg(ctx, msg, opts...)
	})
	if err == nil {
		return ack.Sequence, false, nil
	}
	e, refused := errors.AsType[*jetstream.APIError](err)
	switch {
	// Either the answer of an earlier try was lost, or another writer was first.
	case refused && e.ErrorCode == codeWrongLast && last != nil:
		return ln.written(ctx, s, id, msg.Data, *last+1)
	case refused && e.ErrorCode == codeFull && strings.Contains(e.Description, "per subject"):
		return 0, false, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonLimit, Message: "the queue of " + s.Key + " is full",
			Next: "wait until some of its messages are done", RetryAfter: 1000,
		}
	case refused && (e.ErrorCode == codeWrongLastBusy || e.ErrorCode == codeSameBusy):
		// Which of the two won shows in a moment.
	case errors.Is(err, nats.ErrMaxPayload), refused && e.Code != 503:
		return 0, false, fmt.Errorf("publish %s: %w", s.Template(), err)
	}
	return 0, true, err
}

// errUnseen is that the message which the stream refused another for cannot be read.
// Its leader may have changed, or be behind, and absence is no fact (ADR 11): the
// stream is asked again. If it stays so, last was never reached by the stream, as
// after a restore, and the caller reads again where the subject stands.
var errUnseen = api.Errorf(api.Conflict, "the stream stands elsewhere than expected")

// maxUnseen is how often that is asked, within about a second.
const maxUnseen = 6

// written returns the sequence of the first message of s from a sequence on, if
// it is the one with this id and data.
func (ln *line) written(ctx context.Context, s api.Subject, id string, data []byte, from uint64) (seq uint64, again bool, err error) {
	st, err := ln.stream(ctx, s.Stream())
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

// Tell sends a live message to whoever listens now. Nobody listening is no
// error.
func (b *Bus) Tell(ctx context.Context, m api.Message) error {
	s := m.Subject()
	if s.Class != api.Live {
		return fmt.Errorf("tell %s: class %s is not live", s.Template(), s.Class)
	}
	msg, err := b.message(s, m)
	if err != nil {
		return err
	}
	inject(ctx, msg.Header)
	ln := b.use()
	defer ln.release()
	return ln.nc.PublishMsg(msg)
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

// maxData is how many bytes a message may carry beside our headers; 0 while the
// server's limit is not known yet.
func (b *Bus) maxData() int {
	ln := b.use()
	defer ln.release()
	return max(0, int(ln.nc.MaxPayload())-2048)
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
	return api.Subject{}, fmt.Errorf("%q is not a subject of ours", subject)
}

// bounded gives ctx a deadline if it has none, and an earlier one than [maxWait].
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, maxWait)
	}
	return context.WithTimeout(ctx, callTimeout)
}

// redacted is a NATS URL without its credentials.
func redacted(raw string) string {
	parts := strings.Split(raw, ",")
	for i, p := range parts {
		if u, err := url.Parse(p); err == nil {
			parts[i] = u.Redacted()
		}
	}
	return strings.Join(parts, ",")
}

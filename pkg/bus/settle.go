package bus

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

func (d *delivery) process(work context.Context, msg jetstream.Msg, err error, handle func(context.Context) error) {
	began, n := time.Now(), d.bus.names.of(d.subject)
	meta := metaOf(msg)
	if meta.Delivered == 1 && meta.Sequence <= d.earlier {
		meta.Delivered++
	}
	d.mu.Lock()
	h := d.pending[msg]
	d.mu.Unlock()
	ctx, done := h.begin(context.WithValue(work, metaKey{}, meta))
	defer done()
	if !d.how.NoSpan {
		var span trace.Span
		ctx, span = d.bus.tracer.Start(ctx, n.process,
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(linkTo(meta.Sender)...),
			trace.WithAttributes(append(slices.Clip(n.consumer),
				attribute.Int("messaging.nats.delivery_count", meta.Delivered))...))
		defer span.End()
		defer func() { _ = failed(span, err) }()
	}
	if meta.Delivered > 1 {
		d.bus.tel.redeliver.Add(ctx, 1)
	}
	if err == nil && d.how.MaxDeliver > 0 && meta.Delivered > 2*d.how.MaxDeliver {
		// No delivery was settled: the handler crashes the process or does not return.
		err = &api.Error{Code: api.Invalid, Message: "the message exceeded its delivery limit and was never settled"}
	}
	if err == nil {
		err = guarded(func() error { return handle(ctx) })
	}
	d.bus.observe(ctx, n, began, err)
	defer d.untrack(msg)()
	d.settle(ctx, msg, meta, err, work.Err() != nil)
}

// settle implements the retry policy. Without an error the message is acknowledged. With
// Invalid or Denied it is terminated, because a retry cannot succeed. With any other
// error it is redelivered after a backoff, or after the error's RetryAfter, until
// MaxDeliver. cut means that the handler was interrupted because this replica stops: the
// message is redelivered at once, and MaxDeliver does not apply.
func (d *delivery) settle(ctx context.Context, msg jetstream.Msg, meta Meta, err error, cut bool) {
	var ack error
	code := api.CodeOf(err)
	last := d.how.MaxDeliver > 0 && meta.Delivered >= d.how.MaxDeliver
	switch {
	case err == nil:
		ack = failpoint.Do(ctx, failpoint.BusAck, func(context.Context) error { return msg.Ack() })
	case code == api.Invalid, code == api.Denied, last && !cut:
		d.bus.tel.givenUp.Add(ctx, 1)
		d.bus.log.ErrorContext(ctx, "message given up", "subject", d.subject.Template(), "msg_id", meta.ID,
			"sequence", meta.Sequence, "delivered", meta.Delivered, "err", err)
		ack = msg.TermWithReason(headerText(api.Wire(err).Message))
	case cut:
		ack = msg.Nak()
	default:
		wait := backoff(min(meta.Delivered-1, 10), 250*time.Millisecond, d.how.MaxPause)
		if e, ok := errors.AsType[*api.Error](err); ok && e.RetryAfter > 0 {
			wait = e.Retry()
		}
		level := d.bus.log.WarnContext
		if code == api.Conflict {
			level = d.bus.log.DebugContext // another replica has it, which is normal
		}
		level(ctx, "message will be redelivered", "subject", d.subject.Template(), "msg_id", meta.ID, "wait", wait.String(), "err", err)
		ack = msg.NakWithDelay(wait)
	}
	if ack != nil {
		d.bus.log.WarnContext(ctx, "message not settled, it will be redelivered", "subject", d.subject.Template(), "msg_id", meta.ID, "err", ack)
	}
}

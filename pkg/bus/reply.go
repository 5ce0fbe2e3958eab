package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// Reply answers every request Req. The replicas of a service share the requests. This
// process handles at most as many of them at a time as the limits allow. It answers
// further ones at once with ReasonBusy, and their callers retry, possibly at another
// replica. It does not handle a request of [Call] whose caller has given up: a replica
// that was paused would undo later requests with those that it received before.
func Reply[Req api.Message, Resp any](answer func(context.Context, Req) (Resp, error), limits ...Limit) Route {
	return endpoint(limits, func(ctx context.Context, _ *client, in *nats.Msg, req Req) (*nats.Msg, error) {
		resp, err := answer(ctx, req)
		if err != nil {
			return nil, err
		}
		return answerMsg(in.Reply, resp)
	})
}

// answerMsg encodes the response of a handler, as a message without headers.
func answerMsg(reply string, resp any) (*nats.Msg, error) {
	data, err := api.Encode(resp)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: reply, Data: data}, nil
}

// endpoint is the common part of plain and streamed replies. A micro endpoint runs one
// handler at a time, and no other goroutine may use its Request. So the handler only
// copies the request and acquires a worker, which publishes the answer on the reply
// subject.
func endpoint[Req api.Message](limits []Limit, answer func(context.Context, *client, *nats.Msg, Req) (*nats.Msg, error)) Route {
	places := newPool(limits)
	return func(s *server) error {
		var zero Req
		b, subject := s.bus, zero.Subject()
		n := b.names.of(subject)
		handle := func(cl *client, r micro.Request) {
			in := &nats.Msg{Subject: r.Subject(), Reply: r.Reply(), Data: r.Data(), Header: nats.Header(r.Headers())}
			if !places.take(in.Header.Get(headerTried) != "") {
				b.send(cl, b.refusal(in.Reply))
				return
			}
			cl.hold()
			begun := s.begin(func() {
				defer cl.release()
				defer places.leave()
				began := time.Now()
				if age, late := outdated(in.Header, began); late {
					b.log.Warn("request not executed: its caller has given up, or the clocks differ", "subject", n.template, "age", age.String())
					b.send(cl, b.tooOld(in.Reply, age))
					return
				}
				ctx, span := b.tracer.Start(context.WithValue(extract(s.work, in.Header), requestKey{}, in.Header), n.process, n.server...)
				defer span.End()
				var req Req
				var out *nats.Msg
				err := api.Decode(in.Data, &req)
				if err == nil {
					err = guarded(func() (err error) { out, err = answer(ctx, cl, in, req); return err })
				}
				b.observe(ctx, n, began, err)
				if err != nil {
					_ = failed(span, err)
					b.logFailure(ctx, n.template, err)
					out = errorMsg(in.Reply, err)
				}
				_ = failpoint.Do(ctx, failpoint.BusAnswer, func(context.Context) error { b.send(cl, out); return nil })
			})
			if !begun {
				places.leave()
				b.send(cl, b.refusal(in.Reply))
				cl.release()
			}
		}
		e := served{subject, handle}
		s.endpoints = append(s.endpoints, e)
		return attachOne(s.at.svc, s.client, e)
	}
}

// refusal returns the answer to a request whose handler was not started. [headerRefused]
// marks it, not the reason: a handler may return ReasonBusy of another service.
func (b *Bus) refusal(reply string) *nats.Msg {
	m := errorMsg(reply, &api.Error{
		Code: api.Unavailable, Reason: api.ReasonBusy, Message: b.opts.Service + " is busy", Next: "try again", RetryAfter: 50,
	})
	m.Header.Set(headerRefused, "1")
	return m
}

// tooOld returns the answer to a request that is outdated. Its caller has given up, or has
// another time than this process; then it may find a replica with the same time.
func (b *Bus) tooOld(reply string, age time.Duration) *nats.Msg {
	m := errorMsg(reply, unavailable(
		fmt.Sprintf("%s did not execute the request, which is %s old by its clock", b.opts.Service, age.Round(time.Second)),
		"set the clocks of the machines to the same time",
	))
	m.Header.Set(headerRefused, "1")
	return m
}

// send publishes an answer on the client of its request, because the servers on that route
// have the caller's subscription. A failure is only logged; the call ends with the
// caller's deadline.
func (b *Bus) send(cl *client, m *nats.Msg) {
	if m.Reply = ""; m.Subject == "" {
		return // the request had no reply subject
	}
	if limit := b.maxData(); limit > 0 && len(m.Data) > limit {
		m = errorMsg(m.Subject, api.Errorf(api.Internal, "the answer of %d bytes is larger than NATS takes", len(m.Data)))
	}
	err := cl.nc.PublishMsg(m)
	if err != nil && cl.replaced.Err() != nil { // the client was closing when the request was taken from its buffer
		now := b.use()
		defer now.release()
		err = now.nc.PublishMsg(m)
	}
	if err != nil {
		b.log.Error("answer not sent", "err", err)
	}
}

// logFailure logs internal errors as errors, Unavailable as a warning, and errors of the
// caller and the end of a request that its caller has cancelled at debug level.
func (b *Bus) logFailure(ctx context.Context, subject string, err error) {
	level := slog.LevelDebug
	switch code := api.CodeOf(err); {
	case code == api.Internal && !errors.Is(err, context.Canceled):
		level = slog.LevelError
	case code == api.Unavailable:
		level = slog.LevelWarn
	}
	b.log.Log(ctx, level, "request failed", "subject", subject, "err", err)
}

// guarded calls f and returns a panic of it as an error.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

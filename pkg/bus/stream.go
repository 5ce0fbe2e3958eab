package bus

import (
	"context"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// A streamed reply is a sequence of messages on one reply subject: numbered deltas,
// keep-alives between them, and the answer with [headerEnd]. All streamed replies of a
// bus share one wildcard subscription, because a subscription each costs ten times as
// much.

// Stream answers every request Req with any number of Deltas and one Resp. When the
// caller cancels the call, the context ends and send fails. Resp must be complete by
// itself: a caller may miss Deltas. The limits are as in [Reply].
func Stream[Req api.Message, Delta, Resp any](answer func(ctx context.Context, req Req, send func(Delta) error) (Resp, error), limits ...Limit) Route {
	return endpoint(limits, func(ctx context.Context, cl *client, in *nats.Msg, req Req) (*nats.Msg, error) {
		b := cl.mux.bus
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		b.mu.Lock()
		b.controls[in.Reply] = cancel
		b.mu.Unlock()
		defer func() {
			b.mu.Lock()
			delete(b.controls, in.Reply)
			b.mu.Unlock()
		}()
		w := &streamWriter{client: cl, reply: in.Reply}
		if err := w.write(headerAlive, nil); err != nil {
			return nil, err
		}
		var alive sync.WaitGroup
		alive.Go(func() {
			wait.Every(ctx, b.opts.AliveEvery, func() {
				_ = w.write(headerAlive, nil) // fails if the connection is closed; the caller ends the call after three missed keep-alives
			})
		})
		resp, err := answer(ctx, req, func(d Delta) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			data, err := api.Encode(d)
			if err != nil {
				return err
			}
			return w.write("", data)
		})
		cancel()
		alive.Wait()
		if err != nil {
			return nil, err
		}
		out, err := answerMsg(in.Reply, resp)
		if err != nil {
			return nil, err
		}
		out.Header = nats.Header{headerEnd: {"1"}, headerSeq: {w.sent()}}
		return out, nil
	})
}

type streamWriter struct {
	client *client
	reply  string
	mu     sync.Mutex
	seq    int
}

// write sends one message of the reply: a keep-alive if kind is set, else the next delta.
func (w *streamWriter) write(kind string, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := nats.NewMsg(w.reply)
	m.Data = data
	if kind != "" {
		m.Header.Set(kind, "1")
		m.Header.Set(headerControl, w.client.mux.bus.controlSubject())
	} else {
		m.Header.Set(headerSeq, strconv.Itoa(w.seq))
		w.seq++
	}
	return w.client.nc.PublishMsg(m)
}

// sent returns the number of deltas that were written, for the header of the answer.
func (w *streamWriter) sent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strconv.Itoa(w.seq)
}

func (b *Bus) controlSubject() string {
	return control(b.opts.Service) + "." + b.opts.Instance
}

// control cancels the streamed reply whose reply subject is the message's content.
func (b *Bus) control(m *nats.Msg) {
	b.mu.Lock()
	cancel := b.controls[string(m.Data)]
	b.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// CallStream sends a request whose answer comes in deltas, and calls delta with each, in
// order, on the caller's goroutine. When ctx ends, the server's handler is cancelled. A
// request that no server has begun after 3 s is repeated. Errors are those of [Call]; a
// server that sends no message for three keep-alive intervals is Unavailable. After a
// lost delta, delta is not called any more, but the answer at the end is returned: a
// repeated request would compute, and pay for, the answer again.
func CallStream[Delta, Resp any](ctx context.Context, b *Bus, req api.Message, delta func(Delta) error) (Resp, error) {
	cancel := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok { // a later deadline is kept: missing keep-alives end the call before it
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
	}
	defer cancel()
	s, err := OpenStream[Delta, Resp](ctx, b, req)
	if err != nil {
		var none Resp
		return none, err
	}
	defer s.Close()
	for {
		d, more, err := s.Next(ctx)
		if err != nil || !more {
			return s.answer, err
		}
		if err := delta(d); err != nil {
			return s.answer, failed(s.call.span, err)
		}
	}
}

// StreamReader is the caller's side of a streamed reply, which [OpenStream] begins. It is
// not safe for concurrent use, except for Close.
type StreamReader[Delta, Resp any] struct {
	call   *streamCall
	answer Resp
}

// OpenStream prepares a request as [CallStream] sends it, for a caller that reads the
// deltas itself. The first Begin or Next sends it. ctx only supplies the trace. The
// caller must call Close.
func OpenStream[Delta, Resp any](ctx context.Context, b *Bus, req api.Message) (*StreamReader[Delta, Resp], error) {
	s := req.Subject()
	msg, err := b.message(s, req)
	if err != nil {
		return nil, err
	}
	n := b.names.of(s)
	ctx, span := b.tracer.Start(ctx, n.call, n.caller...) //nolint:spancheck // Close ends it
	inject(ctx, msg.Header)
	//nolint:spancheck // Close ends it
	return &StreamReader[Delta, Resp]{call: &streamCall{bus: b, subject: s, msg: msg, span: span}}, nil
}

// Begin waits until a server has begun the request, or ctx ends. Next does so, too. An
// error with [api.ReasonNoAnswer] means that no server took it. Errors are those of
// [CallStream]; after an error of ctx, Begin or Next may be called again.
func (s *StreamReader[Delta, Resp]) Begin(ctx context.Context) error {
	_, _, err := s.call.read(ctx, true)
	if ctx.Err() == nil {
		err = failed(s.call.span, err)
	}
	return err
}

// Next waits for the next delta until ctx ends. It returns false without an error when
// the answer is complete; see [StreamReader.Answer]. Errors are those of [CallStream]; after
// one, Next must not be called again.
func (s *StreamReader[Delta, Resp]) Next(ctx context.Context) (Delta, bool, error) {
	var d Delta
	m, end, err := s.call.read(ctx, false)
	switch {
	case err != nil:
	case end:
		err = api.Decode(m.Data, &s.answer)
	default:
		err = api.Decode(m.Data, &d)
	}
	return d, !end && err == nil, failed(s.call.span, err)
}

// Answer returns the final answer, once Next has returned false without an error.
func (s *StreamReader[Delta, Resp]) Answer() Resp { return s.answer }

// Close ends the call. If the server has not sent the complete answer, its handler is
// cancelled. Close may be called again, and concurrently with Next, which then returns what
// was received before, and the error [context.Canceled].
func (s *StreamReader[Delta, Resp]) Close() { s.call.close() }

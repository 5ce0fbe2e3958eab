package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// A streamed reply is a sequence of messages on one reply subject: numbered deltas,
// keep-alives between them, and the answer with [headerEnd]. All streamed replies of a
// bus share one wildcard subscription, because a subscription each costs ten times as
// much.

// Stream answers every request Req with any number of Deltas and one Resp. When the
// caller cancels the call, the context ends and send fails. Resp must be complete by
// itself: a caller may miss Deltas. Workers are as in [Reply].
func Stream[Req api.Message, Delta, Resp any](answer func(ctx context.Context, req Req, send func(Delta) error) (Resp, error), workers ...Workers) Route {
	return endpoint(pool(workers), func(ctx context.Context, cl *client, in *nats.Msg, req Req) (*nats.Msg, error) {
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
		alive.Go(func() { w.keepAlive(ctx) })
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
		data, err := api.Encode(resp)
		if err != nil {
			return nil, err
		}
		out := nats.NewMsg(in.Reply)
		out.Header.Set(headerEnd, "1")
		out.Header.Set(headerSeq, w.sent())
		out.Data = data
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
		m.Header.Set(headerSeq, seqHeader(w.seq))
		w.seq++
	}
	return w.client.nc.PublishMsg(m)
}

// sent returns the number of deltas that were written, for the header of the answer.
func (w *streamWriter) sent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return seqHeader(w.seq)
}

func (w *streamWriter) keepAlive(ctx context.Context) {
	t := time.NewTicker(w.client.mux.bus.opts.AliveEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := w.write(headerAlive, nil); err != nil {
				return // the connection is closed; the caller ends the call after three missed keep-alives
			}
		}
	}
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

// Streaming is the caller's side of a streamed reply, which [OpenStream] begins. It is
// not safe for concurrent use, except for Close.
type Streaming[Delta, Resp any] struct {
	call   *streamCall
	answer Resp
}

// OpenStream prepares a request as [CallStream] sends it, for a caller that reads the
// deltas itself. The first Begin or Next sends it. ctx only supplies the trace. The
// caller must call Close.
func OpenStream[Delta, Resp any](ctx context.Context, b *Bus, req api.Message) (*Streaming[Delta, Resp], error) {
	s := req.Subject()
	msg, err := b.message(s, req)
	if err != nil {
		return nil, err
	}
	n := b.names.of(s)
	ctx, span := b.tracer.Start(ctx, n.call, n.caller...) //nolint:spancheck // Close ends it
	inject(ctx, msg.Header)
	//nolint:spancheck // Close ends it
	return &Streaming[Delta, Resp]{call: &streamCall{bus: b, subject: s, msg: msg, span: span}}, nil
}

// Begin waits until a server has begun the request, or ctx ends. Next does so, too. An
// error with [api.ReasonNoAnswer] means that no server took it. Errors are those of
// [CallStream]; after an error of ctx, Begin or Next may be called again.
func (s *Streaming[Delta, Resp]) Begin(ctx context.Context) error {
	_, _, err := s.call.read(ctx, true)
	if ctx.Err() == nil {
		err = failed(s.call.span, err)
	}
	return err
}

// Next waits for the next delta until ctx ends. It returns false without an error when
// the answer is complete; see [Streaming.Answer]. Errors are those of [CallStream]; after
// one, Next must not be called again.
func (s *Streaming[Delta, Resp]) Next(ctx context.Context) (Delta, bool, error) {
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
func (s *Streaming[Delta, Resp]) Answer() Resp { return s.answer }

// Close ends the call. If the server has not sent the complete answer, its handler is
// cancelled. Close may be called again, and concurrently with Next.
func (s *Streaming[Delta, Resp]) Close() { s.call.close() }

// errNotBegun is the error for a request that no server has begun: a server sends a
// keep-alive when it begins one.
var errNotBegun = &api.Error{Code: api.Unavailable, Message: "the service has not begun the request", Next: "try again", RetryAfter: 1000}

// streamCall reads the messages of one streamed reply, and repeats the request until a server
// has begun it.
type streamCall struct {
	bus     *Bus
	subject api.Subject
	msg     *nats.Msg
	span    trace.Span

	in         *inbox // nil: no request is sent
	msgs       []*nats.Msg
	next       int // number of the next delta
	timeout    *time.Timer
	maxSilence time.Duration // how long the server may send no message
	begun      bool          // a server has begun the request

	mu       sync.Mutex
	client   *client // nil: no request is sent
	unwatch  func()  // ends the watch for a refusal on client
	reply    string  // reply subject on client
	control  string  // subject on which the reply is cancelled
	complete bool    // no further message is expected
	closed   bool
}

// read returns the next message, and whether it is the answer, which is the last. It
// sends the request, with retries until a server has begun it. With begin it returns
// then.
func (r *streamCall) read(ctx context.Context, begin bool) (m *nats.Msg, end bool, err error) {
	for try := 0; ; try++ {
		if m, err = nil, r.send(); err == nil {
			if begin && r.begun {
				return nil, false, nil
			}
			m, end, err = r.receive(ctx, begin)
		}
		if err == nil {
			return m, end, nil
		}
		again, err := unanswered(ctx, r.subject, m, err)
		if !again && !errors.Is(err, errNotBegun) || r.begun {
			return nil, false, err
		}
		r.reset()
		if pause(ctx, backoff(try, 10*time.Millisecond, 500*time.Millisecond)) != nil {
			return nil, false, err
		}
	}
}

// send sends the request unless it is sent already.
func (r *streamCall) send() error {
	if r.in != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return context.Canceled
	}
	cl := r.bus.use()
	reply, in, err := cl.mux.register()
	if err != nil {
		cl.release()
		return err
	}
	r.client, r.reply, r.in = cl, reply, in
	r.unwatch = cl.refusals.watch(r.msg.Subject, in.refuse)
	out := nats.NewMsg(r.msg.Subject)
	out.Data, out.Header, out.Reply = r.msg.Data, r.msg.Header, reply
	if err := cl.nc.PublishMsg(out); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	r.maxSilence = min(3*r.bus.opts.AliveEvery, tryTimeout) // a server sends a keep-alive when it takes the request
	if r.timeout == nil {
		r.timeout = time.NewTimer(r.maxSilence)
	}
	return nil
}

// receive waits for the next delta, answer or error; with begin also for a keep-alive.
func (r *streamCall) receive(ctx context.Context, begin bool) (m *nats.Msg, end bool, err error) {
	for {
		r.timeout.Reset(r.maxSilence) // here, so that a slow caller is not taken for a silent server
		for len(r.msgs) == 0 {
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-r.timeout.C:
				r.setComplete() // the server is not cancelled: a repeated request gets the result of its work
				if !r.begun {
					return nil, false, errNotBegun
				}
				return nil, false, &api.Error{
					Code: api.Unavailable, Message: "the service stopped sending before its answer was complete", Next: "try again", RetryAfter: 1000,
				}
			case <-r.in.ready:
				r.msgs = r.in.take()
			}
		}
		m := r.msgs[0]
		r.msgs = r.msgs[1:]
		switch {
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		case m == refusal:
			if !r.begun { // otherwise another request on this subject was refused
				return nil, false, errRefused
			}
		case noResponders(m):
			return nil, false, nats.ErrNoResponders
		case m.Header.Get(headerAlive) != "":
			r.mu.Lock()
			r.control = m.Header.Get(headerControl)
			r.mu.Unlock()
			if r.begun, r.maxSilence = true, 3*r.bus.opts.AliveEvery; begin {
				return nil, false, nil
			}
		case m.Header.Get(micro.ErrorCodeHeader) != "":
			r.setComplete()
			return m, false, answerError(m)
		case m.Header.Get(headerEnd) != "":
			r.setComplete()
			return m, true, nil
		default:
			r.begun, r.maxSilence = true, 3*r.bus.opts.AliveEvery
			if m.Header.Get(headerSeq) == seqHeader(r.next) { // otherwise an earlier delta was lost: skip all others until the answer
				r.next++
				return m, false, nil
			}
		}
	}
}

func (r *streamCall) setComplete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complete = true
}

// reset gives up the current try; the next send sends the request again.
func (r *streamCall) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cancelTry()
	r.in, r.msgs, r.complete = nil, nil, false
}

// cancelTry releases what the current try uses, and cancels its reply unless it is complete.
// The caller holds r.mu.
func (r *streamCall) cancelTry() {
	if r.client == nil {
		return
	}
	if !r.complete {
		r.bus.cancelAt(r.control, r.reply)
	}
	r.unwatch()
	r.client.mux.remove(r.reply)
	r.client.release()
	r.client = nil
}

func (r *streamCall) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.cancelTry()
	r.span.End()
}

// cancelAt asks a server to cancel the streamed reply on a reply subject. If this message
// is lost, it is sent again at the server's next keep-alive.
func (b *Bus) cancelAt(control, reply string) {
	if control == "" {
		return
	}
	cl := b.use()
	defer cl.release()
	if err := cl.nc.Publish(control, []byte(reply)); err != nil {
		b.log.Warn("cannot cancel an answer", "err", err)
	}
}

func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

// mux receives all streamed replies of a client on one wildcard subscription.
type mux struct {
	bus     *Bus
	client  *client
	mu      sync.Mutex
	sub     *nats.Subscription
	prefix  string
	waiting map[string]*inbox
	count   atomic.Uint64
}

func newMux(b *Bus, cl *client) *mux {
	return &mux{bus: b, client: cl, waiting: map[string]*inbox{}}
}

func (x *mux) open() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sub != nil {
		return nil
	}
	x.prefix = x.client.nc.NewInbox() + "."
	sub, err := x.client.nc.Subscribe(x.prefix+"*", func(m *nats.Msg) {
		x.mu.Lock()
		c := x.waiting[m.Subject]
		x.mu.Unlock()
		if c == nil {
			// The caller gave up before it received the control subject, or its
			// cancellation was lost.
			x.bus.cancelAt(m.Header.Get(headerControl), m.Subject)
			return
		}
		c.put(m)
	})
	if err != nil {
		return fmt.Errorf("replies: %w", err)
	}
	x.sub = sub
	return nil
}

func (x *mux) register() (string, *inbox, error) {
	if err := x.open(); err != nil {
		return "", nil, err
	}
	c := newInbox()
	x.mu.Lock()
	defer x.mu.Unlock()
	reply := x.prefix + seqHeader(int(x.count.Add(1)))
	x.waiting[reply] = c
	return reply, c, nil
}

func (x *mux) remove(reply string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.waiting, reply)
}

func (x *mux) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sub != nil {
		_ = x.sub.Unsubscribe() // an error means that the connection is closed
		x.sub = nil
	}
}

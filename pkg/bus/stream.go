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

// A streamed reply is a row of messages on one reply subject: every delta with
// its number, a sign of life while there is nothing to say, and the answer with
// [headerEnd]. The caller's replies share one wildcard subscription, because a
// subscription each costs ten times as much.

// Stream answers every request Req with any number of Deltas and one Resp. When
// the caller gives up, the context ends and send fails. Resp must be whole by itself: a
// caller may miss Deltas. Workers as in [Reply].
func Stream[Req api.Message, Delta, Resp any](answer func(ctx context.Context, req Req, send func(Delta) error) (Resp, error), workers ...Workers) Route {
	return endpoint(pool(workers), func(ctx context.Context, ln *line, in *nats.Msg, req Req) (*nats.Msg, error) {
		b := ln.mux.bus
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
		w := &streamWriter{line: ln, reply: in.Reply}
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
	line  *line
	reply string
	mu    sync.Mutex
	seq   int
}

// write sends one message of the row. Signs of life have no number.
func (w *streamWriter) write(kind string, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := nats.NewMsg(w.reply)
	m.Data = data
	if kind != "" {
		m.Header.Set(kind, "1")
		m.Header.Set(headerControl, w.line.mux.bus.controlSubject())
	} else {
		m.Header.Set(headerSeq, seqHeader(w.seq))
		w.seq++
	}
	return w.line.nc.PublishMsg(m)
}

// sent is how many pieces were written, so that a loss of the last ones shows.
func (w *streamWriter) sent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return seqHeader(w.seq)
}

func (w *streamWriter) keepAlive(ctx context.Context) {
	t := time.NewTicker(w.line.mux.bus.opts.AliveEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := w.write(headerAlive, nil); err != nil {
				return // the connection is gone, and the caller's patience with it
			}
		}
	}
}

func (b *Bus) controlSubject() string {
	return control(b.opts.Service) + "." + b.opts.Instance
}

// control cancels a streamed reply whose caller has gone.
func (b *Bus) control(m *nats.Msg) {
	b.mu.Lock()
	cancel := b.controls[string(m.Data)]
	b.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// CallStream asks a question whose answer comes in pieces: delta is called with
// each, in order, on the caller's goroutine. If ctx ends, the server is told to
// stop. A question that no server has begun to answer after 3 s is asked again. Errors
// are those of [Call]; a server that falls silent is Unavailable. When a piece is lost,
// delta is not called any more and the answer at the end is returned all the same:
// asking again would have it made, and paid, again.
func CallStream[Delta, Resp any](ctx context.Context, b *Bus, req api.Message, delta func(Delta) error) (Resp, error) {
	cancel := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok { // a later one stays: silence ends the call before it
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
			return s.answer, failed(s.row.span, err)
		}
	}
}

// Streaming is the caller's side of a streamed reply, which [OpenStream] begins. Its
// methods must not be called by several goroutines at once, but for Close.
type Streaming[Delta, Resp any] struct {
	row    *row
	answer Resp
}

// OpenStream asks a question as [CallStream] does, for a caller that reads the pieces
// itself and may do something else between two of them. ctx gives the trace. The caller
// must call Close.
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
	return &Streaming[Delta, Resp]{row: &row{bus: b, subject: s, msg: msg, span: span}}, nil
}

// Begin waits until a server has taken the question, or ctx ends. Next does so, too. An
// error with [api.ReasonNoAnswer] says that no server is there. Errors are those of
// [CallStream]; after one that is only ctx's, Begin or Next may be called again.
func (s *Streaming[Delta, Resp]) Begin(ctx context.Context) error {
	_, _, err := s.row.read(ctx, true)
	if ctx.Err() == nil {
		err = failed(s.row.span, err)
	}
	return err
}

// Next waits for the next piece until ctx ends. It returns false when there is none,
// because the answer is whole; see [Streaming.Answer]. Errors are those of [CallStream];
// after one, Next must not be called again.
func (s *Streaming[Delta, Resp]) Next(ctx context.Context) (Delta, bool, error) {
	var d Delta
	m, end, err := s.row.read(ctx, false)
	switch {
	case err != nil:
	case end:
		err = api.Decode(m.Data, &s.answer)
	default:
		err = api.Decode(m.Data, &d)
	}
	return d, !end && err == nil, failed(s.row.span, err)
}

// Answer is what the reply came to, once Next has returned false without an error.
func (s *Streaming[Delta, Resp]) Answer() Resp { return s.answer }

// Close ends the reading. A server that has not sent the whole answer is told to stop.
// Closing twice, or at the same time as a Next, is allowed.
func (s *Streaming[Delta, Resp]) Close() { s.row.close() }

// errUnheard is the error for a question that no server has begun to answer: each
// begins with a sign that it does.
var errUnheard = &api.Error{Code: api.Unavailable, Message: "no sign of life from the service", Next: "try again", RetryAfter: 1000}

// row reads the messages of one streamed reply.
type row struct {
	bus     *Bus
	subject api.Subject
	msg     *nats.Msg
	span    trace.Span

	in       *inbox // nil: nothing is asked
	msgs     []*nats.Msg
	next     int // number of the piece that is due
	silence  *time.Timer
	patience time.Duration // with a silent server
	begun    bool          // a server took the question

	mu      sync.Mutex
	line    *line  // nil: nothing is asked
	unwatch func() // ends the watch for a refusal on it
	reply   string // on it
	control string // where to cancel the reply
	whole   bool   // nothing comes any more
	closed  bool
}

// read returns the next message of the row, and whether it is the last: the answer. It
// asks as often as it takes until a server has begun, which ends it if begin is set.
func (r *row) read(ctx context.Context, begin bool) (m *nats.Msg, end bool, err error) {
	for try := 0; ; try++ {
		if m, err = nil, r.ask(); err == nil {
			if begin && r.begun {
				return nil, false, nil
			}
			m, end, err = r.receive(ctx, begin)
		}
		if err == nil {
			return m, end, nil
		}
		again, err := unanswered(ctx, r.subject, m, err)
		if !again && !errors.Is(err, errUnheard) || r.begun {
			return nil, false, err
		}
		r.leave()
		if pause(ctx, backoff(try, 10*time.Millisecond, 500*time.Millisecond)) != nil {
			return nil, false, err
		}
	}
}

// ask sends the question, unless it is sent.
func (r *row) ask() error {
	if r.in != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return context.Canceled
	}
	ln := r.bus.use()
	reply, in, err := ln.mux.wait()
	if err != nil {
		ln.release()
		return err
	}
	r.line, r.reply, r.in = ln, reply, in
	r.unwatch = ln.refusals.watch(r.msg.Subject, in.refuse)
	out := nats.NewMsg(r.msg.Subject)
	out.Data, out.Header, out.Reply = r.msg.Data, r.msg.Header, reply
	if err := ln.nc.PublishMsg(out); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	r.patience = min(3*r.bus.opts.AliveEvery, tryTimeout) // a server that is there says so at once
	if r.silence == nil {
		r.silence = time.NewTimer(r.patience)
	}
	return nil
}

// receive waits for the next message that says something. With begin, that is a sign of
// life, too.
func (r *row) receive(ctx context.Context, begin bool) (m *nats.Msg, end bool, err error) {
	for {
		r.silence.Reset(r.patience) // here, because a slow caller must not look like a silent server
		for len(r.msgs) == 0 {
			select {
			case <-ctx.Done():
				return nil, false, ctx.Err()
			case <-r.silence.C:
				r.ended() // the server is not told to stop: asking again finds what it comes to
				if !r.begun {
					return nil, false, errUnheard
				}
				return nil, false, &api.Error{
					Code: api.Unavailable, Message: "the service fell silent in the middle of its answer", Next: "try again", RetryAfter: 1000,
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
			if !r.begun { // else it was another question
				return nil, false, errRefused
			}
		case noResponders(m):
			return nil, false, nats.ErrNoResponders
		case m.Header.Get(headerAlive) != "":
			r.mu.Lock()
			r.control = m.Header.Get(headerControl)
			r.mu.Unlock()
			if r.begun, r.patience = true, 3*r.bus.opts.AliveEvery; begin {
				return nil, false, nil
			}
		case m.Header.Get(micro.ErrorCodeHeader) != "":
			r.ended()
			return m, false, answerError(m)
		case m.Header.Get(headerEnd) != "":
			r.ended()
			return m, true, nil
		default:
			r.begun, r.patience = true, 3*r.bus.opts.AliveEvery
			if m.Header.Get(headerSeq) == seqHeader(r.next) { // else one before it was lost: nothing after it fits, until the answer
				r.next++
				return m, false, nil
			}
		}
	}
}

func (r *row) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.whole = true
}

// leave gives up the present try.
func (r *row) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
	r.in, r.msgs, r.whole = nil, nil, false
}

// drop frees what the present try has; the caller holds the lock.
func (r *row) drop() {
	if r.line == nil {
		return
	}
	if !r.whole {
		r.bus.cancelAt(r.control, r.reply)
	}
	r.unwatch()
	r.line.mux.forget(r.reply)
	r.line.release()
	r.line = nil
}

func (r *row) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.drop()
	r.span.End()
}

// cancelAt asks a server to stop answering reply. The server's next sign of life
// repeats the occasion, should this get lost.
func (b *Bus) cancelAt(control, reply string) {
	if control == "" {
		return
	}
	ln := b.use()
	defer ln.release()
	if err := ln.nc.Publish(control, []byte(reply)); err != nil {
		b.log.Warn("cannot cancel an answer", "err", err)
	}
}

func noResponders(m *nats.Msg) bool {
	return len(m.Data) == 0 && m.Header.Get("Status") == "503"
}

// mux shares one wildcard subscription among all streamed replies.
type mux struct {
	bus     *Bus
	line    *line
	mu      sync.Mutex
	sub     *nats.Subscription
	prefix  string
	waiting map[string]*inbox
	count   atomic.Uint64
}

func newMux(b *Bus, ln *line) *mux {
	return &mux{bus: b, line: ln, waiting: map[string]*inbox{}}
}

func (x *mux) open() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sub != nil {
		return nil
	}
	x.prefix = x.line.nc.NewInbox() + "."
	sub, err := x.line.nc.Subscribe(x.prefix+"*", func(m *nats.Msg) {
		x.mu.Lock()
		c := x.waiting[m.Subject]
		x.mu.Unlock()
		if c == nil {
			// Nobody waits for this answer: its caller gave up before it knew where
			// to say so, or saying so got lost.
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

func (x *mux) wait() (string, *inbox, error) {
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

func (x *mux) forget(reply string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.waiting, reply)
}

func (x *mux) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sub != nil {
		_ = x.sub.Unsubscribe() // the connection may be closed already
		x.sub = nil
	}
}

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
	var resp Resp
	cancel := context.CancelFunc(func() {})
	if _, ok := ctx.Deadline(); !ok { // a later one stays: silence ends the call before it
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
	}
	defer cancel()
	s := req.Subject()
	msg, err := b.message(s, req)
	if err != nil {
		return resp, err
	}
	n := b.names.of(s)
	ctx, span := b.tracer.Start(ctx, n.call, n.caller...)
	defer span.End()
	inject(ctx, msg.Header)
	piece := func(data []byte) error {
		var d Delta
		if err := api.Decode(data, &d); err != nil {
			return err
		}
		return delta(d)
	}
	for try := 0; ; try++ {
		end, begun, err := b.row(ctx, msg, piece)
		if err == nil {
			return resp, failed(span, api.Decode(end.Data, &resp))
		}
		again, err := unanswered(ctx, s, end, err)
		if !again && !errors.Is(err, errUnheard) || begun {
			return resp, failed(span, err)
		}
		if pause(ctx, backoff(try, 10*time.Millisecond, 500*time.Millisecond)) != nil {
			return resp, failed(span, err)
		}
	}
}

// errUnheard is that nobody gave the sign of life with which every server begins.
var errUnheard = &api.Error{Code: api.Unavailable, Message: "no sign of life from the service", Next: "try again", RetryAfter: 1000}

// row asks once and reads the row to its end. begun says that a server took the
// question.
func (b *Bus) row(ctx context.Context, msg *nats.Msg, piece func([]byte) error) (end *nats.Msg, begun bool, err error) {
	ln := b.use()
	defer ln.release()
	reply, in, err := ln.mux.wait()
	if err != nil {
		return nil, false, err
	}
	defer ln.mux.forget(reply)
	out := nats.NewMsg(msg.Subject)
	out.Data, out.Header, out.Reply = msg.Data, msg.Header, reply
	if err := ln.nc.PublishMsg(out); err != nil {
		return nil, false, fmt.Errorf("ask: %w", err)
	}
	patience := min(3*b.opts.AliveEvery, tryTimeout) // who is alive says so at once
	silence := time.NewTimer(patience)
	defer silence.Stop()
	control, next := "", 0
	stop := func() { b.cancelAt(control, reply) }
	var msgs []*nats.Msg
	for {
		silence.Reset(patience) // here, because a slow caller must not look like a silent server
		for len(msgs) == 0 {
			select {
			case <-ctx.Done():
				stop()
				return nil, begun, ctx.Err()
			case <-silence.C:
				if !begun {
					return nil, false, errUnheard
				}
				// The server is not told to stop: asking again finds what it comes to.
				return nil, begun, &api.Error{
					Code: api.Unavailable, Message: "the service fell silent in the middle of its answer", Next: "try again", RetryAfter: 1000,
				}
			case <-in.ready:
				msgs = in.take()
			}
		}
		m := msgs[0]
		msgs = msgs[1:]
		switch {
		case ctx.Err() != nil:
			stop()
			return nil, begun, ctx.Err()
		case noResponders(m):
			return nil, false, nats.ErrNoResponders
		case m.Header.Get(headerAlive) != "":
			control, begun, patience = m.Header.Get(headerControl), true, 3*b.opts.AliveEvery
		case m.Header.Get(micro.ErrorCodeHeader) != "":
			return m, begun, answerError(m)
		case m.Header.Get(headerEnd) != "":
			return m, begun, nil
		default:
			begun, patience = true, 3*b.opts.AliveEvery
			if m.Header.Get(headerSeq) != seqHeader(next) {
				continue // a piece before it was lost: nothing after it fits, until the answer
			}
			next++
			if err := piece(m.Data); err != nil {
				stop()
				return nil, begun, err
			}
		}
	}
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

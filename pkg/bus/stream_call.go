package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// errNotBegun is the error for a request that no server has begun: a server sends a
// keep-alive when it begins one.
var errNotBegun = unavailable("the service has not begun the request", "try again")

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
	client   *client       // nil: no request is sent
	watch    *refusalWatch // for a refusal on client
	reply    string        // reply subject on client
	control  string        // subject on which the reply is cancelled
	complete bool          // no further message is expected
	closed   bool
	gone     chan struct{} // see left; nil until a call of it
}

// read returns the next message, and whether it is the answer, which is the last. It
// sends the request, with retries until a server has begun it. With begin it returns
// then.
func (r *streamCall) read(ctx context.Context, begin bool) (m *nats.Msg, end bool, err error) {
	for try := 0; ; try++ {
		if m, err = nil, r.send(ctx); err == nil {
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
		if !pause(ctx, try) {
			return nil, false, err
		}
		tried(r.msg, try)
	}
}

// send sends the request unless it is sent already.
func (r *streamCall) send(ctx context.Context) error {
	if r.in != nil {
		return nil
	}
	cl := r.bus.use()
	var away error
	if !cl.nc.IsConnected() {
		away = cl.awaitUp(ctx, r.left()) // not with the lock held: close needs it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		away = context.Canceled
	}
	if away != nil {
		cl.release()
		return away
	}
	reply, in, err := cl.mux.register()
	if err != nil {
		cl.release()
		return err
	}
	r.client, r.reply, r.in = cl, reply, in
	r.watch = cl.refusals.watch(r.msg.Subject, in.refuse)
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

// left returns a channel that is closed when the call is. Only a call without a connection
// needs one.
func (r *streamCall) left() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone == nil {
		r.gone = make(chan struct{})
		if r.closed {
			close(r.gone)
		}
	}
	return r.gone
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
				return nil, false, unavailable("the service stopped sending before its answer was complete", "try again")
			case <-r.in.ready:
				r.msgs = r.in.take()
			}
		}
		m := r.msgs[0]
		r.msgs = r.msgs[1:]
		switch {
		case ctx.Err() != nil:
			return nil, false, ctx.Err()
		case m == closing:
			return nil, false, context.Canceled
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
			if m.Header.Get(headerSeq) == strconv.Itoa(r.next) { // otherwise an earlier delta was lost: skip all others until the answer
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
	r.client.refusals.unwatch(r.watch)
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
	if r.gone != nil {
		close(r.gone)
	}
	if r.in != nil {
		r.in.put(closing) // no further message comes
	}
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

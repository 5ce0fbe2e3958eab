package bus

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// Headers of this package. Errors travel in the headers of micro, with the encoded
// [api.Error] as the body.
const (
	headerSeq     = "Anima-Seq"     // number of a delta in a streamed reply, from 0
	headerEnd     = "Anima-End"     // marks the last message of a streamed reply
	headerAlive   = "Anima-Alive"   // keep-alive of a streamed reply
	headerControl = "Anima-Control" // subject on which a streamed reply is cancelled
	headerRefused = "Anima-Refused" // the handler was not started: every worker is busy
	headerTried   = "Anima-Tried"   // no replica took the request in manyTries tries, see [Queue]
	headerRequest = "Anima-Request" // id of a request, see [RequestID]
)

// Call sends a request and waits for its answer until ctx ends, for at most 30 s (10 s if
// ctx has no deadline), and for at most 10 s after a service took the request. It retries
// with backoff while no service takes the request (NATS is away, no replica is up, every
// worker is busy) and enough of that time is left: the handler of such a request was never
// started. It also repeats the request when the connection broke, which loses the answer,
// and, without abandoning the first request, after 3 s and 7 s without an answer, because
// the replica that took it may have crashed. So a handler may execute a request twice, also
// concurrently; it recognises the second time by an id of the caller in the request, or by
// [RequestID]. A request that was taken and not answered in time is Unavailable and may
// have been executed. A replica that receives it 5 minutes after the call or later, because
// it was paused, does not execute it.
func Call[Resp any](ctx context.Context, b *Bus, req api.Message) (Resp, error) {
	var resp Resp
	ctx, cancel := bounded(ctx)
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
	msg.Header.Set(headerRequest, uuid.Must(uuid.NewV7()).String())
	for try := 0; ; try++ {
		answer, broken, err := b.ask(ctx, msg)
		if broken {
			continue
		}
		if err == nil {
			err = answerError(answer)
		}
		if err == nil {
			return resp, failed(span, api.Decode(answer.Data, &resp))
		}
		again, err := unanswered(ctx, s, answer, err)
		if !again {
			return resp, failed(span, err)
		}
		if !pause(ctx, try) {
			return resp, failed(span, err)
		}
		tried(msg, try)
	}
}

// requestKey is the key of a request's headers in a context.
type requestKey struct{}

// RequestID returns the id of the request that a handler answers, a UUID that begins with
// the time of the request (version 7). It is unique, and the same whenever [Call] repeats
// the request. It is "" outside of handlers, and if the request was not made with Call. A
// caller of a previous release sends another form.
func RequestID(ctx context.Context) string {
	h, _ := ctx.Value(requestKey{}).(nats.Header)
	return h.Get(headerRequest)
}

// RequestedAt returns the time of the request that a handler answers, by the caller's
// clock, in Unix microseconds. It is the time in [RequestID], so it is the same whenever
// [Call] repeats the request. It is 0 if there is no such id.
func RequestedAt(ctx context.Context) int64 {
	h, _ := ctx.Value(requestKey{}).(nats.Header)
	return requestedAt(h)
}

// requestedAt returns the time in the id of a request, or 0.
func requestedAt(h nats.Header) int64 {
	id, err := uuid.Parse(h.Get(headerRequest))
	if err != nil || id.Version() != 7 {
		return 0
	}
	// The 12 bits after the version have the part of the millisecond, in units of 256 ns
	// (RFC 9562, section 6.2, method 3).
	part := int64(id[6]&0x0f)<<8 | int64(id[7])
	ms := int64(binary.BigEndian.Uint64(id[:8]) >> 16) //nolint:gosec // 48 bits
	return ms*1000 + part*256/1000
}

// maxSkew is the difference between the clocks of a caller and a service with which the
// service still takes every request. It is longer than the minute of a decision token, so
// that clocks which stop all requests have stopped all tool calls before.
const maxSkew = 270 * time.Second

// outdated returns the age of a request by the clock of this process, and whether its
// caller has certainly given up: [Call] waits for [maxWait] at most, repetitions included,
// and the clocks may differ by maxSkew. A request without a time in its id, such as that of
// a stream, is never outdated.
func outdated(h nats.Header, now time.Time) (time.Duration, bool) {
	at := requestedAt(h)
	age := time.Duration(now.UnixMicro()-at) * time.Microsecond
	return age, at > 0 && age > maxWait+maxSkew
}

// pause waits before a request is repeated. It returns false if ctx then leaves less time
// than the pause took. If ctx ended during the repetition, the caller would not learn why
// no service took the request, and could not exclude that it was executed.
func pause(ctx context.Context, try int) bool {
	d := backoff(try, 10*time.Millisecond, 500*time.Millisecond)
	if wait.For(ctx, d) != nil {
		return false
	}
	end, ok := ctx.Deadline()
	return !ok || time.Until(end) > d
}

// ask sends the request and waits for an answer. broken reports that the connection broke
// before an answer arrived.
func (b *Bus) ask(ctx context.Context, msg *nats.Msg) (answer *nats.Msg, broken bool, err error) {
	cl := b.use()
	defer cl.release()
	// A replica that took the request and crashed never answers, and ctx may last for
	// minutes.
	once, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := cl.awaitUp(once, nil); err != nil {
		return nil, false, err
	}
	up := cl.untilBroken()
	defer context.AfterFunc(up, cancel)()
	var found struct { // one allocation
		refused atomic.Bool
		other   *nats.Msg // answer to the repeated request
		asking  sync.WaitGroup
	}
	watch := cl.refusals.watch(msg.Subject, func() { found.refused.Store(true); cancel() })
	defer cl.refusals.unwatch(watch)
	found.asking.Add(1)
	late := time.AfterFunc(tryTimeout, func() {
		defer found.asking.Done()
		if found.other = askOthers(once, cl.nc, msg); found.other != nil {
			cancel()
		}
	})
	answer, err = cl.nc.RequestMsgWithContext(once, msg)
	if !late.Stop() {
		cancel()
		found.asking.Wait()
	}
	if err != nil && found.other != nil {
		return found.other, false, nil
	}
	if err != nil && found.refused.Load() && ctx.Err() == nil {
		return nil, false, errRefused
	}
	return answer, err != nil && up.Err() != nil && ctx.Err() == nil && errors.Is(err, context.Canceled), err
}

// askOthers repeats the request every 4 s until it gets an answer that is not a refusal.
// It returns nil when ctx ends. NATS delivers no request to a crashed replica after it
// has dropped the replica's connection, 6 to 8 s after the crash.
func askOthers(ctx context.Context, nc *nats.Conn, msg *nats.Msg) *nats.Msg {
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, tryTimeout+time.Second)
		answer, err := nc.RequestMsgWithContext(once, msg)
		if err == nil && answer.Header.Get(headerRefused) == "" {
			cancel()
			return answer
		}
		<-once.Done() // every worker was busy: repeat after the whole interval
		cancel()
	}
	return nil
}

// unanswered converts a transport error to an [api.Error] and reports whether the handler
// was certainly not started, so that the request may be repeated. answer is the message
// that was received, nil if there was none.
func unanswered(ctx context.Context, s api.Subject, answer *nats.Msg, err error) (bool, error) {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return true, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonNoAnswer, Message: "no " + string(s.Owner) + " service is running to answer " + s.Name,
			Next: "start it, or wait until it is ready", RetryAfter: 1000,
		}
	case errors.Is(err, errRefused):
		return true, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonNoAnswer, Message: "NATS does not permit this service to request " + string(s.Owner) + " " + s.Name,
			Next: "install the accounts.conf of this release on the NATS servers", RetryAfter: 1000,
		}
	case answer != nil:
		return answer.Header.Get(headerRefused) != "", err
	case errors.Is(ctx.Err(), context.Canceled):
		return false, ctx.Err()
	case errors.Is(err, errAway):
		return true, err
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return false, unavailable(string(s.Owner)+" did not answer "+s.Name+" in time", "try again")
	}
	return false, err
}

// answerError returns the error that an answer carries, or nil.
func answerError(m *nats.Msg) error {
	code := m.Header.Get(micro.ErrorCodeHeader)
	if code == "" {
		return nil
	}
	e := &api.Error{}
	if len(m.Data) == 0 || api.Decode(m.Data, e) != nil {
		e = &api.Error{Code: api.Code(code), Message: m.Header.Get(micro.ErrorHeader)}
	}
	return e
}

// errorMsg encodes err as an answer. A handler's exceeded deadline becomes Unavailable:
// the work may have been done, as with a request that was not answered in time, and the
// caller may retry.
func errorMsg(reply string, err error) *nats.Msg {
	e := api.Wire(err)
	if e.Code == api.Internal && errors.Is(err, context.DeadlineExceeded) {
		e = unavailable("the request was not finished in time", "try again")
	}
	msg := nats.NewMsg(reply)
	msg.Header.Set(micro.ErrorCodeHeader, string(e.Code))
	msg.Header.Set(micro.ErrorHeader, headerText(e.Message))
	if data, err := api.Encode(e); err == nil {
		msg.Data = data
	}
	return msg
}

// headerText shortens a message to one line of 120 characters for a header. The body has
// the whole text.
func headerText(s string) string {
	line := []rune(strings.NewReplacer("\n", " ", "\r", " ").Replace(s))
	return string(line[:min(len(line), 120)])
}

// backoff returns a random duration between half and all of base<<try, or of limit if that
// is less.
func backoff(try int, base, limit time.Duration) time.Duration {
	d := limit
	if try < 16 {
		d = min(limit, base<<try)
	}
	return d/2 + rand.N(d/2+1)
}

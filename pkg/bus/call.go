package bus

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
)

// Headers of our own. Errors travel in micro's headers, with the whole
// [api.Error] as the body.
const (
	headerSeq     = "Anima-Seq"     // of a streamed reply, from 0
	headerEnd     = "Anima-End"     // the last message of a streamed reply
	headerAlive   = "Anima-Alive"   // nothing to say yet, still working
	headerControl = "Anima-Control" // where to cancel a streamed reply
	headerRefused = "Anima-Refused" // the question was not begun: every worker is busy
)

// Call asks a question and waits for its answer until ctx ends, for 30 s at most, and
// for 10 s at most from when a service took it. While no service takes the question (no
// replica is up, every worker is busy) it asks again: such a question was never begun. It
// asks again too when the connection broke, which loses the answer, and, without giving
// up the first question, when none has come for 3 s and for 7: the replica that took it
// may have crashed. The ids in our requests make that safe. A question that was taken and
// not answered in time is Unavailable and may have been acted on.
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
		if pause(ctx, backoff(try, 10*time.Millisecond, 500*time.Millisecond)) != nil {
			return resp, failed(span, err)
		}
	}
}

// ask asks until somebody answers. broken says that the connection ended before an
// answer came.
func (b *Bus) ask(ctx context.Context, msg *nats.Msg) (answer *nats.Msg, broken bool, err error) {
	ln := b.use()
	defer ln.release()
	up := ln.unbroken()
	// One who took the question and died answers never, and ctx may last for minutes.
	once, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	defer context.AfterFunc(up, cancel)()
	var refused atomic.Bool
	defer ln.refusals.watch(msg.Subject, func() { refused.Store(true); cancel() })()
	var other *nats.Msg
	done := make(chan struct{})
	late := time.AfterFunc(tryTimeout, func() {
		defer close(done)
		if other = askOthers(once, ln.nc, msg); other != nil {
			cancel()
		}
	})
	answer, err = ln.nc.RequestMsgWithContext(once, msg)
	if !late.Stop() {
		cancel()
		<-done
	}
	if err != nil && other != nil {
		return other, false, nil
	}
	if err != nil && refused.Load() && ctx.Err() == nil {
		return nil, false, errRefused
	}
	return answer, err != nil && up.Err() != nil && ctx.Err() == nil && errors.Is(err, context.Canceled), err
}

// askOthers asks until somebody answers who has begun, or ctx ends: nil. A replica
// that died is asked no more once its connection is forgotten, after 6 to 8 s.
func askOthers(ctx context.Context, nc *nats.Conn, msg *nats.Msg) *nats.Msg {
	for ctx.Err() == nil {
		once, cancel := context.WithTimeout(ctx, tryTimeout+time.Second)
		answer, err := nc.RequestMsgWithContext(once, msg)
		if err == nil && answer.Header.Get(headerRefused) == "" {
			cancel()
			return answer
		}
		<-once.Done() // whoever is busy is asked no sooner
		cancel()
	}
	return nil
}

// unanswered turns a transport error into one of ours and says whether the
// question was certainly not begun. answer is what came, if anything did.
func unanswered(ctx context.Context, s api.Subject, answer *nats.Msg, err error) (bool, error) {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return true, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonNoAnswer, Message: "no " + string(s.Owner) + " service is there to answer " + s.Name,
			Next: "start it, or wait until it is ready", RetryAfter: 1000,
		}
	case errors.Is(err, errRefused):
		return true, &api.Error{
			Code: api.Unavailable, Reason: api.ReasonNoAnswer, Message: "NATS does not let this service ask " + string(s.Owner) + " " + s.Name,
			Next: "bring the accounts.conf of this release to its servers", RetryAfter: 1000,
		}
	case answer != nil:
		return answer.Header.Get(headerRefused) != "", err
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return false, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return false, &api.Error{
			Code: api.Unavailable, Message: string(s.Owner) + " did not answer " + s.Name + " in time",
			Next: "try again", RetryAfter: 1000,
		}
	}
	return false, err
}

// answerError is the error that an answer carries, if it carries one.
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

// errorMsg is err as an answer. What a handler could not finish in time may have
// happened, like what is not answered in time: whoever asked may ask again.
func errorMsg(reply string, err error) *nats.Msg {
	e := api.Wire(err)
	if e.Code == api.Internal && errors.Is(err, context.DeadlineExceeded) {
		e = &api.Error{Code: api.Unavailable, Message: "not finished in time", Next: "try again", RetryAfter: 1000}
	}
	msg := nats.NewMsg(reply)
	msg.Header.Set(micro.ErrorCodeHeader, string(e.Code))
	msg.Header.Set(micro.ErrorHeader, headerText(e.Message))
	if data, err := api.Encode(e); err == nil {
		msg.Data = data
	}
	return msg
}

// headerText keeps a message on one line and short: headers are for glances.
func headerText(s string) string {
	out := make([]rune, 0, 120)
	for _, r := range s {
		if r == '\n' || r == '\r' {
			r = ' '
		}
		if len(out) == 120 {
			break
		}
		out = append(out, r)
	}
	return string(out)
}

// backoff doubles from base to limit, with half of it random.
func backoff(try int, base, limit time.Duration) time.Duration {
	d := limit
	if try < 16 {
		d = min(limit, base<<try)
	}
	return d/2 + rand.N(d/2+1)
}

func seqHeader(n int) string { return strconv.Itoa(n) }

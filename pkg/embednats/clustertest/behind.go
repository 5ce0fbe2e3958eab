package clustertest

import (
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// notFound is how a server answers a read of a message that its store does not have.
const notFound = `{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`

// Behind makes the next reads of single messages of a stream, as many as times says,
// find nothing, whatever the stream has: a stream's leader answers so while it has
// not applied what a consumer's leader on another server has delivered already
// (spec/nats.md). p is a server of this process whose clients are in its global
// account. left says how many of these answers are still to come; stop ends it and
// must be called.
func Behind(p nats.InProcessConnProvider, stream string, times int) (left func() int, stop func(), err error) {
	s, err := running(p)
	if err != nil {
		return nil, nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.Name("behind"))
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	from, to := "$JS.API.STREAM.MSG.GET."+stream, "behind."+stream
	var n atomic.Int64
	n.Store(int64(times))
	_, err = nc.Subscribe(to, func(m *nats.Msg) {
		if n.Add(-1) == 0 {
			s.GlobalAccount().RemoveMapping(from)
		}
		_ = m.Respond([]byte(notFound)) // a caller without an answer asks again
	})
	if err == nil {
		err = nc.Flush()
	}
	if err == nil {
		err = s.GlobalAccount().AddMapping(from, to)
	}
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("answer reads of %s: %w", stream, err)
	}
	return func() int { return int(max(0, n.Load())) }, func() {
		s.GlobalAccount().RemoveMapping(from)
		nc.Close()
	}, nil
}

// Swallow takes the next message that a client of p publishes to a subject: it reaches
// no stream, and is not answered, as one that was sent to a server that is killed. stop must
// be called.
func Swallow(p nats.InProcessConnProvider, subject string) (stop func(), err error) {
	s, err := running(p)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.Name("swallow"))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	stop = func() {
		s.GlobalAccount().RemoveMapping(subject)
		nc.Close()
	}
	to := nats.NewInbox()
	_, err = nc.Subscribe(to, func(*nats.Msg) { s.GlobalAccount().RemoveMapping(subject) })
	if err == nil {
		err = nc.Flush()
	}
	if err == nil {
		err = s.GlobalAccount().AddMapping(subject, to)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("swallow %s: %w", subject, err)
	}
	return stop, nil
}

// running is the server behind p, as it is or embedded.
func running(p nats.InProcessConnProvider) (*server.Server, error) {
	switch s := p.(type) {
	case *server.Server:
		return s, nil
	case interface{ Running() *server.Server }:
		return s.Running(), nil
	}
	return nil, fmt.Errorf("%T is no NATS server of this process", p)
}

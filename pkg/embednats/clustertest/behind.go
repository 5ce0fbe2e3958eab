package clustertest

import (
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// notFound is the response of a server to a read of a message that its store does not
// have.
const notFound = `{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`

// Behind makes the next reads of single messages of a stream, as many as times says,
// return not found regardless of the content: the leader of a stream responds so while it
// has not applied messages that the leader of a consumer on another server has already
// delivered (docs/reference/platform.md, Server faults). p is a server of this process
// whose clients are in its global account. left returns how many such responses remain.
// stop removes the mapping and must be called.
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
		_ = m.Respond([]byte(notFound)) // a caller without a response retries
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

// Swallow discards the next message that a client of p publishes to a subject: it is not
// stored and not acknowledged, like a message sent to a server that crashes. stop must be
// called.
func Swallow(p nats.InProcessConnProvider, subject string) (stop func(), err error) {
	return divert(p, subject, func(*nats.Conn, *nats.Msg) {})
}

// Mute stores the next message that a client of p publishes to a subject without an
// answer, like a server that crashes after it has stored the message. stop must be
// called.
func Mute(p nats.InProcessConnProvider, subject string) (stop func(), err error) {
	return divert(p, subject, func(nc *nats.Conn, m *nats.Msg) {
		_ = nc.PublishMsg(&nats.Msg{Subject: subject, Header: m.Header, Data: m.Data}) // the test sees that nothing was stored
	})
}

// divert passes the next message to a subject to f instead of the subject's subscribers.
func divert(p nats.InProcessConnProvider, subject string, f func(*nats.Conn, *nats.Msg)) (stop func(), err error) {
	s, err := running(p)
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.Name("divert"))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	stop = func() {
		s.GlobalAccount().RemoveMapping(subject)
		nc.Close()
	}
	to := nats.NewInbox()
	_, err = nc.Subscribe(to, func(m *nats.Msg) {
		s.GlobalAccount().RemoveMapping(subject)
		f(nc, m)
	})
	if err == nil {
		err = nc.Flush()
	}
	if err == nil {
		err = s.GlobalAccount().AddMapping(subject, to)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("divert %s: %w", subject, err)
	}
	return stop, nil
}

// running returns the server of p, which is the server itself or an embedded one.
func running(p nats.InProcessConnProvider) (*server.Server, error) {
	switch s := p.(type) {
	case *server.Server:
		return s, nil
	case interface{ Running() *server.Server }:
		return s.Running(), nil
	}
	return nil, fmt.Errorf("%T is not a NATS server of this process", p)
}

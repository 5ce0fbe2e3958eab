package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/wait"
)

// client is the state of one bus on one connection. The caller of [Bus.use] releases it.
type client struct {
	*connection
	js  jetstream.JetStream
	mux *mux

	streams sync.Mutex
	handles map[string]jetstream.Stream
}

// use returns the bus's client on the current connection, held.
func (b *Bus) use() *client {
	cn := b.conn.hold()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client == nil || b.client.connection != cn {
		cl, err := b.newClient(cn)
		if err != nil {
			panic(err) // New has used the same options
		}
		b.client = cl
	}
	return b.client
}

func (b *Bus) newClient(cn *connection) (*client, error) {
	js, err := jetstream.New(cn.nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	cl := &client{connection: cn, js: js, handles: map[string]jetstream.Stream{}}
	cl.mux = newMux(b, cl)
	return cl, nil
}

// retry calls f to read from JetStream. It retries while the leader changes: each try ends
// after 3 s, because a server that has shut down does not answer and the caller's
// deadline may be that of a run.
func (b *Bus) retry(ctx context.Context, f func(context.Context, *client) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for try := 0; ; try++ {
		err := b.tryOnce(ctx, f)
		if err == nil || ctx.Err() != nil || !temporary(err) {
			return err
		}
		if wait.For(ctx, backoff(try, 20*time.Millisecond, time.Second)) != nil {
			return err
		}
	}
}

func (b *Bus) tryOnce(ctx context.Context, f func(context.Context, *client) error) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	cl := b.use()
	defer cl.release()
	return f(ctx, cl)
}

// get reads one message of a stream with read.
func (b *Bus) get(ctx context.Context, stream string, read func(context.Context, jetstream.Stream) (*jetstream.RawStreamMsg, error)) (*jetstream.RawStreamMsg, error) {
	var m *jetstream.RawStreamMsg
	err := b.retry(ctx, func(ctx context.Context, cl *client) error {
		st, err := cl.stream(ctx, stream)
		if err == nil {
			m, err = read(ctx, st)
		}
		return err
	})
	return m, err
}

// getLast reads the last message of a subject.
func (b *Bus) getLast(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	return b.get(ctx, stream, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetLastMsgForSubject(ctx, subject)
	})
}

// getNext reads the first message of a subject at or after a sequence.
func (b *Bus) getNext(ctx context.Context, stream, subject string, from uint64) (*jetstream.RawStreamMsg, error) {
	return b.get(ctx, stream, func(ctx context.Context, st jetstream.Stream) (*jetstream.RawStreamMsg, error) {
		return st.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subject))
	})
}

func (cl *client) stream(ctx context.Context, name string) (jetstream.Stream, error) {
	cl.streams.Lock()
	h := cl.handles[name]
	cl.streams.Unlock()
	if h != nil {
		return h, nil
	}
	h, err := cl.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	cl.streams.Lock()
	cl.handles[name] = h
	cl.streams.Unlock()
	return h, nil
}

// untilReplaced returns a copy of ctx that ends when another connection replaces cn. The
// caller calls the returned function when done.
func (cn *connection) untilReplaced(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(cn.replaced, cancel)
	return ctx, func() { stop(); cancel() }
}

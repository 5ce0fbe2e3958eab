package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// line is the state of one bus on one link. The caller of [Bus.use] releases it.
type line struct {
	*link
	js  jetstream.JetStream
	mux *mux

	streams sync.Mutex
	handles map[string]jetstream.Stream
}

// use returns the bus's line on the current link, held.
func (b *Bus) use() *line {
	l := b.conn.hold()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.line == nil || b.line.link != l {
		ln, err := b.newLine(l)
		if err != nil {
			panic(err) // New has used the same options
		}
		b.line = ln
	}
	return b.line
}

func (b *Bus) newLine(l *link) (*line, error) {
	js, err := jetstream.New(l.nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	ln := &line{link: l, js: js, handles: map[string]jetstream.Stream{}}
	ln.mux = newMux(b, ln)
	return ln, nil
}

// look calls f to read from JetStream. It retries while the leader changes: each try ends
// after 3 s, because a server that has shut down does not answer and the caller's
// deadline may be that of a run.
func (b *Bus) look(ctx context.Context, f func(context.Context, *line) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for try := 0; ; try++ {
		err := b.lookOnce(ctx, f)
		if err == nil || ctx.Err() != nil || !passing(err) {
			return err
		}
		if pause(ctx, backoff(try, 20*time.Millisecond, time.Second)) != nil {
			return err
		}
	}
}

func (b *Bus) lookOnce(ctx context.Context, f func(context.Context, *line) error) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	ln := b.use()
	defer ln.release()
	return f(ctx, ln)
}

func (ln *line) stream(ctx context.Context, name string) (jetstream.Stream, error) {
	ln.streams.Lock()
	h := ln.handles[name]
	ln.streams.Unlock()
	if h != nil {
		return h, nil
	}
	h, err := ln.js.Stream(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	ln.streams.Lock()
	ln.handles[name] = h
	ln.streams.Unlock()
	return h, nil
}

// staying returns a copy of ctx that ends when another link replaces l. The caller calls
// the returned function when done.
func (l *link) staying(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.left, cancel)
	return ctx, func() { stop(); cancel() }
}

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"
)

// errBroken is the cause with which a use of a connection ends after the connection
// broke.
var errBroken = errors.New("the connection broke")

// reconnectInterval is the wait between two attempts to reach a server.
const reconnectInterval = 250 * time.Millisecond

// withReconnect calls use with a connection to the services. When the connection breaks,
// withReconnect cancels the context of use, reconnects at the current address of the services
// and calls use again. It returns when use returns without a broken connection or when
// ctx ends. If the first connection fails, it returns that error at once. away(true) is
// called when the server cannot be reached, away(false) when it can be again.
func (a *app) withReconnect(ctx context.Context, away func(bool), use func(context.Context, *bus.Bus) error) error {
	b, done, err := a.bus()
	for err == nil {
		var broken bool
		broken, err = useConnection(ctx, b, use)
		done()
		if !broken {
			return err
		}
		b, done, err = a.reconnect(ctx, away)
	}
	return err
}

// useConnection calls use and reports whether use ended because the connection broke.
func useConnection(ctx context.Context, b *bus.Bus, use func(context.Context, *bus.Bus) error) (bool, error) {
	once, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	gone := b.Broken()
	wg.Go(func() {
		select {
		case <-gone:
			cancel(errBroken)
		case <-once.Done():
		}
	})
	err := use(once, b)
	// A use that completed needs no other connection.
	return err != nil && !errors.Is(err, errRunEnded) && ctx.Err() == nil && errors.Is(context.Cause(once), errBroken), err
}

// away reports on standard error that the server cannot be reached, or that it can be again.
func (a *app) away(away bool) {
	text := "reconnected"
	if away {
		text = "the server cannot be reached, reconnecting"
	}
	fmt.Fprintln(a.Err, "  ("+text+")")
}

// reconnect reconnects, with an attempt every reconnectInterval, until it succeeds or ctx
// ends. It reports to away when the first attempt fails and when a later one succeeds.
func (a *app) reconnect(ctx context.Context, away func(bool)) (*bus.Bus, func(), error) {
	for try := 0; ; try++ {
		b, done, err := a.bus()
		switch {
		case err != nil && try == 0:
			away(true)
		case err == nil && try > 0:
			away(false)
		}
		if err == nil {
			return b, done, nil
		}
		if err := wait.For(ctx, reconnectInterval); err != nil {
			return nil, nil, err
		}
	}
}

package bus

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Failing is a route that cannot be served.
func Failing(err error) Route { return func(*server) error { return err } }

// NATS is the library's connection under c.
func (c *Conn) NATS() *nats.Conn { return c.now.nc }

// Links is how many connections c has.
func (c *Conn) Links() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.links)
}

// Look reads with f as every reading of a stream does.
func (b *Bus) Look(ctx context.Context, f func(context.Context) error) error {
	return b.look(ctx, func(ctx context.Context, _ *line) error { return f(ctx) })
}

// Watched is how many subjects are watched for a refusal.
func Watched(b *Bus) int {
	ln := b.use()
	defer ln.release()
	ln.refusals.mu.Lock()
	defer ln.refusals.mu.Unlock()
	return len(ln.refusals.waiting)
}

package bus

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Failing returns a route that cannot be served.
func Failing(err error) Route { return func(*server) error { return err } }

// NATS returns the connection of nats.go that c uses.
func (c *Conn) NATS() *nats.Conn { return c.now.nc }

// Links returns the number of connections of c.
func (c *Conn) Links() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.links)
}

// Look reads with f as all reads of a stream do.
func (b *Bus) Look(ctx context.Context, f func(context.Context) error) error {
	return b.look(ctx, func(ctx context.Context, _ *line) error { return f(ctx) })
}

// Watched returns the number of subjects that are watched for a refusal.
func Watched(b *Bus) int {
	ln := b.use()
	defer ln.release()
	ln.refusals.mu.Lock()
	defer ln.refusals.mu.Unlock()
	return len(ln.refusals.waiting)
}

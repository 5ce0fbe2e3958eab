package bus

import (
	"context"

	"github.com/nats-io/nats.go"
)

// Failing returns a route that cannot be served.
func Failing(err error) Route { return func(*server) error { return err } }

// NATS returns the connection of nats.go that c uses.
func (c *Conn) NATS() *nats.Conn { return c.now.nc }

// NATS returns the current connection of nats.go that b uses.
func (b *Bus) NATS() *nats.Conn { return b.conn.NATS() }

// Connections returns the number of connections of c.
func (c *Conn) Connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.connections)
}

// Retry reads with f as all reads of a stream do.
func (b *Bus) Retry(ctx context.Context, f func(context.Context) error) error {
	return b.retry(ctx, func(ctx context.Context, _ *client) error { return f(ctx) })
}

// Watched returns the number of subjects that are watched for a refusal.
func Watched(b *Bus) int {
	cl := b.use()
	defer cl.release()
	cl.refusals.mu.Lock()
	defer cl.refusals.mu.Unlock()
	return len(cl.refusals.waiting)
}

// AllStreams returns the names of the streams of all services and of the buckets.
func (b *Bus) AllStreams() []string {
	var names []string
	for _, cfg := range b.streams() {
		names = append(names, cfg.Name)
	}
	return names
}

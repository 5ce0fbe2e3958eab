package bus

import "github.com/nats-io/nats.go"

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

package main

import (
	"context"
	"net"
)

// outsideIP is an address outside of the cluster, of a range that is reserved for
// documentation, and outsidePort the port of a server there. The drill tests with it
// which pods may connect to other networks.
const (
	outsideIP   = "203.0.113.1"
	outsidePort = "443"
)

// startOutside adds the address to the network between the nodes and starts the server.
func (l *lab) startOutside(ctx context.Context) error {
	if _, err := command(ctx, "ip", "-n", labName, "addr", "replace", outsideIP+"/32", "dev", "lo"); err != nil {
		return err
	}
	return l.start(daemon{name: "outside", netns: labName, argv: []string{l.self(), "outside"}})
}

// serveOutside closes every connection that it accepts, until ctx ends.
func serveOutside(ctx context.Context, addr string) error {
	s, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // Accept returns the error
	defer stop()
	for {
		c, err := s.Accept()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the listener was closed
		}
		if err != nil {
			return err
		}
		_ = c.Close() // that the connection was accepted is all that clients need
	}
}

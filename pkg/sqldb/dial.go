package sqldb

import (
	"net"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// silence is how long a connection to a Postgres server that does not respond is
	// kept. Without this limit a statement waits until its context ends, which is two
	// minutes for a model call: after a crash of the machine no packet closes the
	// connection.
	silence = 6 * time.Second
)

// dialer returns a dialer whose connections fail when the server machine is silent:
// keepalive probes check an idle connection, and sent data must be acknowledged within
// silence. A statement that runs for long is not affected.
func dialer() *net.Dialer {
	const every = silence / 3
	return &net.Dialer{
		Control:         takenWithin(silence),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 2},
	}
}

package sqldb

import (
	"net"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// silence is how long a Postgres whose machine died may be waited for. Without
	// it a statement waits until its context ends, which for a model's answer is
	// two minutes: nobody tells that the other side is gone.
	silence = 6 * time.Second
)

// dialer makes connections that end when the other machine is silent: probes ask
// one that has nothing to say, and what is sent must be taken in time. A statement
// that takes long is not silent.
func dialer() *net.Dialer {
	const every = silence / 3
	return &net.Dialer{
		Control:         takenWithin(silence),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: every, Interval: every, Count: 2},
	}
}

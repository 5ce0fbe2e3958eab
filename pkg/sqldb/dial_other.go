//go:build !linux

package sqldb

import (
	"syscall"
	"time"
)

// takenWithin does nothing: the system decides how long it retransmits.
func takenWithin(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }

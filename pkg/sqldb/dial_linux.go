package sqldb

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// takenWithin closes a connection on which sent data was not acknowledged for d.
func takenWithin(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) (err error) {
		if !strings.HasPrefix(network, "tcp") {
			return nil // a Unix socket
		}
		cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		})
		if cerr != nil {
			return cerr
		}
		return err
	}
}

//go:build linux

package sqldb

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDialerNoticesADeadMachine(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // accepts no connection
	c, err := dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // no data was sent
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]struct{ level, option, want int }{
		"probes are sent":                     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"the first after, in seconds":         {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2},
		"the others every, in seconds":        {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2},
		"as many":                             {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2},
		"what is sent is taken within, in ms": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 6000},
	} {
		var got int
		var err error
		if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), o.level, o.option) }); cerr != nil || err != nil {
			t.Fatal(name, cerr, err)
		}
		if got != o.want {
			t.Errorf("%s: got %d, want %d", name, got, o.want)
		}
	}
}

package embednats

import (
	"context"
	"net"
	"time"

	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/wait"
)

const (
	// lookAgain is the interval between checks whether the folder can be written.
	lookAgain = time.Second
	// enough is the size in bytes of the test write after which the server is started
	// again.
	enough = 1 << 20
)

// fail records that a write failed. The server refuses further writes of that stream,
// even when there is space again (docs/reference/platform.md, Server faults).
func (s *Server) fail(text string) {
	s.mu.Lock()
	if s.failed == "" {
		s.failed = text
	}
	s.mu.Unlock()
	select {
	case s.broken <- struct{}{}:
	default:
	}
}

// recover restarts the server at the same address after a failed write, once its folder
// can be written. Clients reconnect. Acknowledged messages are on the disk; publishers
// repeat the others.
//
// The server also switches JetStream off by itself, when it may not write a file of a
// stream (ShutdownJetStream). Some of its causes are no failed write of a message, and
// nothing switches it on again.
func (s *Server) recover(ctx context.Context) {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.broken:
		case <-look.C:
			if s.Running().JetStreamEnabled() {
				continue
			}
			s.o.Log.Error("nats server: it has switched JetStream off, restarting")
		}
		began := time.Now()
		for wait.For(ctx, lookAgain) == nil && !s.again(ctx) {
		}
		if ctx.Err() == nil {
			s.o.Log.Warn("nats server: writes resumed", "after", time.Since(began).Round(time.Millisecond).String())
		}
	}
}

// again restarts the server and reports whether it is running. It does nothing while the
// folder cannot be written.
func (s *Server) again(ctx context.Context) bool {
	if err := disk.Write(s.o.Dir, enough); err != nil {
		s.o.Log.Debug("nats server: folder cannot be written", "err", err)
		return false
	}
	old := s.Running()
	if addr, ok := old.Addr().(*net.TCPAddr); s.o.Listen != "" && ok {
		s.opts.Port = addr.Port // keep the port that clients connect to
	}
	old.Shutdown()
	old.WaitForShutdown()
	select {
	case <-s.broken: // a failure of the old server
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.boot(ctx); err != nil {
		if ctx.Err() == nil {
			s.o.Log.Error("nats server: restart failed, retrying", "err", err)
		}
		s.fail(err.Error())
		return false
	}
	return true
}

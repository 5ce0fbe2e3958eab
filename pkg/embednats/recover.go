package embednats

import (
	"context"
	"net"
	"time"

	"github.com/anima-run/anima/pkg/disk"
)

const (
	// lookAgain is how often a folder that could not be written is tried again.
	lookAgain = time.Second
	// enough is how many bytes the folder must take before the server is started again.
	enough = 1 << 20
)

// fail notes that a write failed. The server refuses writes of that stream from
// then on, also when there is space again (spec/nats.md).
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

// recover starts the server again, at the same address, when a write has failed
// and its folder can be written again. Clients reconnect. What was acknowledged
// is on the disk; publishers repeat what was not.
func (s *Server) recover(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.broken:
		}
		began := time.Now()
		for pause(ctx, lookAgain) && !s.again(ctx) {
		}
		if ctx.Err() == nil {
			s.o.Log.Warn("nats server: stores again", "after", time.Since(began).Round(time.Millisecond).String())
		}
	}
}

// again restarts the server and says whether it runs. It does nothing while the
// folder cannot be written.
func (s *Server) again(ctx context.Context) bool {
	if err := disk.Write(s.o.Dir, enough); err != nil {
		s.o.Log.Debug("nats server: its folder cannot be written", "err", err)
		return false
	}
	old := s.server()
	if addr, ok := old.Addr().(*net.TCPAddr); s.listen && ok {
		s.opts.Port = addr.Port // the one that clients have
	}
	old.Shutdown()
	old.WaitForShutdown()
	select {
	case <-s.broken: // of the server that is gone
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.boot(ctx); err != nil {
		if ctx.Err() == nil {
			s.o.Log.Error("nats server: not started again, trying once more", "err", err)
		}
		s.fail(err.Error())
		return false
	}
	return true
}

// pause waits and says whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

package egress

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestDownloadIsNotIdle tests that a tunnel stays open while one side sends, however long
// the other is silent, and is closed when both are silent for idleTimeout.
func TestDownloadIsNotIdle(t *testing.T) {
	t.Parallel()
	for _, upload := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			command, near := net.Pipe()
			far, server := net.Pipe()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				join(near, near, far)
			}()
			from, to := server, command
			if upload {
				from, to = command, server
			}
			const pieces = 10
			go func() {
				for range pieces {
					<-time.After(idleTimeout / 2)
					_, _ = from.Write([]byte("x")) // lost data is detected at the other end
				}
			}()
			got := make([]byte, pieces)
			if n, err := io.ReadFull(to, got); err != nil {
				t.Errorf("upload %t: got %d of %d pieces, %v", upload, n, pieces, err)
			}
			last := time.Now()
			<-ended
			if idle := time.Since(last); idle != idleTimeout {
				t.Errorf("upload %t: it ended %s after the last piece, want %s", upload, idle, idleTimeout)
			}
			_, _ = command.Close(), server.Close() // the connections have ended
		})
	}
}

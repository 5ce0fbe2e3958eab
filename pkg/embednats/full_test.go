package embednats_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/disk/disktest"
	"github.com/anima-run/anima/pkg/embednats"
)

// TestFullDisk checks that a server whose disk was full stores messages again when there
// is space, for clients that stayed connected, and has all acknowledged messages.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 64*disk.MiB, func(t *testing.T, dir string) {
		s := start(t, embednats.Options{Dir: filepath.Join(dir, "nats"), Listen: "127.0.0.1:0"})
		url := s.ClientURL()
		back := make(chan struct{}, 10)
		outside := connect(t, url, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
		js := connect(t, "", nats.InProcessServer(s.InProcess()), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
		publish(t, js, 10)
		free := disktest.Fill(t, dir)
		kept := 10
		for { // a block may have space left
			once, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a failed write is not acknowledged
			_, err := js.Publish(once, "s.x", make([]byte, 16<<10))
			cancel()
			if err != nil {
				break
			}
			kept++
		}
		if err := s.Healthz(); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("health on a full disk: %v, want no space left", err)
		}
		free()
		<-back
		for { // until the other client has reconnected too
			once, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := js.Publish(once, "s.x", []byte("after"))
			cancel()
			if err == nil {
				break
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
		if got, want := stored(t, js), uint64(kept+1); got < want {
			t.Errorf("%d messages, want %d", got, want)
		}
		if err := s.Healthz(); err != nil || s.ClientURL() != url {
			t.Errorf("afterwards: %v at %s, want health at %s", err, s.ClientURL(), url)
		}
		if _, err := outside.Publish(t.Context(), "s.x", fmt.Append(nil, "outside")); err != nil {
			t.Error(err)
		}
	})
}

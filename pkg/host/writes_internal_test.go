package host

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/wait"
)

// TestSlowReader checks that an answer to a client that does not read it ends with an
// error, written at once or in flushed pieces, and that an answer which takes longer than
// the limit as a whole is complete.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond
	ended := make(chan error, 1)
	large := []byte(strings.Repeat("x", 64<<20)) // more than the buffers of a connection take
	server := httptest.NewServer(limitWrites(limit, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/once":
			_, err := w.Write(large)
			ended <- err
		case "/pieces":
			var err error
			for err == nil {
				if _, err = w.Write(large[:1<<20]); err == nil {
					err = http.NewResponseController(w).Flush()
				}
			}
			ended <- err
		case "/long":
			for range 4 {
				_ = wait.For(r.Context(), limit/2) // the limit must pass during the answer
				_, _ = io.WriteString(w, "part ")
				_ = http.NewResponseController(w).Flush()
			}
			_ = wait.For(r.Context(), limit*2)
			_, _ = io.WriteString(w, "end")
		}
	})))
	t.Cleanup(server.Close)
	for _, path := range []string{"/once", "/pieces"} {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: got %v, want a deadline", path, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the handler is still writing", path)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/long", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second on the same connection
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil || string(body) != "part part part part end" {
			t.Errorf("a long answer: got %q, %v", body, err)
		}
	}
}

package outbox

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOutageIsLoggedLessAndLess checks that an outage of ten minutes with 600 failures
// causes 5 to 10 log lines, and that its end causes one.
func TestOutageIsLoggedLessAndLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := &Relay{log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 600 {
			r.failed(t.Context(), errors.New("no space left"))
			<-time.After(retryPause)
		}
		r.recovered(t.Context())
		r.recovered(t.Context())
		if n := strings.Count(log.String(), "outbox relay failed"); n < 5 || n > 10 {
			t.Errorf("%d lines in ten minutes, want 5 to 10:\n%s", n, &log)
		}
		if n := strings.Count(log.String(), `msg="outbox relay resumed" failures=600 after=10m0s`); n != 1 {
			t.Errorf("%d lines about the end, want 1:\n%s", n, &log)
		}
		log.Reset()
		r.failed(t.Context(), errors.New("again"))
		if !strings.Contains(log.String(), "failures=1") {
			t.Errorf("the next outage begins with %q", &log)
		}
	})
}

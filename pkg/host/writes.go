package host

import (
	"net/http"
	"time"
)

// writePart is the most bytes of an answer that one time limit applies to.
const writePart = 64 << 10

// limitWrites returns a handler whose answers end with an error when the client does not
// receive a part of one within limit. An answer as a whole has no limit.
func limitWrites(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &limitedWriter{ResponseWriter: w, control: http.NewResponseController(w), limit: limit}
		out.extend()
		defer out.extend() // the server writes what is left in its buffer
		next.ServeHTTP(out, r)
	})
}

// limitedWriter sets the deadline of the connection before each write.
type limitedWriter struct {
	http.ResponseWriter

	control  *http.ResponseController
	limit    time.Duration
	deadline time.Time
}

// extend sets the deadline, unless nine tenths of the limit are left: a stream has several
// writes for each token.
func (w *limitedWriter) extend() {
	now := time.Now()
	if w.deadline.Sub(now) > w.limit*9/10 {
		return
	}
	w.deadline = now.Add(w.limit)
	_ = w.control.SetWriteDeadline(w.deadline) // fails only without a connection, in a test
}

func (w *limitedWriter) Write(p []byte) (n int, err error) {
	for {
		part := p[n:min(len(p), n+writePart)]
		w.extend()
		wrote, err := w.ResponseWriter.Write(part)
		if n += wrote; err != nil || n == len(p) {
			return n, err
		}
	}
}

// FlushError is called by http.ResponseController.
func (w *limitedWriter) FlushError() error {
	w.extend()
	return w.control.Flush()
}

// Flush implements http.Flusher for handlers that assert it.
func (w *limitedWriter) Flush() { _ = w.FlushError() }

// Unwrap gives http.ResponseController access to the other methods.
func (w *limitedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

package paywall

import (
	"bytes"
	"io"
	"net/http"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
)

// recorder is an [http.ResponseWriter] that keeps the answer.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
	full   bool // more than maxAnswer was written
}

func newRecorder() *recorder { return &recorder{header: http.Header{}} }

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.body.Len()+len(b) > maxAnswer {
		r.full = true
		return 0, io.ErrShortWrite
	}
	return r.body.Write(b)
}

// fail replaces an answer that is too long to be stored.
func (r *recorder) fail() {
	*r = recorder{header: http.Header{}}
	host.WriteError(r, http.StatusInternalServerError, api.Errorf(api.Internal, "the answer is too long for a paid route"))
}

func (r *recorder) answer() Answer {
	r.WriteHeader(http.StatusOK)
	return Answer{Status: r.status, Header: r.header.Clone(), Body: bytes.Clone(r.body.Bytes())}
}

// writeTo sends an answer that is not stored.
func (r *recorder) writeTo(w http.ResponseWriter) {
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes()) // fails only if the client has disconnected
}

// withBody returns the request with a body that was read already.
func withBody(r *http.Request, body []byte) *http.Request {
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return r
}

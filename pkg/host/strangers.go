package host

import (
	"context"
	"io"
	"net/http"

	"golang.org/x/sync/semaphore"

	"github.com/anima-run/anima/pkg/api"
)

const (
	// strangersShare is the part of the process's memory limit that the bodies and answers
	// of requests of Public routes may have: one in this many. The copies that a handler
	// makes of a body take about four times its size.
	strangersShare = 16
	// maxAnnounced is the most bytes that count because a client announces them. No Public
	// route takes more.
	maxAnnounced = 1 << 20
)

// newStrangers returns the bound of what requests of Public routes have in memory, in
// bytes. Anybody can send them, and can send them slowly: without a bound a few hundred
// clients would end the process.
func newStrangers() *semaphore.Weighted {
	return semaphore.NewWeighted(MemoryLimit() / strangersShare)
}

// occupied is what one request has of the bound. It is not safe for concurrent use.
type occupied struct {
	of *semaphore.Weighted
	n  int64
}

type occupiedKey struct{}

// Occupy counts n more bytes for a request of a Public route until its handler returns, for
// an answer whose size strangers decide on. The error is Unavailable with ReasonBusy, if the
// requests in progress have too much. Other requests have no bound.
func Occupy(ctx context.Context, n int64) error {
	o, ok := ctx.Value(occupiedKey{}).(*occupied)
	if !ok {
		return nil
	}
	return o.more(n)
}

func (o *occupied) more(n int64) error {
	if !o.of.TryAcquire(n) {
		return &api.Error{
			Code: api.Unavailable, Reason: api.ReasonBusy, Message: "the server is busy: the requests in progress use the memory for requests without a token",
			Next: "try again", RetryAfter: 1000,
		}
	}
	o.n += n
	return nil
}

// boundStrangers returns the handler of a Public route, whose requests count for the bound
// of memory and need more free space on the disk than those of the operator. A request with
// a small body, and a client that has not sent the first part of a body, do not count.
func (e *edge) boundStrangers(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			if err := e.spare(); err != nil {
				WriteError(w, 0, err)
				return
			}
		}
		o := &occupied{of: e.strangers}
		defer func() { o.of.Release(o.n) }()
		r = r.WithContext(context.WithValue(r.Context(), occupiedKey{}, o))
		r.Body = &countedBody{ReadCloser: r.Body, request: o, announced: min(r.ContentLength, maxAnnounced)}
		next.ServeHTTP(w, r)
	}
}

// countedBody counts what is read of a body.
type countedBody struct {
	io.ReadCloser

	request   *occupied
	announced int64 // -1: unknown
	read      int64
	counted   int64
}

// Read implements [io.Reader]. The whole announced length counts with the first part,
// because [ReadBody] reserves memory for it then.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if more := max(b.read, b.announced) - b.counted; b.read >= firstPart && more > 0 {
		if busy := b.request.more(more); busy != nil {
			return 0, busy
		}
		b.counted += more
	}
	return n, err
}
